// A sample of the operator database as functions, for what docs/coverage.md measures.
#pragma once

#include <tower/dynamic.h>

#include <string>
#include <vector>

#include "op_db/op_db.h"

namespace docs {

class Sampled {
 public:
  /// In float64, or complex where the operator takes nothing else.
  Sampled(const op_db::Entry& entry, const std::string& text);

  /// All tensors that the operator returns, as a function of all that it takes.
  const tower::dynamic::Function& all() const { return f_; }
  const tower::dynamic::Tensors& leaves() const { return leaves_; }
  /// Those with derivatives, of those with derivatives; the others as they are.
  tower::dynamic::Function partial() const;
  tower::dynamic::Tensors primals() const;

  /// All of it over examples, and so many of them.
  tower::dynamic::Function mapped() const { return mapped(f_); }
  tower::dynamic::Tensors batch(int64_t examples) const;
  /// The gradients of `partial` for each example, of the batch and cotangents.
  tower::dynamic::Function mapped_gradients() const;
  tower::dynamic::Tensors batch_and_cotangents(int64_t examples) const;

 private:
  tower::dynamic::Function mapped(const tower::dynamic::Function& f, size_t more = 0) const;
  tower::dynamic::Tensors with(const tower::dynamic::Tensors& primals, const tower::dynamic::Tensors& leaves) const;
  tower::dynamic::Tensors differentiable(const tower::dynamic::Tensors& outputs) const;

  tower::dynamic::Function f_;
  tower::dynamic::Tensors leaves_;
  std::vector<bool> mappable_, differentiable_;
};

}  // namespace docs
