// What Taylor mode costs beside nested derivatives: Laplacians and a biharmonic beside the Hessian's trace, a high
// order along a direction beside evaluations of the function.
//
//   taylor [--only=PART OF A NAME]    of laplacian, biharmonic, pinn, order
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <tower/compile.h>
#include <tower/taylor.h>
#include <tower/tower.h>

#include <cmath>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/medians.h"
#include "support/peak_memory.h"
#include "support/report.h"

namespace {

using at::Tensor;

void check(const Tensor& actual, const Tensor& expected) {
  if (!at::allclose(actual, expected, 1e-3, 1e-4 * expected.abs().max().item<double>()))
    throw std::runtime_error("the derivatives disagree");
}
std::string milliseconds(double seconds) { return fmt::format("{:.2f} ms", 1e3 * seconds); }
std::string ratio(double a, double b) { return fmt::format("{:.2f}", a / b); }

struct Perceptron {
  std::vector<Tensor> weights, biases;

  Perceptron(std::vector<int64_t> widths, at::ScalarType dtype) {
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      const double scale = 1 / std::sqrt(static_cast<double>(widths[i]));
      weights.push_back(at::randn({widths[i + 1], widths[i]}, dtype) * scale);
      biases.push_back(at::randn({widths[i + 1]}, dtype));
    }
  }
  Tensor operator()(Tensor x) const {
    for (size_t i = 0; i < weights.size(); ++i) {
      x = at::linear(x, weights[i], biases[i]);
      if (i + 1 < weights.size()) x = x.tanh();
    }
    return x.squeeze(-1);
  }
};

template <class F>
Tensor trace_of_hessian(const F& f, const Tensor& x) {
  return tower::hessian(f)(x).diagonal().sum();
}

// torch-jet's perceptron.
void laplacians(report::Table& table) {
  const Perceptron f({50, 768, 768, 512, 512, 1}, at::kFloat);
  for (const int64_t batch : {2, 16, 64}) {
    const Tensor xs = at::randn({batch, 50});
    Tensor found, expected;
    const auto mine = [&] { found = tower::vmap([&](const Tensor& x) { return tower::laplacian(f)(x).second; })(xs); };
    const auto nested = [&] { expected = tower::vmap([&](const Tensor& x) { return trace_of_hessian(f, x); })(xs); };
    mine(), nested();
    check(found, expected);
    const auto [time, beside] = seconds(mine, nested);
    table.add({fmt::format("Laplacian of 50-768-768-512-512-1, {} points, beside the Hessian's trace", batch),
               milliseconds(time), ratio(time, beside), "0.55", report::verdict(time / beside, 0.55)});
    const auto memory = static_cast<double>(peak_memory(mine)), theirs = static_cast<double>(peak_memory(nested));
    table.add({"  its memory", fmt::format("{:.1f} MB", memory / 1e6), ratio(memory, theirs), "0.6",
               report::verdict(memory / theirs, 0.6)});
  }
}

void biharmonics(report::Table& table) {
  const Perceptron f({5, 256, 256, 1}, at::kDouble);
  const Tensor xs = at::randn({8, 5}, at::kDouble);
  Tensor found, expected;
  const auto mine = [&] { found = tower::vmap([&](const Tensor& x) { return tower::biharmonic(f)(x); })(xs); };
  const auto nested = [&] {
    const auto once = [&](const Tensor& x) { return trace_of_hessian(f, x); };
    expected = tower::vmap([&](const Tensor& x) { return trace_of_hessian(once, x); })(xs);
  };
  mine(), nested();
  check(found, expected);
  const auto [time, beside] = seconds(mine, nested);
  table.add({"biharmonic of 5-256-256-1, 8 points, beside Hessians' traces nested", milliseconds(time),
             ratio(time, beside), "0.6", report::verdict(time / beside, 0.6)});
}

// The gradient of a squared Laplacian's mean over points.
void pinn(report::Table& table) {
  const Perceptron start({2, 64, 64, 1}, at::kFloat);
  const Tensor xs = at::rand({10'000, 2});
  const auto loss = [](auto second) {
    return [second](const std::vector<Tensor>& weights, const std::vector<Tensor>& biases, const Tensor& points) {
      Perceptron f({}, at::kFloat);
      f.weights = weights, f.biases = biases;
      return tower::vmap([&](const Tensor& x) { return second(f, x); })(points).square().mean();
    };
  };
  const auto mine = tower::compile(
      tower::grad<0, 1>(loss([](const Perceptron& f, const Tensor& x) { return tower::laplacian(f)(x).second; })));
  const auto nested = tower::compile(
      tower::grad<0, 1>(loss([](const Perceptron& f, const Tensor& x) { return trace_of_hessian(f, x); })));
  const auto call = [&](const auto& f) { return std::get<0>(f(start.weights, start.biases, xs))[1]; };
  for (int k = 0; k < 2; ++k) check(call(mine), call(nested));
  const auto [time, beside] = seconds([&] { call(mine); }, [&] { call(nested); });
  table.add({"gradient of a squared Laplacian, 2-64-64-1, 10,000 points, compiled, beside nested", milliseconds(time),
             ratio(time, beside), "0.6", report::verdict(time / beside, 0.6)});
}

Tensor chain(Tensor x) {
  for (int k = 0; k < 10; ++k) x = (x.sin() * 0.5).exp().tanh();
  return x;
}

void orders(report::Table& table) {
  const Tensor x = at::rand({10'000}, at::kDouble);
  const auto run = [&](const char* what, const auto& evaluation, int order, const auto& along) {
    evaluation(), along();
    const auto [of_function, time] = seconds(evaluation, along);
    const double budget = 4 * order * order / 2.0;
    table.add({fmt::format("order {} of 30 elementary functions on 10,000 numbers, {}, in evaluations", order, what),
               milliseconds(time), ratio(time, of_function), fmt::format("{:.0f}", budget),
               report::verdict(time / of_function, budget)});
  };
  for (const int order : {3, 10}) {
    const auto along = [&](const Tensor& a) { return tower::derivatives_along(chain, a, x, order).back(); };
    run(
        "eager", [&] { chain(x); }, order, [&] { along(x); });
    if (order < 10) continue;
    const auto compiled = tower::compile(chain);
    const auto compiled_along = tower::compile(along);
    run(
        "compiled", [&] { compiled(x); }, order, [&] { compiled_along(x); });
  }
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  report::Table table({"", "", "relative", "budget", ""});
  const std::pair<const char*, void (*)(report::Table&)> all[] = {
      {"laplacian", laplacians}, {"biharmonic", biharmonics}, {"pinn", pinn}, {"order", orders}};
  const std::string option = "--only=", given = argc > 1 ? argv[1] : option;
  if (given.rfind(option, 0) != 0) throw std::invalid_argument("taylor [--only=PART OF A NAME]");
  for (const auto& [name, run] : all) {
    if (std::string(name).find(given.substr(option.size())) == std::string::npos) continue;
    at::manual_seed(1);
    run(table);
  }
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "taylor: {}\n", error.what());
  return EXIT_FAILURE;
}
