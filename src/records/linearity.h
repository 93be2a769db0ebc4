// In which arguments an operator is linear, where its derivative rules do not show it: Taylor mode's recurrences ask
// (taylor/growth.h). It follows the record of which it is a fact.
//
//   op<at::_ops::mul_Tensor>().pointwise()…;
//   linearity<at::_ops::mul_Tensor>(Linearity::product);
#pragma once

#include "core/operator.h"
#include "records/families.h"

namespace tower::rules {

enum class Linearity : uint8_t {
  unsaid,
  affine_in_each,  // in each tensor, the others held, though the one rule for all looks at them
  product,         // in each of the first two arguments, which may broadcast, and zero where one of them is
  bilinear,        // in each of the first two arguments, and zero where one of them is
  quotient,        // the first argument divided by the second
  first_as_factor  // element by element the first argument times a function of the others
};

/// What was stated of an operator.
Linearity linearity_of(const Operator& op);
void set_linearity(const Operator& op, Linearity linearity);

template <class Op>
void linearity(Linearity is) {
  set_linearity(record_of(Op::name, Op::overload_name), is);
}

/// The derivative of the result `y` along `t`, the tangent of the first argument, by y itself: where the jvp rule calls
/// the operator with other attributes, so that each order would have a series of its own. Undefined where that does not
/// hold for these arguments.
using SlopeByResult = Tensor (*)(const Tensor& t, const Stack& args, const Tensor& y);

const SlopeByResult* slope_by_result(const Operator& op);
void set_slope_by_result(const Operator& op, SlopeByResult rule);

template <class Op>
void slope_by_result(SlopeByResult rule) {
  set_slope_by_result(record_of(Op::name, Op::overload_name), rule);
}

}  // namespace tower::rules
