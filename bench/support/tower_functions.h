// Tower's transforms as functions of one tensor, the form in which the peers are measured (libtorch_peers.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <tower/dynamic.h>

#include <functional>
#include <utility>

namespace tower_functions {

using Function = std::function<at::Tensor(const at::Tensor&)>;

inline tower::dynamic::Function lift(Function f) {
  return [f = std::move(f)](const tower::dynamic::Tensors& x) { return tower::dynamic::Tensors{f(x[0])}; };
}

inline Function lower(tower::dynamic::Function f) {
  return [f = std::move(f)](const at::Tensor& x) { return f({x})[0]; };
}

inline Function vmap(Function f) { return lower(tower::dynamic::vmap(lift(std::move(f)), {0}, {0})); }

inline Function grad(Function f) { return lower(tower::dynamic::grad(lift(std::move(f)), {0})); }

/// The derivative of `f` along `tangent`.
inline Function jvp(Function f, at::Tensor tangent) {
  return [f = lift(std::move(f)), tangent = std::move(tangent)](const at::Tensor& primal) {
    return tower::dynamic::jvp(f, {primal}, {tangent}).second[0];
  };
}

}  // namespace tower_functions
