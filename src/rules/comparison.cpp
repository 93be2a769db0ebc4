// Comparisons, tests, logic and bits: functions without a derivative, element by element.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

// One element at a time, and nothing to differentiate.
template <class... Ops>
void discrete() {
  (op<Ops>().pointwise().no_derivative(), ...);
}

}  // namespace

void comparison() {
  using namespace at::_ops;
  discrete<eq_Tensor, eq_Scalar, ne_Tensor, ne_Scalar, lt_Tensor, lt_Scalar, le_Tensor, le_Scalar, gt_Tensor, gt_Scalar,
           ge_Tensor, ge_Scalar>();
  discrete<at::_ops::isnan, at::_ops::isinf, isposinf, isneginf, at::_ops::signbit>();
  discrete<logical_and, logical_or, logical_xor, logical_not>();
  discrete<bitwise_not, bitwise_and_Tensor, bitwise_and_Scalar, bitwise_and_Scalar_Tensor, bitwise_or_Tensor,
           bitwise_or_Scalar, bitwise_or_Scalar_Tensor, bitwise_xor_Tensor, bitwise_xor_Scalar,
           bitwise_xor_Scalar_Tensor>();
  discrete<bitwise_left_shift_Tensor, bitwise_left_shift_Tensor_Scalar, bitwise_left_shift_Scalar_Tensor,
           bitwise_right_shift_Tensor, bitwise_right_shift_Tensor_Scalar, bitwise_right_shift_Scalar_Tensor,
           __lshift___Tensor, __lshift___Scalar, __rshift___Tensor, __rshift___Scalar>();
}

}  // namespace tower::rules
