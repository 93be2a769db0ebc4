// Orbits by an integrator that chooses its own steps: written for one of them, mapped over thousands, differentiated,
// and fitted to observations through all of its steps.
//
//   dormand_prince.h  the integrator: a while_loop, for one trajectory
//   kepler.h          the equation, and the closed form
//   reference.csv     orbits without a closed form, by SciPy (reference.py)
//   main.cpp          what is done with them, held against what knows better
//
// Writes orbits.csv and orbits.svg. Exits non-zero when a check fails.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/linalg_det.h>
#include <ATen/ops/linalg_solve.h>
#include <fmt/format.h>
#include <tower/tower.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "dormand_prince.h"
#include "kepler.h"
#include "support/checks.h"
#include "support/command_line.h"
#include "support/plot.h"

namespace orbits {
namespace {

using support::Checks;
using support::seconds_of;

struct Options {
  int64_t orbits = 4096;
  int64_t observations = 24;
  std::string folder = "orbits_results";
};

const Tolerances kTight{1e-10, 1e-12};
constexpr double kDuration = 10;  // a revolution takes 2π
constexpr double kMostEccentric = 0.9;

Tensor number(double value) { return at::scalar_tensor(value, at::kDouble); }
double largest(const Tensor& t) { return t.abs().max().item<double>(); }

Tensor eccentricities(int64_t count) { return at::linspace(0, kMostEccentric, count, at::kDouble); }

Stepping one_orbit(const Tensor& e, const Running& running = {}) {
  return integrate(Attraction{number(1)}, nearest_point(e), number(kDuration), kTight, running);
}

struct Batch {
  Tensor e, steps;
};

/// Thousands at once, each with steps of its own.
Batch run_batch(const Options& options, Checks& check) {
  fmt::print("\n{} orbits of eccentricity 0 to {}, for {} units of time\n", options.orbits, kMostEccentric, kDuration);
  const Tensor e = eccentricities(options.orbits);
  Stepping all, compacted;
  const double whole = seconds_of([&] { all = tower::vmap([](const Tensor& e) { return one_orbit(e); })(e); });
  const double part =
      seconds_of([&] { compacted = tower::vmap([](const Tensor& e) { return one_orbit(e, {.compact = 0.5}); })(e); });
  fmt::print("  {} to {} steps, {} of them refused, in {:.2f} s; {:.2f} s where those that have arrived are left out\n",
             all.steps.min().item<int64_t>(), all.steps.max().item<int64_t>(), all.refused.sum().item<int64_t>(), whole,
             part);
  double error = 0;
  for (int64_t i = 0; i < options.orbits; ++i) {
    const Place place = exact(e[i].item<double>(), kDuration);
    for (int64_t k = 0; k < 2; ++k)
      error = std::max(error, std::abs(all.y[i][k].item<double>() - place.y[static_cast<size_t>(k)]));
  }
  check(error < 1e-6, fmt::format("positions agree with Kepler's equation to {:.1e}", error));
  const double difference = largest(all.y - compacted.y);
  check(difference < 1e-8, fmt::format("leaving out those that have arrived changes {:.1e}", difference));
  const Stepping alone = one_orbit(e[options.orbits / 2]);
  check(largest(alone.y - all.y[options.orbits / 2]) < 1e-12, "an orbit alone is as it is in the batch");
  return {e, all.steps};
}

/// How the end depends on the beginning.
void check_sensitivities(const Options& options, Checks& check) {
  const int64_t count = std::max<int64_t>(options.orbits / 16, 8);
  fmt::print("\nSensitivities of {} orbits\n", count);
  const Tensor e = eccentricities(count);
  const auto end_of = [](const Running& running) {
    return [running](const Tensor& start) {
      return integrate(Attraction{number(1)}, start, number(kDuration), kTight, running).y;
    };
  };
  const Tensor starts = tower::vmap(nearest_point)(e);
  Tensor forward, reverse;
  const double forward_time = seconds_of([&] { forward = tower::vmap(tower::jacfwd(end_of({})))(starts); });
  const double reverse_time =
      seconds_of([&] { reverse = tower::vmap(tower::jacrev(end_of({.checkpoints = 12})))(starts); });
  fmt::print("  forward mode {:.2f} s, reverse mode with 12 states kept {:.2f} s\n", forward_time, reverse_time);
  const double relative = largest(forward - reverse) / largest(forward);
  check(relative < 1e-10, fmt::format("forward and reverse mode agree to {:.1e} of the largest", relative));
  const double volume = largest(at::linalg_det(forward) - 1);
  check(volume < 1e-4, fmt::format("the flow keeps volumes to {:.1e}", volume));
  const Tensor by_e = tower::vmap([](const Tensor& e) {
    return tower::jvp([](const Tensor& e) { return one_orbit(e).y; }, e, at::ones_like(e)).second;
  })(e);
  double error = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Place place = exact(e[i].item<double>(), kDuration);
    for (int64_t k = 0; k < 2; ++k)
      error = std::max(error, std::abs(by_e[i][k].item<double>() - place.by_e[static_cast<size_t>(k)]) /
                                  (1 + std::abs(place.by_e[static_cast<size_t>(k)])));
  }
  check(error < 1e-5, fmt::format("derivatives by the eccentricity agree with the closed form to {:.1e}", error));
}

void check_reference(Checks& check) {
  fmt::print("\nAround an oblate mass, against SciPy\n");
  std::ifstream file(std::filesystem::path(TOWER_EXAMPLES_DIR) / "orbits/reference.csv");
  std::vector<double> values;
  int64_t rows = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line[0] == 'e') continue;
    std::stringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) values.push_back(std::stod(cell));
    ++rows;
  }
  const Tensor table = at::tensor(values, at::kDouble).view({rows, 5});
  const Tensor ends = tower::vmap([](const Tensor& e) {
    return integrate(Attraction{number(1), 0.01}, nearest_point(e), number(10), kTight).y;
  })(table.select(1, 0));
  const double error = largest(ends - table.narrow(1, 1, 4));
  check(rows == 13 && error < 1e-7, fmt::format("{} orbits agree with DOP853 to {:.1e}", rows, error));
}

