// How an operator's series grows, from what its record says:
//
//   termwise   its derivative rule looks at no argument that is followed, and at no result: it is affine in them, and
//              the rule takes each order's derivatives of the arguments to that order's of the result
//   product    linear in each of two arguments: Leibniz' rule
//   quotient   y b = a, solved for the highest derivative of y
//   factored   linear in its first argument in the same place: y = a · op(1, …), a product
//   by_rule    all others: y' = the derivative rule, evaluated on series (taylor/growing.h)
#pragma once

#include "core/operator.h"

namespace tower::taylor {

enum class Growth : uint8_t { termwise, product, quotient, factored, by_rule };

/// Of a call in which the arguments `tracked` are followed; `constant_outs`: results that have no derivative.
Growth growth_of(const Operator& op, Mask tracked, Mask constant_outs);

/// The two arguments in which a product is linear.
struct Factors {
  size_t first, second;
};
Factors factors_of(Mask tracked);

/// Whether every jvp rule that serves `tracked` is the operator itself on the tangents: of zero it gives zero.
bool is_linear(const Operator& op, Mask tracked);

}  // namespace tower::taylor
