// What levels of collapsed Taylor mode have in common: every value carries derivatives along directions, stacked in
// front ("slopes", of one or several orders), and one sum of the highest derivatives, which enters each operator
// linearly. What is affine takes each of them as the operator's derivative rule takes tangents; the other rules are the
// level's own (taylor/collapsed.h, taylor/squared_laplacian.h).
#pragma once

#include <functional>
#include <vector>

#include "core/level.h"
#include "core/wrapper.h"
#include "interpreters/vmap.h"
#include "taylor/growing.h"
#include "taylor/growth.h"
#include "taylor/series.h"

namespace tower::taylor {

using Rows = std::vector<Tensor>;  // of the results, or of the tensors among the arguments; undefined: zero

/// What the results of one level down come to.
struct Carried {
  std::vector<Rows> slopes;  // by order
  Rows sums;
};

/// A call, one level down, with what its arguments carry.
struct CollapsedCall {
  const Operator& op;
  Stack args;                // values
  std::vector<Rows> slopes;  // by order, each with its directions in front
  Rows sums;
  Mask tracked;
  const char* label;
  Stack outs = {};  // values
};

class CollapsedLevel : public Level {
 public:
  /// `orders`: how many slopes a value has. `records`: whether LibTorch's autograd follows what the level has of its
  /// own.
  CollapsedLevel(const char* label, size_t orders, bool records)
      : Level(Kind::jvp, label), orders_(orders), records_(records) {}

  void process(const Operator& op, Stack& stack) final;
  void took(Wrapper& w) final;

 private:
  /// Of a call that is not affine.
  virtual Carried carry(const CollapsedCall& call, Growth growth) const = 0;

  const size_t orders_;
  const bool records_;
};

// ---- for rules ----

Tensor plus(const Tensor& a, const Tensor& b);
bool any_defined(const Rows& rows);

/// Runs `f` for each of `count` directions and takes its results out, the directions in front.
Rows for_each_direction(const CollapsedCall& call, int64_t count, const std::function<Rows(Vmap&)>& f);
/// One direction's.
Tensor of_one(Vmap& level, const Tensor& slopes);
Rows of_one(Vmap& level, const Rows& slopes);

/// The operator on other values of two arguments in which it is linear; undefined where one of them is zero.
Tensor on_factors(const CollapsedCall& call, const Factors& factors, const Tensor& a, const Tensor& b);
/// The number of the tensor that is this argument.
size_t number_of(const CollapsedCall& call, size_t arg);

/// Derivatives of the results, of arguments with the series that `followed` gives them; it returns the tensor itself
/// where there is none.
std::vector<Derivatives> by_series(const CollapsedCall& call, size_t order,
                                   const std::function<Tensor(Growing&, const Tensor&, size_t leaf)>& followed);

/// Whether one real argument is followed, and the elements of the result depend each on that in its place.
bool is_elementwise(const CollapsedCall& call);
/// Of such a call: the number of that argument, and the first derivatives of the function at its elements.
struct ByElement {
  size_t number;
  Derivatives slopes;
};
ByElement by_element(const CollapsedCall& call, size_t order);

}  // namespace tower::taylor
