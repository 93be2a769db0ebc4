// A larger network, written as any torch::nn::Module is. Its Hessian would be a matrix of 700 million numbers; products
// with it cost a few gradients each.
#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <tower/nn.h>
#include <tower/tower.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "softmax_regression.h"

namespace laplace_digits {

struct Perceptron : torch::nn::Module {
  torch::nn::Linear first{kPixels, 128}, second{128, 128}, third{128, digits::kClasses};

  Perceptron() {
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
    to(at::kDouble);
  }

  at::Tensor forward(const at::Tensor& images) { return third(at::tanh(second(at::tanh(first(images))))); }
};

using Parameters = std::map<std::string, at::Tensor>;

/// The mean cross entropy, as a function of the parameters; what the module itself holds plays no part.
struct PerceptronLoss {
  Perceptron& module;
  at::Tensor images;
  at::Tensor labels;

  at::Tensor operator()(const Parameters& parameters) const {
    const at::Tensor scores = tower::functional_call(module, parameters, tower::buffers_of(module), images);
    return at::cross_entropy_loss(scores, labels);
  }
};

/// a + scale · b, for each parameter.
inline Parameters step_along(const Parameters& a, double scale, const Parameters& b) {
  Parameters sum;
  for (const auto& [name, value] : a) sum.emplace(name, value + scale * b.at(name));
  return sum;
}

/// All parameters in one vector.
inline at::Tensor flatten(const Parameters& parameters) {
  std::vector<at::Tensor> parts;
  for (const auto& [name, value] : parameters) parts.push_back(value.reshape({-1}));
  return at::cat(parts);
}

/// The opposite: parameters shaped like `like`.
inline Parameters unflatten(const at::Tensor& vector, const Parameters& like) {
  Parameters parameters;
  int64_t begin = 0;
  for (const auto& [name, value] : like) {
    parameters.emplace(name, vector.narrow(0, begin, value.numel()).view(value.sizes()));
    begin += value.numel();
  }
  return parameters;
}

/// Gradient descent with momentum.
inline Parameters train(const PerceptronLoss& loss, Parameters parameters, int steps) {
  constexpr double rate = 0.3, momentum = 0.9;
  const auto gradient = tower::grad(loss);
  Parameters velocity = gradient(parameters);
  for (int step = 0; step < steps; ++step) {
    parameters = step_along(parameters, -rate, velocity);
    velocity = step_along(gradient(parameters), momentum, velocity);
  }
  return parameters;
}

}  // namespace laplace_digits
