// Peak memory of the gradient of an eight-layer perceptron, Tower's against that of LibTorch's autograd: the tape
// should keep what the backward pass needs and nothing else, and free it as the pass goes.
//
//   memory
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <tower/dynamic.h>

#include <cmath>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/peak_memory.h"
#include "support/report.h"

namespace {

using tower::dynamic::Tensors;
using Activation = at::Tensor (*)(const at::Tensor&);

constexpr int kLayers = 8;
constexpr int64_t kWidth = 256;
constexpr int64_t kBatch = 1024;
constexpr double kBudget = 1.1;

/// Weight and bias of every layer.
Tensors make_parameters() {
  Tensors parameters;
  for (int layer = 0; layer < kLayers; ++layer) {
    parameters.push_back(at::randn({kWidth, kWidth}) / std::sqrt(static_cast<double>(kWidth)));
    parameters.push_back(at::randn({kWidth}));
  }
  return parameters;
}

tower::dynamic::Function make_loss(Activation activation) {
  const at::Tensor input = at::randn({kBatch, kWidth}), target = at::randn({kBatch, kWidth});
  return [=](const Tensors& parameters) -> Tensors {
    at::Tensor x = input;
    for (int layer = 0; layer < kLayers; ++layer)
      x = activation(at::linear(x, parameters[2 * layer], parameters[2 * layer + 1]));
    return {at::mse_loss(x, target)};
  };
}

Tensors autograd_gradient(const tower::dynamic::Function& loss, const Tensors& parameters) {
  Tensors leaves;
  for (const at::Tensor& parameter : parameters) leaves.push_back(parameter.detach().requires_grad_());
  return torch::autograd::grad(loss(leaves), leaves);
}

void compare(report::Table& table, const std::string& name, Activation activation) {
  const Tensors parameters = make_parameters();
  const auto loss = make_loss(activation);
  std::vector<int64_t> all(parameters.size());
  std::iota(all.begin(), all.end(), 0);
  const auto tower_gradient = tower::dynamic::grad(loss, all);

  Tensors tower, autograd;
  const auto run_tower = [&] { tower = tower_gradient(parameters); };
  const auto run_autograd = [&] { autograd = autograd_gradient(loss, parameters); };
  run_tower();  // what is allocated once and kept, by either engine, is not a gradient's cost
  run_autograd();
  for (size_t i = 0; i < parameters.size(); ++i)
    if (!at::allclose(tower[i], autograd[i], 1e-4, 1e-6))
      throw std::runtime_error(fmt::format("the engines disagree about the gradient of parameter {}", i));

  tower.clear();
  autograd.clear();
  const double tower_peak = static_cast<double>(peak_memory(run_tower));
  const double autograd_peak = static_cast<double>(peak_memory(run_autograd));
  const double ratio = tower_peak / autograd_peak;
  const auto mebibytes = [](double bytes) { return fmt::format("{:.2f}", bytes / (1 << 20)); };
  table.add({name, mebibytes(tower_peak), mebibytes(autograd_peak), fmt::format("{:.3f}", ratio),
             fmt::format("{:.1f}", kBudget), report::verdict(ratio, kBudget)});
}

}  // namespace

int main() try {
  report::Table table({"gradient of 8 layers with", "tower MiB", "autograd MiB", "ratio", "budget", ""});
  compare(table, "relu", [](const at::Tensor& x) { return at::relu(x); });
  compare(table, "tanh", [](const at::Tensor& x) { return at::tanh(x); });
  compare(table, "gelu", [](const at::Tensor& x) { return at::gelu(x); });
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "memory: {}\n", error.what());
  return EXIT_FAILURE;
}
