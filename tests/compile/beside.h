// Results of kernels beside those of LibTorch's operators, where these are formulas of many operations: both are then
// off by some units in the last place, and by more where the function magnifies what its operands are rounded by, as
// next to a zero.
#pragma once

#include <ATen/core/Tensor.h>
#include <tower/dynamic.h>

#include <string>

namespace beside {

struct Tolerance {
  double units;      // in the last place of the result …
  int operands = 4;  // … and in that of each operand, which moves the result by as much as LibTorch says …
  double terms = 0;  // their size, where the formula adds up what is larger than the result: it counts as that
};

/// Empty if `found` is, within the tolerance, what `libtorch`, of one result, gives for `operands`: in their type or,
/// of float32, in float64. NaN and infinities have to be the same. Else a sentence about the first number that is not.
std::string difference(const tower::dynamic::Function& libtorch, const tower::dynamic::Tensors& operands,
                       const at::Tensor& found, Tolerance tolerance);

}  // namespace beside
