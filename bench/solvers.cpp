// The derivative of an implicit function beside what it consists of, when written out: one Jacobian of the residual by
// unknowns and parameters, and one dense batched solve.
//
//   solvers
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <tower/tower.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <vector>

#include "material_newton/newton.h"
#include "support/report.h"

namespace {

using at::Tensor;

/// Medians of runs that take turns.
template <class F, class G>
std::pair<double, double> seconds(F&& f, G&& g) {
  std::vector<double> of_f, of_g;
  const auto timed = [](auto& run) {
    const auto start = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (int round = 0; round < 21; ++round) {
    of_f.push_back(timed(f));
    of_g.push_back(timed(g));
  }
  std::sort(of_f.begin(), of_f.end());
  std::sort(of_g.begin(), of_g.end());
  return {of_f[of_f.size() / 2], of_g[of_g.size() / 2]};
}

// Seven coupled equations in x with six parameters, of a point of the material that flows.
struct Points {
  material_newton::Material material{material_newton::Constants{}};
  material_newton::Step step;
  Tensor x;

  explicit Points(int64_t n) {
    const auto f64 = at::dtype(at::kDouble);
    at::manual_seed(1);
    step = {3e-3 * at::randn({n, 6}, f64), at::ones({n}, f64), at::zeros({n, 6}, f64), at::zeros({n}, f64)};
    x = material_newton::solve(material_newton::correct_with_tower(material),
                               material_newton::first_guess(material, step), step, 1e-8)
            .x;
  }

  auto residual_of(const material_newton::Step& one) const {
    return [this, one](const Tensor& at_x, const Tensor& strain) {
      return material.residual(at_x, {strain, one.duration, one.stress, one.plastic_strain});
    };
  }
  Tensor written_out() const {
    return tower::vmap([&](const Tensor& at_x, const material_newton::Step& one) {
      const auto [by_x, by_strain] = tower::jacfwd<0, 1>(residual_of(one))(at_x, one.strain_increment);
      return -at::linalg_solve(by_x, by_strain);
    })(x, step);
  }
  template <class Jacobian>
  Tensor implicit(Jacobian jacobian) const {
    return tower::vmap([&](const Tensor& at_x, const material_newton::Step& one) {
      const auto solve = tower::implicit_root(residual_of(one), [at_x](const Tensor&) { return at_x; });
      return jacobian(solve)(one.strain_increment);
    })(x, step);
  }
};

void check(const Tensor& actual, const Tensor& expected) {
  if (!at::allclose(actual, expected, 1e-6, 1e-6 * expected.abs().max().item<double>()))
    throw std::runtime_error("the derivatives disagree");
}

void implicit_root(report::Table& table) {
  const Points points(10'000);
  const auto forward = [](const auto& solve) { return tower::jacfwd(solve); };
  const auto reverse = [](const auto& solve) { return tower::jacrev(solve); };
  Tensor expected, found;
  const auto by_hand = [&] { expected = points.written_out(); };
  {
    const auto [time, written_out] = seconds([&] { found = points.implicit(forward); }, by_hand);
    check(found, expected);
    table.add({"Jacobian of an implicit root, 10,000 systems of 7, jacfwd", fmt::format("{:.1f} ms", 1e3 * time),
               fmt::format("{:.2f}", time / written_out), "1.5", report::verdict(time / written_out, 1.5)});
  }
  {
    const auto [time, written_out] = seconds([&] { found = points.implicit(reverse); }, by_hand);
    check(found, expected);
    table.add(
        {"the same, jacrev", fmt::format("{:.1f} ms", 1e3 * time), fmt::format("{:.2f}", time / written_out), "", ""});
  }
}

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
  implicit_root(table);
  iterations(table);
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "solvers: {}\n", error.what());
  return EXIT_FAILURE;
}
