// An iterative solver beside one that is written in place for its system. Derivatives: bench/sparse.cpp.
//
//   solvers
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <tower/tower.h>

#include <cstdlib>
#include <exception>

#include "support/medians.h"
#include "support/report.h"

namespace {

using at::Tensor;

void iterations(report::Table& table) {
  const int64_t n = 100'000;
  const auto apply = [n](const Tensor& v) {
    const Tensor padded = at::constant_pad_nd(v, {1, 1});
    return 2.1 * v - padded.narrow(0, 0, n) - padded.narrow(0, 2, n);
  };
  const Tensor b = at::linspace(0, 1, n, at::kDouble);
  const auto x = tower::cg(apply, b, {.tolerance = 1e-8});
  const auto steps = x.steps.item<int64_t>();
  const auto by_hand = [&] {
    Tensor u = at::zeros_like(b), r = b.clone(), p = b.clone();
    double rho = at::dot(r, r).item<double>();
    for (int64_t k = 0; k < steps; ++k) {
      const Tensor q = apply(p);
      const double alpha = rho / at::dot(p, q).item<double>();
      u.add_(p, alpha);
      r.sub_(q, alpha);
      const double next = at::dot(r, r).item<double>();
      p.mul_(next / rho).add_(r);
      rho = next;
    }
  };
  const auto [time, written_out] = seconds([&] { tower::cg(apply, b, {.tolerance = 1e-8}); }, by_hand);
  table.add({fmt::format("cg, 100,000 unknowns, {} steps, beside one written in place", steps),
             fmt::format("{:.1f} ms", 1e3 * time), fmt::format("{:.2f}", time / written_out), "", ""});
}

}  // namespace

int main() try {
  at::set_num_threads(1);
  report::Table table({"", "time", "relative", "budget", ""});
  iterations(table);
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "solvers: {}\n", error.what());
  return EXIT_FAILURE;
}
