// Backward operators of which LibTorch has a kernel and no derivative: their decomposition is the pullback of the
// forward formula.
#pragma once

#include <functional>
#include <vector>

#include "tower/dynamic.h"

namespace tower::rules {

/// The gradients of `f`, a function with one output, at `primals` for the cotangent `ct`.
inline std::vector<at::Tensor> pull_back(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& f,
                                         const std::vector<at::Tensor>& primals, const at::Tensor& ct) {
  return dynamic::vjp([&](const dynamic::Tensors& x) { return dynamic::Tensors{f(x)}; }, primals).second({ct});
}

}  // namespace tower::rules
