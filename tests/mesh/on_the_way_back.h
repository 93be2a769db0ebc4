// What a test does in the middle of a backward pass.
#pragma once

#include <ATen/TensorOperators.h>

#include "tower/function.h"

namespace processes {

/// `x`; `f` is called where its derivative is computed.
template <class F>
at::Tensor on_the_way_back(const at::Tensor& x, F f) {
  const auto forward = [](const at::Tensor& t) { return std::pair(t * 1, t); };
  const auto backward = [f](const at::Tensor&, const at::Tensor& cotangent) {
    f();
    return cotangent;
  };
  return tower::custom_vjp([](const at::Tensor& t) { return t * 1; }, forward, backward)(x);
}

}  // namespace processes
