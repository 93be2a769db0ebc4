// Comparisons, tests, logic and bits: functions without a derivative, element by element.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <limits>

#include "numbers/bits.h"
#include "records/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

using compiler::E;
using compiler::Raw;
using compiler::Type;

// One element at a time, and nothing to differentiate.
template <class... Ops>
void discrete() {
  (op<Ops>().pointwise().no_derivative(), ...);
}
template <class... Ops, class Element>
void discrete(Element element) {
  (op<Ops>().pointwise().no_derivative().element(element), ...);
}

E truth(E x) { return x.to(Type::b1); }
E infinity(E x) { return x.like(std::numeric_limits<double>::infinity()); }
// What no integer is.
E infinite(Raw x) { return x.floating() ? abs(x) == infinity(x) : x != x; }

// By less than nothing, or by all bits or more, to the left all bits are gone, to the right there is the sign.
std::optional<E> shifted_left(E x, E count) {
  if (x.floating() || x.type() == Type::b1) return std::nullopt;
  const E beyond = (count < 0) | (count >= (x.type() == Type::i64 ? 64 : 32));
  return where(beyond, 0, shift_left(x, where(beyond, 0, count)));
}
std::optional<E> shifted_right(E x, E count) {
  if (x.floating() || x.type() == Type::b1) return std::nullopt;
  const int last = x.type() == Type::i64 ? 63 : 31;
  return shift_right(x, where((count < 0) | (count > last), last, count));
}

}  // namespace

void comparison() {
  using namespace at::_ops;
  discrete<eq_Tensor, eq_Scalar>([](E a, E b) { return a == b; });
  discrete<ne_Tensor, ne_Scalar>([](E a, E b) { return a != b; });
  discrete<lt_Tensor, lt_Scalar>([](E a, E b) { return a < b; });
  discrete<le_Tensor, le_Scalar>([](E a, E b) { return a <= b; });
  discrete<gt_Tensor, gt_Scalar>([](E a, E b) { return a > b; });
  discrete<ge_Tensor, ge_Scalar>([](E a, E b) { return a >= b; });
  discrete<at::_ops::isnan>([](Raw x) { return x != x; });
  discrete<at::_ops::isinf>(infinite);
  discrete<isposinf>([](Raw x) { return x.floating() ? x == infinity(x) : x != x; });
  discrete<isneginf>([](Raw x) { return x.floating() ? x == -infinity(x) : x != x; });
  discrete<at::_ops::signbit>([](Raw x) { return x.floating() ? bits(x) < 0 : x < 0; });
  discrete<logical_and>([](Raw a, Raw b) { return truth(a) & truth(b); });
  discrete<logical_or>([](Raw a, Raw b) { return truth(a) | truth(b); });
  discrete<logical_xor>([](Raw a, Raw b) { return truth(a) ^ truth(b); });
  discrete<logical_not>([](Raw x) { return !truth(x); });
  discrete<bitwise_not>([](E x) { return x ^ (x.type() == Type::b1 ? 1 : -1); });
  discrete<bitwise_and_Tensor, bitwise_and_Scalar, bitwise_and_Scalar_Tensor>([](E a, E b) { return a & b; });
  discrete<bitwise_or_Tensor, bitwise_or_Scalar, bitwise_or_Scalar_Tensor>([](E a, E b) { return a | b; });
  discrete<bitwise_xor_Tensor, bitwise_xor_Scalar, bitwise_xor_Scalar_Tensor>([](E a, E b) { return a ^ b; });
  discrete<bitwise_left_shift_Tensor, bitwise_left_shift_Tensor_Scalar, bitwise_left_shift_Scalar_Tensor,
           __lshift___Tensor, __lshift___Scalar>(shifted_left);
  discrete<bitwise_right_shift_Tensor, bitwise_right_shift_Tensor_Scalar, bitwise_right_shift_Scalar_Tensor,
           __rshift___Tensor, __rshift___Scalar>(shifted_right);
}

}  // namespace tower::rules
