// The ground state of helium by variational Monte Carlo: places of the two electrons are drawn from |ψ|², the mean of
// their local energies is the energy of ψ, and its parameters go where that falls.
//
//   helium.h      the atom, its wave function, and what one place says: Laplacian, gradient, a step of the walk
//   reference.py  the least energy of that wave function by quadrature, which needs no Monte Carlo
//   main.cpp      thousands of walkers, the search for the parameters, and checks
//
// Writes helium.csv and helium.svg. Exits non-zero when a check fails.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/linalg_solve.h>
#include <fmt/format.h>
#include <tower/compile.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "helium.h"
#include "support/checks.h"
#include "support/command_line.h"
#include "support/plot.h"

namespace schroedinger {
namespace {

using support::Checks;
using support::seconds_of;

// In Hartree. Of all wave functions: Pekeris, Physical Review 115, 1216 (1959). Of this form: reference.py; Bethe and
// Salpeter, section 32, have -2.9024.
constexpr double kExact = -2.903724;
constexpr double kLeast = -2.902432, kVarianceThere = 0.0471;
constexpr double kParametersThere[] = {1.8161, 0.2918, 0.1308};

constexpr int64_t kApart = 10;  // steps between samples

struct Options {
  int64_t walkers = 4096;
  int64_t corrections = 40;
  int64_t samples = 800;  // of each walker, at the end
  std::string folder = "helium_results";
};

const tower::Mapping kByWalker{.in_dims = {std::nullopt, 0, 0, 0}};
const auto walk_all = tower::compile(tower::vmap(walk, kByWalker));
const auto measure_all = tower::compile(tower::vmap(measure, {.in_dims = {std::nullopt, 0}}));

/// Walkers, each at a place of its own, and the random numbers that they draw.
class Walkers {
 public:
  explicit Walkers(int64_t count)
      : generator_(at::make_generator<at::CPUGeneratorImpl>(7)),
        places_(at::randn({count, 6}, generator_, at::kDouble)) {}

  void walk(const Tensor& parameters, int64_t steps) {
    const int64_t count = places_.size(0);
    for (int64_t k = 0; k < steps; ++k) {
      const Tensor moves = kStep * at::randn({count, 6}, generator_, at::kDouble);
      const auto [there, went] = walk_all(parameters, places_, moves, at::rand({count}, generator_, at::kDouble));
      places_ = there;
      went_ += went.mean().item<double>();
      ++steps_;
    }
  }
  const Tensor& places() const { return places_; }
  double accepted() const { return went_ / static_cast<double>(steps_); }

 private:
  static constexpr double kStep = 0.35;  // so that about half of the steps are taken

