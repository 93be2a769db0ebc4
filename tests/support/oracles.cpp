#include "support/oracles.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

namespace support {

Tensors directional_derivative(const Function& f, const Tensors& x, const Tensors& direction) {
  // The error of the formula is h⁴/30 of the fifth derivative, that of rounding about 1e-16/h.
  constexpr double h = 5e-4;
  const Tensors near_above = f(moved(x, direction, h));
  const Tensors near_below = f(moved(x, direction, -h));
  const Tensors far_above = f(moved(x, direction, 2 * h));
  const Tensors far_below = f(moved(x, direction, -2 * h));
  Tensors result;
  for (size_t i = 0; i < near_above.size(); ++i) {
    const at::Tensor near_difference = near_above[i].detach().sub(near_below[i].detach());
    const at::Tensor far_difference = far_above[i].detach().sub(far_below[i].detach());
    result.push_back(near_difference.mul(8).sub(far_difference).div(12 * h));
  }
  return result;
}

Tensors autograd_vjp(const Function& f, const Tensors& x, const Tensors& cotangents) {
  Tensors inputs;
  for (const auto& tensor : x) inputs.push_back(tensor.detach().requires_grad_(true));
  const Tensors outputs = f(inputs);
  Tensors roots, seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    seeds.push_back(cotangents[i]);
  }
  Tensors gradients(x.size());
  if (!roots.empty()) {
    gradients = torch::autograd::grad(roots, inputs, seeds, std::nullopt, false, /*allow_unused=*/true);
  }
  for (size_t i = 0; i < x.size(); ++i) {
    if (!gradients[i].defined() || gradients[i]._is_zerotensor()) gradients[i] = at::zeros_like(x[i]);
  }
  return gradients;
}

}  // namespace support
