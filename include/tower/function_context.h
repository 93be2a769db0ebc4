// What a user function's rules share with each other, and what they are told of the call (tower/function.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tower/dynamic.h"
#include "tower/vmap_info.h"

namespace tower {

namespace detail {
struct ContextAccess;
}

/// Filled by setup_context (or by a forward that takes it), read by backward and jvp.
class Context {
 public:
  /// Keeps `tensors` for backward: inputs, outputs, or others. jvp finds them too, unless save_for_forward is called.
  void save_for_backward(dynamic::Tensors tensors) { for_backward_ = std::move(tensors); }
  /// Keeps `tensors` for jvp.
  void save_for_forward(dynamic::Tensors tensors) {
    for_forward_ = std::move(tensors);
    has_for_forward_ = true;
  }
  /// In backward and jvp: what was saved for it.
  const dynamic::Tensors& saved_tensors() const { return for_backward_; }
  /// The same, by the name that functions written for LibTorch use.
  const dynamic::Tensors& get_saved_variables() const { return for_backward_; }

  /// Anything else to keep, by name. Tensors in it (or lists of them) are kept like saved ones.
  std::map<std::string, c10::IValue> saved_data;

  /// Declares the `inputs` that forward wrote to. They must be declared: `static constexpr std::array mutates{…}`.
  void mark_dirty(const dynamic::Tensors& inputs) { dirty_.insert(dirty_.end(), inputs.begin(), inputs.end()); }
  /// Declares `outputs` that have no derivative.
  void mark_non_differentiable(const dynamic::Tensors& outputs) {
    non_differentiable_.insert(non_differentiable_.end(), outputs.begin(), outputs.end());
  }
  /// Whether gradients and tangents that are zero arrive as tensors of zeros (`yes`, the default) or undefined.
  void set_materialize_grads(bool yes) { materialize_ = yes; }

  /// In backward: whether argument number `argument` needs a gradient. Elsewhere it may.
  bool needs_input_grad(std::size_t argument) const { return needs_.empty() || needs_.at(argument); }

 private:
  friend struct detail::ContextAccess;

  dynamic::Tensors for_backward_;
  dynamic::Tensors for_forward_;
  bool has_for_forward_ = false;
  bool materialize_ = true;
  dynamic::Tensors dirty_;
  dynamic::Tensors non_differentiable_;
  std::vector<bool> needs_;
  std::shared_ptr<const void> residuals_;  // static parts of a custom function's residuals
};

/// Where the batch dimensions of a vmap rule's arguments are.
class InDims {
 public:
  /// `by_argument` has an entry for each argument, with one for each tensor of it.
  explicit InDims(std::vector<dynamic::Dims> by_argument) : by_argument_(std::move(by_argument)) {}

  /// The batch dimension of argument number `argument`, a single tensor; empty: it has none. Throws ArgumentError for
  /// one of several tensors.
  std::optional<int64_t> operator[](std::size_t argument) const;
  /// One entry for each tensor of argument number `argument`.
  const dynamic::Dims& of(std::size_t argument) const { return by_argument_.at(argument); }

 private:
  std::vector<dynamic::Dims> by_argument_;
};

}  // namespace tower
