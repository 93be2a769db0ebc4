// Implicit stress update of an elasto-viscoplastic material at many points, driven by strain histories that all differ.
//
//   material.h      the residual of one point: the only place where the model is written
//   newton.h        vmap, jacfwd and solve make Newton's method and the consistent tangent of it
//   hand_derived.h  what that replaces
//   main.cpp        runs the histories, then holds every claim against something that knows better
//
// Writes stress_strain.csv, convergence.csv, points.csv and material_newton.svg. Exits non-zero when a check fails.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "hand_derived.h"
#include "histories.h"
#include "material.h"
#include "newton.h"
#include "shear.h"
#include "support/checks.h"
#include "support/command_line.h"
#include "support/plot.h"

namespace material_newton {
namespace {

using support::Checks;
using support::seconds_of;

constexpr double relative_tolerance = 1e-10;  // of Newton's residual, in units of the initial yield stress σ₀
constexpr double rounding = 1e-13;            // residuals below it say nothing about convergence

struct Options {
  int64_t points = 10'000;
  int64_t steps = 40;
  int64_t seed = 1;
  int64_t threads = 1;
  std::string folder = "material_newton_results";
};

/// The median of three, after one that warms up.
template <class F>
double typical_seconds_of(F&& f) {
  f();
  std::array<double, 3> times{seconds_of(f), seconds_of(f), seconds_of(f)};
  std::sort(times.begin(), times.end());
  return times[1];
}

double largest(const at::Tensor& t) { return t.abs().max().item<double>(); }
double largest_difference(const at::Tensor& a, const at::Tensor& b) { return largest(a - b); }

/// The first points of a step.
Step first_points(const Step& step, int64_t count) {
  const auto cut = [&](const at::Tensor& t) { return t.narrow(0, 0, std::min(count, t.size(0))); };
  return {cut(step.strain_increment), cut(step.duration), cut(step.stress), cut(step.plastic_strain)};
}

Step point(const Step& step, int64_t i) {
  return {step.strain_increment[i], step.duration[i], step.stress[i], step.plastic_strain[i]};
}

std::ofstream open(const std::filesystem::path& path) {
  std::ofstream file(path);
  file.exceptions(std::ios::failbit | std::ios::badbit);
  return file;
}

/// The whole history, and the step that took the most corrections.
struct Run {
  Step hardest;
  Solution hardest_solution;
  Step end;  // its stress and plastic strain are those at the end of the history
};

Run run_histories(const Material& m, const Correction& correct, const Cycles& cycles, const Options& options) {
  fmt::print(
      "\nThe histories\n  step   yielding   corrections   largest residual / σ₀   mean σ_eq [MPa]   largest p\n");
  const at::TensorOptions f64 = at::dtype(at::kDouble);
  Run run;
  Step step{{}, cycles.period / options.steps, at::zeros({options.points, 6}, f64), at::zeros({options.points}, f64)};
  int64_t corrections = 0;
  const double seconds = seconds_of([&] {
    for (int i = 1; i <= options.steps; ++i) {
      step.strain_increment = cycles.strain(1.0 * i / options.steps) - cycles.strain(1.0 * (i - 1) / options.steps);
      const Solution solution = solve(correct, first_guess(m, step), step, relative_tolerance * m.c.yield_stress);
      corrections += static_cast<int64_t>(solution.norms.size());
      if (solution.norms.size() > run.hardest_solution.norms.size()) {
        run.hardest = step;
        run.hardest_solution = solution;
      }
      step = m.advance(step, solution.x);
      if (i % std::max<int64_t>(1, options.steps / 8) != 0) continue;
      const at::Tensor s = at::mm(step.stress, m.deviator);
      fmt::print("  {:4}   {:8}   {:11}   {:21.1e}   {:15.1f}   {:9.4f}\n", i,
                 solution.x.select(1, 6).gt(0).sum().item<int64_t>(), solution.norms.size(),
                 largest(solution.norms.back()) / m.c.yield_stress, (1.5 * dot_rows(s, s)).sqrt().mean().item<double>(),
                 largest(step.plastic_strain));
    }
  });
  run.end = step;
  fmt::print("  {} steps, {} corrections of {} points in {:.1f} s: {:.2f} µs a point and correction\n", options.steps,
             corrections, options.points, seconds, 1e6 * seconds / static_cast<double>(corrections * options.points));
  return run;
}

void check_histories(const Material& m, const Run& run, const Cycles& cycles, Checks& check) {
  const at::Tensor p = run.end.plastic_strain;
  const at::Tensor at_rest = cycles.amplitude == 0;
  const at::Tensor elastic = p == 0;
  check(at::isfinite(run.end.stress).all().item<bool>() && at::isfinite(p).all().item<bool>(),
        "every stress and plastic strain is finite");
  check(run.end.stress.index({at_rest}).eq(0).all().item<bool>() && p.index({at_rest}).eq(0).all().item<bool>(),
        fmt::format("{} points at rest stay at exactly zero stress", at_rest.sum().item<int64_t>()));
  // After a closed cycle nothing is left in a point that never yielded.
  check(largest(run.end.stress.index({elastic})) < 1e-9 * m.c.yield_stress,
        fmt::format("{} points that never yield are free of stress after the cycle", elastic.sum().item<int64_t>()));
}

/// How fast the hardest step converged. The order of convergence is estimated for every point from three residuals in a
/// row, in the range between the first rough corrections and rounding.
void report_convergence(const Material& m, const Run& run, const std::filesystem::path& folder, Checks& check) {
  const at::Tensor norms = at::stack(run.hardest_solution.norms) / m.c.yield_stress;  // {corrections, n}
  const int64_t corrections = norms.size(0);
  const int64_t slowest = norms[corrections - 2].argmax().item<int64_t>();

  const at::Tensor before = norms.narrow(0, 0, corrections - 2), here = norms.narrow(0, 1, corrections - 2),
                   after = norms.narrow(0, 2, corrections - 2);
  const at::Tensor measurable = (before < 0.1) & (after > rounding);
  const at::Tensor orders = ((after / here).log() / (here / before).log()).masked_select(measurable);

  fmt::print("\nNewton in the hardest step: |residual| / σ₀, before each correction\n");
  fmt::print("  correction   points above 1e-10      median     largest   slowest point   order there\n");
  std::ofstream csv = open(folder / "convergence.csv");
  csv << "correction,median,largest,slowest_point\n";
  const auto of_slowest = [&](int64_t k) { return norms[k][slowest].item<double>(); };
  for (int64_t k = 0; k < corrections; ++k) {
    const double median = norms[k].median().item<double>(), most = largest(norms[k]);
    const bool has_order = k >= 2 && of_slowest(k) > rounding;
    fmt::print("  {:10}   {:18}   {:9.1e}   {:9.1e}   {:13.1e}   {:>11}\n", k + 1,
               norms[k].gt(relative_tolerance).sum().item<int64_t>(), median, most, of_slowest(k),
               has_order ? fmt::format("{:.2f}", std::log(of_slowest(k) / of_slowest(k - 1)) /
                                                     std::log(of_slowest(k - 1) / of_slowest(k - 2)))
                         : "");
    csv << fmt::format("{},{:.6e},{:.6e},{:.6e}\n", k + 1, median, most, of_slowest(k));
  }
  const double order = orders.numel() > 0 ? orders.median().item<double>() : 0;
  check(largest(norms[corrections - 1]) <= relative_tolerance, "every point's residual is below 1e-10 σ₀");
  check(order > 1.9 && order < 2.1,
        fmt::format("convergence is quadratic: median order {:.3f} of {} estimates", order, orders.numel()));
}

void check_against_hand(const Material& m, const Run& run, Checks& check) {
  fmt::print("\nAgainst the Jacobian derived by hand (dimensionless: both unknowns and residuals are stresses)\n");
  const auto linearise = tower::vmap([&](const at::Tensor& x, const Step& step) {
    const auto residual = [&](const at::Tensor& at_x) { return m.residual(at_x, step); };
    return std::pair(residual(x), tower::jacfwd(residual)(x));
  });
  const auto reverse = tower::vmap([&](const at::Tensor& x, const Step& step) {
    return tower::jacrev([&](const at::Tensor& at_x) { return m.residual(at_x, step); })(x);
  });

  // Halfway through Newton, where neither the residual nor the flow is zero.
  at::Tensor x = first_guess(m, run.hardest);
  for (int i = 0; i < 2; ++i) x = correct_by_hand(m)(x, run.hardest).first;
  const auto [residual, jacobian] = linearise(x, run.hardest);
  const Linearised by_hand = linearise_by_hand(m, x, run.hardest);
  const double scale = largest(by_hand.jacobian);
  const auto relative = [&](const at::Tensor& j) { return largest_difference(j, by_hand.jacobian) / scale; };
  fmt::print("  entries up to {:.2g}\n", scale);
  const double residual_error = largest_difference(residual, by_hand.residual) / m.c.yield_stress;
  check(residual_error < 1e-12, fmt::format("residuals agree to {:.1e} σ₀", residual_error));
  check(relative(jacobian) < 1e-10, fmt::format("vmap(jacfwd(residual)) agrees to {:.1e}", relative(jacobian)));
  const double reverse_error = relative(reverse(x, run.hardest));
  check(reverse_error < 1e-10, fmt::format("vmap(jacrev(residual)) agrees to {:.1e}", reverse_error));
  const Solution solution = solve(correct_by_hand(m), first_guess_by_hand(m, run.hardest), run.hardest,
                                  relative_tolerance * m.c.yield_stress);
  const double x_error = largest_difference(solution.x, run.hardest_solution.x) / m.c.yield_stress;
  check(x_error < 1e-10, fmt::format("the solved stresses agree to {:.1e} σ₀", x_error));
}

/// dσ/dΔε against fourth-order differences of the whole stress update, Newton included.
void check_tangent(const Material& m, const Correction& correct, const Run& run, Checks& check) {
  fmt::print("\nConsistent tangent dσ/dΔε\n");
  constexpr double h = 2e-8;
  const Step step = first_points(run.hardest, 500);
  const auto solve_at = [&](const Step& at) {
    return solve(correct, first_guess(m, at), at, relative_tolerance * m.c.yield_stress).x;
  };
  const auto flows = [](const at::Tensor& x) { return x.select(1, 6) > 0; };

  const at::Tensor x = solve_at(step);
  const at::Tensor tangent =
      tower::vmap([&](const at::Tensor& at_x, const Step& one) { return tangent_of_one_point(m, at_x, one); })(x, step);

  // At the onset of yielding the stress has a kink: a point that crosses it between two shifts has no difference
  // quotient to compare with.
  at::Tensor smooth = at::ones_like(flows(x));
  const auto stress_at = [&](int64_t component, double shift) {
    Step shifted = step;
    shifted.strain_increment = step.strain_increment.clone();
    shifted.strain_increment.select(1, component) += shift;
    const at::Tensor shifted_x = solve_at(shifted);
    smooth.logical_and_(flows(shifted_x) == flows(x));
    return shifted_x.narrow(1, 0, 6);
  };
  std::vector<at::Tensor> columns;
  for (int64_t j = 0; j < 6; ++j) {
    const at::Tensor near = stress_at(j, h) - stress_at(j, -h), far = stress_at(j, 2 * h) - stress_at(j, -2 * h);
    columns.push_back((8 * near - far) / (12 * h));
  }
  const at::Tensor differences = at::stack(columns, 2);

  const double scale = largest(m.elasticity);
  const double error = largest_difference(tangent.index({smooth}), differences.index({smooth})) / scale;
  const double asymmetry = largest_difference(tangent, tangent.transpose(1, 2)) / scale;
  const int64_t compared = smooth.sum().item<int64_t>(), points = smooth.numel();
  const at::Tensor elastic = ~flows(x);
  check(error < 1e-6,
        fmt::format("agrees with finite differences of the stress update to {:.1e} of the elastic moduli", error));
  check(compared >= 0.98 * static_cast<double>(points),
        fmt::format("compared at {} of {} points; the others cross the onset of yielding between the differences",
                    compared, points));
  check(asymmetry < 1e-10, fmt::format("is symmetric, as associated flow demands, to {:.1e}", asymmetry));
  check(largest_difference(tangent.index({elastic}), m.elasticity) < 1e-12 * scale,
        fmt::format("is Hooke's law at the {} points that stay elastic", elastic.sum().item<int64_t>()));
}

/// The closed forms of simple shear; returns the panel of stress-strain curves.
plot::Panel check_shear(const Material& m, const Correction& correct, const std::filesystem::path& folder,
                        Checks& check) {
  constexpr double most = 0.03;
  constexpr int steps = 120;
  const double tolerance = relative_tolerance * m.c.yield_stress;

  fmt::print("\nSimple shear with linear hardening alone (Q = 0), against the rate-independent closed form\n");
  fmt::print(
      "  shear rate [1/s]   largest |τ − closed form| [MPa]   at the end [MPa]   expected of the viscosity [MPa]\n");
  Constants linear_constants = m.c;
  linear_constants.saturation = 0;
  const Material linear(linear_constants);
  const std::vector<double> rates{1e-11, 1e-7, 1e-5, 1e-3, 1e-1, 10};
  const ShearTest test = shear(linear, correct_with_tower(linear), rates, most, steps, tolerance);
  double limit_error = 0, excess_error = 0;
  for (size_t r = 0; r < rates.size(); ++r) {
    double error = 0, excess = 0;
    for (size_t i = 0; i < test.gamma.size(); ++i) {
      excess = test.tau[i][r].item<double>() - closed_form_linear(linear, test.gamma[i]);
      error = std::max(error, std::abs(excess));
    }
    const double expected = steady_excess(linear, rates[r]);
    fmt::print("  {:16.0e}   {:31.3e}   {:16.6e}   {:31.6e}\n", rates[r], error, excess, expected);
    if (r == 0) limit_error = error / m.c.yield_stress;
    excess_error = std::max(excess_error, std::abs(excess - expected) / m.c.yield_stress);
  }
  check(limit_error < 1e-8, fmt::format("the slowest curve is the rate-independent one to {:.1e} σ₀", limit_error));
  check(excess_error < 1e-9, fmt::format("the steady overstress at every rate is right to {:.1e} σ₀", excess_error));

  const std::vector<double> shown{1e-11, 1e-2, 1, 100};
  const ShearTest full = shear(m, correct, shown, most, steps, tolerance);
  double error = 0;
  for (size_t i = 0; i < full.gamma.size(); ++i) {
    const double p = full.plastic_strain[i][0].item<double>();
    if (p == 0) continue;
    const auto [gamma, tau] = closed_form_saturating(m, p);
    error = std::max({error, std::abs(tau - full.tau[i][0].item<double>()) / m.c.yield_stress,
                      std::abs(gamma - full.gamma[i]) / most});
  }
  check(error < 1e-8, fmt::format("with saturation too, the slow curve is the closed form, to {:.1e}", error));

  plot::Panel panel{"Simple shear: stress and strain", "shear strain γ [%]", "shear stress τ [MPa]", {}};
  const std::vector<std::string> colours{"#1f77b4", "#2ca02c", "#ff7f0e", "#d62728"};
  std::ofstream csv = open(folder / "stress_strain.csv");
  csv << "shear_rate_per_s,shear_strain,shear_stress_MPa,plastic_strain\n";
  for (size_t r = 0; r < shown.size(); ++r) {
    plot::Line line{r == 0 ? "Tower, rate-independent limit" : fmt::format("Tower, {:g} /s", shown[r]), colours[r], {}};
    for (size_t i = 0; i < full.gamma.size(); ++i) {
      const double tau = full.tau[i][r].item<double>();
      line.points.emplace_back(100 * full.gamma[i], tau);
      csv << fmt::format("{:g},{:.8g},{:.10g},{:.10g}\n", shown[r], full.gamma[i], tau,
                         full.plastic_strain[i][r].item<double>());
    }
    panel.lines.push_back(std::move(line));
  }
  plot::Line closed_form{"closed form, rate-independent", "#000", {{0, 0}}, true};
  for (double p = 0; closed_form_saturating(m, p).first <= most; p += most / 500) {
    const auto [gamma, tau] = closed_form_saturating(m, p);
    closed_form.points.emplace_back(100 * gamma, tau);
  }
  panel.lines.push_back(std::move(closed_form));
  return panel;
}

plot::Panel convergence_panel(const Material& m, const Run& run) {
  plot::Panel panel{"Newton in the hardest step", "correction", "residual / initial yield stress", {}, true, true};
  const at::Tensor norms = at::stack(run.hardest_solution.norms) / m.c.yield_stress;
  plot::Line most{"largest of all points", "#d62728", {}, false, true}, median{"median", "#1f77b4", {}, false, true};
  plot::Line tolerance{"tolerance", "#000", {}, true};
  for (int64_t k = 0; k < norms.size(0); ++k) {
    const double x = static_cast<double>(k + 1), floor = 1e-18;
    most.points.emplace_back(x, std::max(floor, largest(norms[k])));
    median.points.emplace_back(x, std::max(floor, norms[k].median().item<double>()));
    tolerance.points.emplace_back(x, relative_tolerance);
  }
  panel.lines = {most, median, tolerance};
  return panel;
}

void write_points(const Material& m, const Run& run, const Cycles& cycles, const std::filesystem::path& folder) {
  const at::Tensor s = at::mm(run.end.stress, m.deviator);
  const at::Tensor von_mises = (1.5 * dot_rows(s, s)).sqrt();
  std::ofstream csv = open(folder / "points.csv");
  csv << "strain_amplitude,strain_rate_per_s,residual_von_mises_stress_MPa,plastic_strain\n";
  const auto table = at::stack({cycles.amplitude, cycles.rate(), von_mises, run.end.plastic_strain}, 1).contiguous();
  const double* row = table.const_data_ptr<double>();
  for (int64_t i = 0; i < table.size(0); ++i, row += 4)
    csv << fmt::format("{:.6g},{:.6g},{:.8g},{:.8g}\n", row[0], row[1], row[2], row[3]);
}

/// One correction of the whole batch, four ways.
void report_times(const Material& m, const Run& run, Checks& check) {
  const Step& step = run.hardest;
  const at::Tensor x = first_guess(m, step);
  const int64_t points = x.size(0), looped = std::min<int64_t>(points, 200);
  const Correction with_tower = correct_with_tower(m), compiled = compiled_correction(m), by_hand = correct_by_hand(m);
  const double tower_time = typical_seconds_of([&] { with_tower(x, step); });
  compiled(x, step);  // traces
  const double compiled_time = typical_seconds_of([&] { compiled(x, step); });
  const double apart = largest_difference(compiled(x, step).first, with_tower(x, step).first) / largest(x);
  check(apart < 1e-10, fmt::format("the compiled correction agrees with the operators one by one to {:.1e}", apart));
  const double hand_time = typical_seconds_of([&] { by_hand(x, step); });
  const double loop_time = static_cast<double>(points) / static_cast<double>(looped) * typical_seconds_of([&] {
                             for (int64_t i = 0; i < looped; ++i) correct_one_point(m, x[i], point(step, i));
                           });
  fmt::print("\nTime of one Newton correction of all {} points (Jacobians and solves; threads: {})\n", points,
             at::get_num_threads());
  const auto row = [&](const std::string& name, double seconds) {
    fmt::print("  {:58} {:9.1f} ms   {:7.2f} × Tower\n", name, 1e3 * seconds, seconds / tower_time);
  };
  row("Tower: vmap of the one-point correction", tower_time);
  row("the same, compiled", compiled_time);
  row("batched and differentiated by hand", hand_time);
  row(fmt::format("loop over the points (measured on {}, scaled)", looped), loop_time);
}

int run_demo(const Options& options) {
  at::set_num_threads(options.threads);
  std::filesystem::create_directories(options.folder);
  const Material material(Constants{});
  const Correction correct = compiled_correction(material);
  const Cycles cycles = Cycles::random(options.points, options.seed);
  Checks check;

  fmt::print("Elasto-viscoplastic stress update: {} material points, {} load steps, float64\n", options.points,
             options.steps);
  const Run run = run_histories(material, correct, cycles, options);
  check_histories(material, run, cycles, check);
  report_convergence(material, run, options.folder, check);
  check_against_hand(material, run, check);
  check_tangent(material, correct, run, check);
  const plot::Panel stress_strain = check_shear(material, correct, options.folder, check);
  report_times(material, run, check);

  write_points(material, run, cycles, options.folder);
  open(std::filesystem::path(options.folder) / "material_newton.svg")
      << plot::svg({stress_strain, convergence_panel(material, run)});
  fmt::print("\nWritten to {}: stress_strain.csv, convergence.csv, points.csv, material_newton.svg\n", options.folder);
  if (check.failed() > 0) fmt::print("{} CHECKS FAILED\n", check.failed());
  return check.failed() > 0 ? 1 : 0;
}

}  // namespace
}  // namespace material_newton

int main(int argc, char** argv) {
  material_newton::Options options;
  bool brief = false;
  support::CommandLine line("material_newton", "Implicit stress update of an elasto-viscoplastic material with Tower");
  line.option("--points", options.points, "material points", {100, 1e7})
      .option("--steps", options.steps, "load steps of a strain cycle", {8, 10'000})
      // More threads help where the machine is free for them, and cost a multiple where it is not: LibTorch's threads
      // spin while they wait for each other.
      .option("--threads", options.threads, "threads that LibTorch may use", {1, 1024})
      .option("--seed", options.seed, "of the random strain histories")
      .option("--out", options.folder, "folder for the results")
      .flag("--short", brief, "200 points and 12 steps");
  return line.run(argc, argv, [&] {
    if (brief) {
      options.points = 200;
      options.steps = 12;
    }
    return material_newton::run_demo(options);
  });
}
