// The classifier of this example, a module like any other: nothing in it knows of examples, transforms or privacy.
#pragma once

#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <tower/nn.h>

namespace private_digits {

struct DigitNet : torch::nn::Module {
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 16, 3).padding(1)};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(16, 32, 3).padding(1)};
  torch::nn::Linear linear{32 * 2 * 2, 10};

  DigitNet() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("linear", linear);
  }

  /// Logits [n, 10] of images [n, 1, 8, 8].
  at::Tensor forward(const at::Tensor& images) {
    // Centred with constants, not with statistics of the images: those are private.
    at::Tensor x = (images - 0.3) * 4;
    // Bounded activations keep gradients small, so that little is lost to clipping.
    x = at::avg_pool2d(conv1(x).tanh(), 2);
    x = at::avg_pool2d(conv2(x).tanh(), 2);
    return linear(x.flatten(1));
  }
};

using Parameters = tower::NamedTensors;

/// The loss on one image [1, 8, 8] and its label, as a function of the network's parameters.
inline auto loss_of(DigitNet& network) {
  return [&network](const Parameters& parameters, const at::Tensor& image, const at::Tensor& label) {
    const at::Tensor logits = tower::functional_call(network, parameters, {}, image.unsqueeze(0));
    return at::cross_entropy_loss(logits, label.unsqueeze(0));
  };
}

}  // namespace private_digits
