// One Newton correction of examples/material_newton at 10,000 points: residuals, Jacobians, solve. Tower's
// vmap(jacfwd(residual of one point)) against the same algorithm batched by hand, in ATen: the residual carried along
// with seven tangent columns at each point. The Jacobian derived on paper, for which one must know the answer, stands
// beside as the end of the road; all three solve alike.
//
//   material_newton [Google Benchmark's flags]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>

#include "material_newton/hand_derived.h"
#include "material_newton/histories.h"
#include "material_newton/material.h"
#include "material_newton/newton.h"
#include "support/race.h"
#include "support/report.h"

namespace {

using namespace material_newton;

constexpr double kBudget = 1.25;
constexpr int64_t kPoints = 10'000;

/// Forward mode by hand: next to each value v of the residual {n, ...} its derivatives d_v {n, 7, ...} along the seven
/// unknowns, by the rule of each operation in turn. Nothing about the material is worked out ahead.
Linearised forward_mode_by_hand(const Material& m, const at::Tensor& x, const Step& step) {
  const Constants& c = m.c;
  const double three_g = 3 * m.shear();
  const at::Tensor seeds = at::eye(7, x.options());
  const at::Tensor stress = x.narrow(1, 0, 6), d_stress = seeds.narrow(1, 0, 6);
  const at::Tensor drop = x.select(1, 6), d_drop = seeds.select(1, 6);

  const at::Tensor trial = trial_by_hand(m, step);
  const at::Tensor trial_deviator = at::mm(trial, m.deviator);
  const at::Tensor yields =
      1.5 * dot_rows(trial_deviator, trial_deviator) > at::square(m.hardened_yield_stress(step.plastic_strain));

  const at::Tensor s = at::mm(stress, m.deviator), d_s = at::mm(d_stress, m.deviator);
  const at::Tensor squared = at::where(yields, 1.5 * dot_rows(s, s), c.yield_stress * c.yield_stress);
  const at::Tensor d_squared = at::where(yields.unsqueeze(1), 3 * at::mm(s, d_s.t()), 0.0);
  const at::Tensor von_mises = squared.sqrt();
  const at::Tensor d_von_mises = d_squared / (2 * von_mises).unsqueeze(1);

  const at::Tensor ratio = drop / von_mises;
  const at::Tensor d_ratio = (d_drop - ratio.unsqueeze(1) * d_von_mises) / von_mises.unsqueeze(1);
  const at::Tensor stress_residual = stress - trial + ratio.unsqueeze(1) * s;
  const at::Tensor d_stress_residual = d_stress + d_ratio.unsqueeze(2) * s.unsqueeze(1) + ratio.view({-1, 1, 1}) * d_s;

  const at::Tensor increment = drop / three_g;
  const at::Tensor p = step.plastic_strain + increment;
  const at::Tensor scaled_rate = increment / step.duration / c.reference_rate;
  const at::Tensor slope = c.hardening + c.saturation * c.saturation_rate * at::exp(-c.saturation_rate * p) +
                           c.drag / (c.reference_rate * step.duration) * (scaled_rate.square() + 1).rsqrt();
  const at::Tensor flow_residual = m.flow_stress(p, increment / step.duration) - von_mises;
  const at::Tensor d_flow_residual = slope.unsqueeze(1) * (d_drop / three_g) - d_von_mises;

  const at::Tensor last = at::where(yields, flow_residual, drop);
  const at::Tensor d_last = at::where(yields.unsqueeze(1), d_flow_residual, d_drop);
  return {at::cat({stress_residual, last.unsqueeze(1)}, 1),
          at::cat({d_stress_residual, d_last.unsqueeze(2)}, 2).transpose(1, 2)};
}

/// Halfway through Newton on a plastic step, where neither residual nor flow is zero; a few points are elastic.
std::pair<at::Tensor, Step> problem(const Material& m) {
  const Cycles cycles = Cycles::random(kPoints, 1);
  const at::TensorOptions f64 = at::dtype(at::kDouble);
  const Step step{cycles.strain(0.1), cycles.period / 10, at::zeros({kPoints, 6}, f64), at::zeros({kPoints}, f64)};
  at::Tensor x = first_guess_by_hand(m, step);
  for (int i = 0; i < 2; ++i) x = correct_by_hand(m)(x, step).first;
  return {x, step};
}

void demand_equal(const std::string& what, const at::Tensor& a, const at::Tensor& b) {
  const double difference = (a - b).abs().max().item<double>() / b.abs().max().item<double>();
  if (!(difference < 1e-10)) throw std::runtime_error(fmt::format("{}: differ by {:.1e}", what, difference));
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  Race race(argc, argv);
  const Material material(Constants{});
  const auto [x, step] = problem(material);

  const auto tower_linearise = tower::vmap([&](const at::Tensor& at_x, const Step& one) {
    const auto residual = [&](const at::Tensor& unknowns) {
      const at::Tensor r = material.residual(unknowns, one);
      return std::pair(r, r);
    };
    return tower::jacfwd(residual, tower::has_aux)(at_x);
  });
  const Correction with_tower = correct_with_tower(material);
  const Correction derived = correct_by_hand(material);
  const auto forward = [&] { return forward_mode_by_hand(material, x, step); };
  const auto corrected = [&](const Linearised& l) {
    return std::pair(x - at::linalg_solve(l.jacobian, l.residual), l.residual.norm(2, {1}));
  };

  const Linearised expected = linearise_by_hand(material, x, step);
  const auto [jacobian, residual] = tower_linearise(x, step);
  demand_equal("residual, Tower and by hand", residual, expected.residual);
  demand_equal("Jacobian, Tower and derived by hand", jacobian, expected.jacobian);
  demand_equal("residual, forward mode by hand and by hand", forward().residual, expected.residual);
  demand_equal("Jacobian, forward mode by hand and derived by hand", forward().jacobian, expected.jacobian);
  demand_equal("correction, Tower and by hand", with_tower(x, step).first, derived(x, step).first);

  race.add("tower", [&] { with_tower(x, step); });
  race.add("forward", [&] { corrected(forward()); });
  race.add("derived", [&] { derived(x, step); });
  race.add("tower_linearise", [&] { tower_linearise(x, step); });
  race.add("forward_linearise", [&] { forward(); });
  race.add("derived_linearise", [&] { linearise_by_hand(material, x, step); });
  const auto ns = race.run();

  report::Table table({"One Newton correction of 10,000 points, one thread", "ms", "of it residual and Jacobian",
                       "× hand-batched", "budget", ""});
  const auto row = [&](const char* name, const std::string& key, bool judged) {
    const double ratio = ns.at(key) / ns.at("forward");
    table.add({name, fmt::format("{:.2f}", ns.at(key) / 1e6), fmt::format("{:.2f}", ns.at(key + "_linearise") / 1e6),
               fmt::format("{:.2f}", ratio), judged ? fmt::format("{:.2f}", kBudget) : "",
               judged ? report::verdict(ratio, kBudget) : ""});
  };
  row("tower::vmap(jacfwd(residual))", "tower", true);
  row("forward mode by hand", "forward", false);
  row("Jacobian derived by hand", "derived", false);
  table.print();
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  fmt::print(stderr, "material_newton: {}\n", error.what());
  return EXIT_FAILURE;
}
