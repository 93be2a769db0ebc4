// Ensembles: many small systems of differential equations, and many small fits, compiled under vmap, on two threads.
//
//   ensembles [--only=a part of a row's name]
//
// Lorenz's equations are those of GPUODEBenchmarks (utkarsh530/GPUODEBenchmarks): rho from 0 to 21, from (1, 0, 0) to
// t = 1, Tsit5 with rtol and atol of 1e-8 and a first step of 1e-3.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <tower/least_squares.h>
#include <tower/odeint.h>
#include <tower/tower.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>

#include "support/race.h"
#include "support/report.h"

namespace {

using at::Tensor;
using tower::Ode;
using tower::OdeOptions;

Tensor vec(std::initializer_list<double> values) { return at::tensor(std::vector<double>(values), at::kDouble); }

// p: σ, ρ, β.
Tensor lorenz(const Tensor& p, const OdeOptions& options) {
  const auto slope = [p](const Tensor&, const Tensor& y) {
    return at::stack({p[0] * (y[1] - y[0]), p[1] * y[0] - y[1] - y[0] * y[2], y[0] * y[1] - p[2] * y[2]});
  };
  return tower::odeint(slope, vec({1, 0, 0}), vec({0, 1}), options).ys.select(0, 1);
}

// k: the three rates.
Tensor robertson(const Tensor& k) {
  const auto slope = [k](const Tensor&, const Tensor& y) {
    const Tensor slow = k[0] * y[0], middle = k[1] * y[1] * y[2], fast = k[2] * y[1] * y[1];
    return at::stack({middle - slow, slow - middle - fast, fast});
  };
  return tower::odeint(slope, vec({1, 0, 0}), vec({0, 1e4}), {.method = Ode::rodas5p, .rtol = 1e-6, .atol = 1e-10})
      .ys.select(0, 1);
}

Tensor van_der_pol(const Tensor& mu) {
  const auto slope = [mu](const Tensor&, const Tensor& y) {
    return at::stack({y[1], mu * (1 - y[0] * y[0]) * y[1] - y[0]});
  };
  return tower::odeint(slope, vec({2, 0}), vec({0, 20}), {.method = Ode::rodas5p, .rtol = 1e-6, .atol = 1e-8})
      .ys.select(0, 1);
}

// Four parameters of a curve with 50 points.
Tensor fit(const Tensor& seen) {
  const auto residuals = [seen](const Tensor& x) {
    const Tensor t = at::linspace(0, 1, 50, at::kDouble);
    return x[0] * (-x[1] * t).exp() * (x[2] * t).cos() + x[3] - seen;
  };
  return tower::least_squares(residuals, vec({1, 1, 5, 0})).x;
}

struct Row {
  std::string name;
  std::function<Tensor(const Tensor&)> run;
  Tensor argument;
  std::string budget;
};

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(2);
  const std::string wanted = only(argc, argv);
  const OdeOptions tight{.rtol = 1e-8, .atol = 1e-8, .first_step = 1e-3};
  const auto one = [tight](const Tensor& p) { return lorenz(p, tight); };
  const auto sum = [one](const Tensor& p) { return one(p).sum(); };
  const Tensor rho = at::linspace(0, 21, 8192, at::kDouble);
  const Tensor p = at::stack({at::full_like(rho, 10), rho, at::full_like(rho, 8. / 3)}, 1);
  const Tensor rates = vec({0.04, 1e4, 3e7}) * at::linspace(0.5, 2, 4096, at::kDouble).unsqueeze(1);
  const Tensor t = at::linspace(0, 1, 50, at::kDouble), k = at::arange(10000, at::kDouble).unsqueeze(1);
  const Tensor seen = 2 * (-(0.5 + (0.1 * k).cos().square()) * t).exp() * (6 * t).cos() + 0.01 * (97 * k * t).sin();
  const tower::CompileOptions fast{.math = tower::Math::fast};
  const std::vector<Row> rows{
      {"Lorenz, 8,192 sets", tower::compile(tower::vmap(one), fast), p, "5 ms"},
      {"Lorenz, gradient by all parameters", tower::compile(tower::vmap(tower::grad(sum)), fast), p, "6 × the above"},
      {"Robertson, 4,096 sets, to 1e4", tower::compile(tower::vmap(robertson), fast), rates, ""},
      {"Van der Pol, 4,096 sets, μ 1 to 100", tower::compile(tower::vmap(van_der_pol), fast),
       at::logspace(0, 2, 4096, 10, at::kDouble), ""},
      {"10,000 fits of 4 numbers to 50 points", tower::compile(tower::vmap(fit), fast), seen, ""}};
  report::Table table({"", "time", "until it is fast", "budget"});
  for (const Row& row : rows) {
    if (row.name.find(wanted) == std::string::npos) continue;
    const auto seconds = [&] {
      const auto start = std::chrono::steady_clock::now();
      row.run(row.argument);
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    const double first = seconds() + seconds() + seconds();  // traced, compiled, and a call's own kernels compiled
    seconds();
    double least = seconds();
    for (double total = least; total < 2;) {
      const double now = seconds();
      least = std::min(least, now);
      total += now;
    }
    table.add({row.name, fmt::format("{:.1f} ms", 1e3 * least), fmt::format("{:.2f} s", first), row.budget});
  }
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "ensembles: {}\n", error.what());
  return EXIT_FAILURE;
}
