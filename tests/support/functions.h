// The functions and values that tests of the engine are written with.
#pragma once

#include <ATen/Functions.h>

#include "tower/dynamic.h"

namespace support {

/// A list function from a function of one tensor.
template <class F>
tower::dynamic::Function of_one(F f) {
  return [f](const tower::dynamic::Tensors& in) { return tower::dynamic::Tensors{f(in[0])}; };
}

/// A float64 tensor without dimensions.
inline at::Tensor number(double v) { return at::full({}, v, at::kDouble); }

/// 1, 2, 3, … in float64.
inline at::Tensor numbers(at::IntArrayRef sizes) {
  return at::arange(1, c10::multiply_integers(sizes) + 1, at::kDouble).view(sizes);
}

}  // namespace support