  at::Generator generator_;
  Tensor places_;
  double went_ = 0;
  int64_t steps_ = 0;
};

struct Estimate {
  double energy, bar, variance;
};

/// The mean over `samples` of each walker, some steps apart. Walkers know nothing of each other, so the bar is that of
/// their means, however much each remembers.
Estimate energy_of(const Tensor& parameters, Walkers& walkers, int64_t samples) {
  Tensor sum = at::zeros({walkers.places().size(0)}, at::kDouble), squares = sum;
  for (int64_t k = 0; k < samples; ++k) {
    walkers.walk(parameters, kApart);
    const Tensor local = measure_all(parameters, walkers.places()).first;
    sum = sum + local;
    squares = squares + local.square();
  }
  const auto count = static_cast<double>(samples);
  const Tensor means = sum / count;
  const double energy = means.mean().item<double>();
  return {energy, means.std().item<double>() / std::sqrt(static_cast<double>(means.numel())),
          (squares / count).mean().item<double>() - energy * energy};
}

Tensor numbers(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }

/// Of exp(-zeta s) the local energy is a closed form, and for zeta = 27/16 the mean of it, too.
void check_without_correlation(Walkers& walkers, Checks& check) {
  constexpr double kZeta = 27.0 / 16;
  fmt::print("\nWithout correlation of the electrons\n");
  const Tensor parameters = numbers({kZeta, 0, 0});
  walkers.walk(parameters, 200);
  const Tensor local = measure_all(parameters, walkers.places()).first;
  const Tensor closed = tower::vmap([&](const Tensor& x) {
    const auto [first, second, between] = distances(x);
    return -kZeta * kZeta + (kZeta - 2) * (1 / first + 1 / second) + 1 / between;
  })(walkers.places());
  const double error = ((local - closed) / closed.abs().clamp_min(1)).abs().max().item<double>();
  check(error < 1e-9, fmt::format("local energies agree with the closed form to {:.1e}", error));
  const Estimate found = energy_of(parameters, walkers, 40);
  const double off = std::abs(found.energy + kZeta * kZeta) / found.bar;
  check(off < 4, fmt::format("{:.4f} ± {:.4f}, {:.1f} bars from -(27/16)²", found.energy, found.bar, off));
}

struct Correction {
  Tensor parameters;
  double energy, bar;
};

/// Stochastic reconfiguration (Sorella, Physical Review B 64, 024512, 2001): a step along the energy's gradient,
/// 2 cov(E, O) for local energies E and the derivatives O of log ψ, in the metric cov(O, O).
std::vector<Correction> descend(const Options& options, Walkers& walkers) {
  constexpr double kRate = 0.15;
  constexpr int64_t kSamples = 40;
  fmt::print("\n  correction     energy                zeta      c1      c2\n");
  std::vector<Correction> path;
  Tensor parameters = numbers({27.0 / 16, 0, 0});
  for (int64_t k = 0; k <= options.corrections; ++k) {
    walkers.walk(parameters, 50);
    std::vector<Tensor> energies, slopes;
    for (int64_t i = 0; i < kSamples; ++i) {
      walkers.walk(parameters, kApart);
      auto [energy, slope] = measure_all(parameters, walkers.places());
      energies.push_back(std::move(energy)), slopes.push_back(std::move(slope));
    }
    const Tensor all = at::cat(energies), of_log = at::cat(slopes);
    const Tensor e = all - all.mean(), o = of_log - of_log.mean(0);
    const auto count = static_cast<double>(all.numel());
    const Tensor by_walker = at::stack(energies).mean(0);
    path.push_back({parameters, all.mean().item<double>(),
                    by_walker.std().item<double>() / std::sqrt(static_cast<double>(by_walker.numel()))});
    const double* p = parameters.const_data_ptr<double>();
    if (k % std::max<int64_t>(1, options.corrections / 10) == 0)
      fmt::print("  {:10}   {:.5f} ± {:.5f}   {:7.4f} {:7.4f} {:7.4f}\n", k, path.back().energy, path.back().bar, p[0],
                 p[1], p[2]);
    const Tensor metric = o.t().mm(o) / count;
    parameters = parameters - kRate * at::linalg_solve(metric, o.t().mv(e) / count);
  }
  return path;
}

void check_ground_state(const Options& options, const std::vector<Correction>& path, Walkers& walkers, Checks& check) {
  fmt::print("\nThe ground state\n");
  // What the search still trembles goes out in the mean of its second half.
  std::vector<Tensor> settled;
  for (size_t k = path.size() / 2; k < path.size(); ++k) settled.push_back(path[k].parameters);
  const Tensor parameters = at::stack(settled).mean(0);
  const double apart = (parameters - at::tensor(at::ArrayRef<double>(kParametersThere))).abs().max().item<double>();
  check(apart < 0.02, fmt::format("the parameters are within {:.4f} of those by quadrature", apart));
  Estimate found{};
  const double seconds = seconds_of([&] { found = energy_of(parameters, walkers, options.samples); });
  const auto samples = static_cast<double>(options.samples * options.walkers);
  fmt::print("  {:.1f} million samples in {:.1f} s; {:.0f} % of the steps were taken\n", samples / 1e6, seconds,
             100 * walkers.accepted());
  const double off = std::abs(found.energy - kLeast) / found.bar;
  check(off < 4, fmt::format("{:.5f} ± {:.5f} Hartree, {:.1f} bars from the least of such wave functions, {:.5f}",
                             found.energy, found.bar, off, kLeast));
  check(found.energy > kExact - 4 * found.bar, fmt::format("not below the exact energy, {:.5f}", kExact));
  check(std::abs(found.variance / kVarianceThere - 1) < 0.2,
        fmt::format("the variance of local energies is {:.4f}, by quadrature {:.4f}", found.variance, kVarianceThere));
}

/// How the local energies of two wave functions are spread.
plot::Line spread(const std::string& label, const std::string& colour, const Tensor& parameters, Walkers& walkers) {
  constexpr double kLow = -4, kHigh = -1.5;
  constexpr int64_t kBins = 100;
  walkers.walk(parameters, 100);
  std::vector<Tensor> all;
  for (int k = 0; k < 20; ++k) {
    walkers.walk(parameters, 5);
    all.push_back(measure_all(parameters, walkers.places()).first);
  }
  const Tensor counts = at::histc(at::cat(all), kBins, kLow, kHigh);
  const double width = (kHigh - kLow) / kBins, total = static_cast<double>(20 * walkers.places().size(0));
  plot::Line line{label, colour, {}};
  for (int64_t k = 0; k < kBins; ++k)
    line.points.emplace_back(kLow + (static_cast<double>(k) + 0.5) * width, counts[k].item<double>() / (total * width));
  return line;
}

void draw(const Options& options, const std::vector<Correction>& path, Walkers& walkers) {
  const std::filesystem::path folder(options.folder);
  std::ofstream csv(folder / "helium.csv");
  csv << "correction,energy,bar,zeta,c1,c2\n";
  plot::Line energies{"with each correction", "#1f77b4", {}};
  energies.dots = true;
  for (size_t k = 0; k < path.size(); ++k) {
    const double* p = path[k].parameters.const_data_ptr<double>();
    csv << fmt::format("{},{:.6f},{:.6f},{:.6f},{:.6f},{:.6f}\n", k, path[k].energy, path[k].bar, p[0], p[1], p[2]);
    energies.points.emplace_back(static_cast<double>(k), path[k].energy);
  }
  const auto last = static_cast<double>(path.size() - 1);
  const auto level = [&](const char* label, const char* colour, double energy) {
    plot::Line line{label, colour, {{0, energy}, {last, energy}}};
    line.dashed = true;
    return line;
  };
  plot::Panel search{"Energy of the wave function", "correction", "Hartree", {energies}};
  search.lines.push_back(level("least of its form", "#2ca02c", kLeast));
  search.lines.push_back(level("exact", "#d62728", kExact));
  plot::Panel local{"Local energies", "Hartree", "density", {}};
  local.lines.push_back(spread("without correlation", "#7f7f7f", path.front().parameters, walkers));
  local.lines.push_back(spread("Hylleraas, 1929", "#1f77b4", path.back().parameters, walkers));
  std::ofstream(folder / "helium.svg") << plot::svg({search, local});
  fmt::print("\nWritten to {}: helium.csv, helium.svg\n", options.folder);
}

int run_demo(const Options& options) {
  at::set_num_threads(1);
  std::filesystem::create_directories(options.folder);
  Checks check;
  Walkers walkers(options.walkers);
  check_without_correlation(walkers, check);
  const std::vector<Correction> path = descend(options, walkers);
  check_ground_state(options, path, walkers, check);
  draw(options, path, walkers);
  if (check.failed() > 0) fmt::print("{} checks failed\n", check.failed());
  return check.failed() > 0 ? 1 : 0;
}

}  // namespace
}  // namespace schroedinger

int main(int argc, char** argv) {
  schroedinger::Options options;
  bool brief = false;
  support::CommandLine line("schroedinger", "The ground state of helium by variational Monte Carlo, with Tower");
  line.option("--walkers", options.walkers, "places that walk at once", {256, 1e6})
      .option("--corrections", options.corrections, "of the parameters", {10, 10'000})
      .option("--samples", options.samples, "of each walker for the energy", {10, 1e6})
      .option("--out", options.folder, "folder for the results")
      .flag("--short", brief, "1,024 walkers, 30 corrections, 60 samples");
  return line.run(argc, argv, [&] {
    if (brief) {
      options.walkers = 1024;
      options.corrections = 30;
      options.samples = 60;
    }
    return schroedinger::run_demo(options);
  });
}
