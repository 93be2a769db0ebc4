// What a function with rules of its own costs: a chain of 100 calls of one on four floats, and its gradient. Under one
// grad level a tower::Function may cost 1.5 times what LibTorch's autograd Function costs outside transforms, body by
// body the same.
//
//   custom_function [Google Benchmark's flags]
//
// The row of operators is the same chain without a function, where autograd knows the derivative itself.
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <tower/dynamic.h>
#include <tower/function.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "support/libtorch_peers.h"
#include "support/race.h"
#include "support/report.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using td::Function;
using td::Tensors;

constexpr int kCalls = 100;
constexpr double kBudget = 1.5;

struct LibTorchSine : torch::autograd::Function<LibTorchSine> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    return at::sin(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx,
                                               const torch::autograd::tensor_list& grads) {
    return {at::mul(grads[0], at::cos(ctx->get_saved_variables()[0]))};
  }
};

struct Sine : tower::Function<Sine> {
  static Tensor forward(const Tensor& x) { return at::sin(x); }
  static void setup_context(tower::Context& ctx, const std::tuple<Tensor>& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
  }
  static Tensor backward(tower::Context& ctx, const Tensor& grad) {
    return at::mul(grad, at::cos(ctx.saved_tensors()[0]));
  }
};

// LibTorch's text with another base class.
struct PortedSine : tower::Function<PortedSine> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    return at::sin(x);
  }
  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    return {at::mul(grads[0], at::cos(ctx->get_saved_variables()[0]))};
  }
};

template <class F>
Function loss_of(F f) {
  return [f](const Tensors& in) {
    Tensor y = in[0];
    for (int i = 0; i < kCalls; ++i) y = f(y);
    return Tensors{at::sum(y)};
  };
}

Tensor sine(const Tensor& x) { return at::sin(x); }

}  // namespace

int main(int argc, char** argv) try {
  const auto libtorch = [](const Tensor& x) { return LibTorchSine::apply(x); };
  const auto tower_function = [](const Tensor& x) { return Sine::apply(x); };
  const auto ported = [](const Tensor& x) { return PortedSine::apply(x); };
  const auto custom = tower::custom_vjp(
      sine, [](const Tensor& x) { return std::pair(at::sin(x), x); },
      [](const Tensor& x, const Tensor& grad) { return at::mul(grad, at::cos(x)); });

  struct Row {
    std::string name;
    Function gradient;
    bool has_budget;
  };
  const std::vector<Row> rows = {
      {"torch::autograd::Function, outside", peer::autograd::grad(loss_of(libtorch)), false},
      {"tower::Function, grad", td::grad(loss_of(tower_function), {0}), true},
      {"tower::Function in LibTorch's shape, grad", td::grad(loss_of(ported), {0}), true},
      {"tower::custom_vjp, grad", td::grad(loss_of(custom), {0}), true},
      {"tower::Function, outside", peer::autograd::grad(loss_of(tower_function)), false},
      {"operators, autograd", peer::autograd::grad(loss_of(sine)), false},
      {"operators, grad", td::grad(loss_of(sine), {0}), false},
  };
  const Tensor x = at::rand({4});
  const Tensor expected = rows[0].gradient({x})[0];
  for (const Row& row : rows)
    if (!at::allclose(row.gradient({x})[0], expected, 1e-4, 1e-6))
      throw std::runtime_error(fmt::format("{} gives another gradient", row.name));

  Race race(argc, argv);
  for (const Row& row : rows) race.add(row.name, [&row, &x] { row.gradient({x}); });
  const auto ns = race.run();
  const double peer = ns.at(rows[0].name);
  report::Table table({"gradient of a chain of 100", "ns/call", "× LibTorch's", "budget", ""});
  for (const Row& row : rows) {
    const double ratio = ns.at(row.name) / peer;
    table.add({row.name, fmt::format("{:.0f}", ns.at(row.name) / kCalls), fmt::format("{:.2f}", ratio),
               row.has_budget ? fmt::format("{:.2f}", kBudget) : "",
               row.has_budget ? report::verdict(ratio, kBudget) : ""});
  }
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "custom_function: {}\n", error.what());
  return EXIT_FAILURE;
}