/// Positions at equal intervals, of an orbit with these parameters: the start, and the mass.
Tensor observed(const Tensor& parameters, int64_t count) {
  const Attraction attraction{parameters[4]};
  const auto interval = number(kDuration / static_cast<double>(count));
  const auto next = [attraction, interval](const Tensor& y) {
    const Tensor end = integrate(attraction, y, interval, kTight, {.checkpoints = 4}).y;
    return std::pair(end, end.narrow(0, 0, 2));
  };
  return tower::scan(next, parameters.narrow(0, 0, 4), {.length = count, .checkpoints = 4}).second;
}

/// An orbit from observations with noise, by Gauss and Newton, whose Jacobian is reverse mode through all steps.
void fit(const Options& options, Checks& check) {
  constexpr double kNoise = 1e-4;
  fmt::print("\nAn orbit from {} observations with noise of {:.0e}\n", options.observations, kNoise);
  const Tensor truth = at::cat({nearest_point(number(0.4)), at::ones({1}, at::kDouble)});
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const Tensor seen =
      observed(truth, options.observations) + kNoise * at::randn({options.observations, 2}, generator, at::kDouble);
  const auto residuals = [&](const Tensor& p) { return (observed(p, options.observations) - seen).flatten() / kNoise; };
  Tensor p = truth + at::tensor({0.03, -0.02, 0.02, -0.03, 0.03}, at::kDouble), information;
  fmt::print("  correction   largest residual / noise   largest change\n");
  double change = 1;
  for (int correction = 1; correction <= 12 && change > 1e-9; ++correction) {
    const Tensor r = residuals(p), jacobian = tower::jacrev(residuals)(p);
    information = jacobian.t().mm(jacobian);
    const Tensor delta = at::linalg_solve(information, -jacobian.t().mv(r));
    p = p + delta;
    change = largest(delta);
    fmt::print("  {:10}   {:24.3g}   {:14.1e}\n", correction, largest(r), change);
    std::fflush(stdout);
  }
  const Tensor deviations = information.inverse().diagonal().sqrt();
  const double off = largest((p - truth) / deviations);
  check(change <= 1e-9, "the corrections come to an end");
  check(off < 4, fmt::format("the parameters are within {:.1f} standard deviations of the truth", off));
  fmt::print("  mass {:.6f} ± {:.1e}\n", p[4].item<double>(), deviations[4].item<double>());
}

void draw(const Options& options, const Batch& batch) {
  const std::filesystem::path folder(options.folder);
  plot::Panel steps{"Steps of each orbit", "eccentricity", "steps", {{"Dormand–Prince 5(4)", "#1f77b4", {}}}};
  std::ofstream csv(folder / "orbits.csv");
  csv << "eccentricity,steps\n";
  for (int64_t i = 0; i < batch.e.size(0); ++i) {
    const double e = batch.e[i].item<double>();
    const auto count = batch.steps[i].item<int64_t>();
    csv << fmt::format("{:.6f},{}\n", e, count);
    if (i % std::max<int64_t>(1, batch.e.size(0) / 200) == 0)
      steps.lines[0].points.emplace_back(e, static_cast<double>(count));
  }
  plot::Panel paths{"Orbits around a mass at 0", "x", "y", {}};
  for (const auto& [e, colour] : {std::pair(0.8, "#d62728"), std::pair(0.4, "#2ca02c"), std::pair(0.0, "#1f77b4")}) {
    plot::Line line{fmt::format("e = {}", e), colour, {}};
    const Tensor start = at::cat({nearest_point(number(e)), at::ones({1}, at::kDouble)});
    const Tensor path = observed(start, 120);
    for (int64_t k = 0; k < path.size(0); ++k)
      line.points.emplace_back(path[k][0].item<double>(), path[k][1].item<double>());
    paths.lines.push_back(std::move(line));
  }
  std::ofstream(folder / "orbits.svg") << plot::svg({paths, steps});
  fmt::print("\nWritten to {}: orbits.csv, orbits.svg\n", options.folder);
}

int run_demo(const Options& options) {
  at::set_num_threads(1);
  std::filesystem::create_directories(options.folder);
  Checks check;
  const Batch batch = run_batch(options, check);
  check_sensitivities(options, check);
  check_reference(check);
  fit(options, check);
  draw(options, batch);
  if (check.failed() > 0) fmt::print("{} checks failed\n", check.failed());
  return check.failed() > 0 ? 1 : 0;
}

}  // namespace
}  // namespace orbits

int main(int argc, char** argv) {
  orbits::Options options;
  bool brief = false;
  support::CommandLine line("orbits", "Orbits by an integrator that chooses its own steps, with Tower");
  line.option("--orbits", options.orbits, "orbits at once", {64, 1e6})
      .option("--observations", options.observations, "of the orbit that is fitted", {6, 10'000})
      .option("--out", options.folder, "folder for the results")
      .flag("--short", brief, "64 orbits and 8 observations");
  return line.run(argc, argv, [&] {
    if (brief) {
      options.orbits = 64;
      options.observations = 8;
    }
    return orbits::run_demo(options);
  });
}
