// The outer Solar System by Taylor series of order 20: an integrator in sixty lines, written for one system, mapped
// over a thousand that begin a little elsewhere, and compiled: all steps are one kernel.
//
//   taylor_steps.h    the integrator: a while_loop, whose step is a series by `jet`
//   solar_system.h    bodies, attraction, energy
//   reference.csv     the end after 100 years, by heyoka (reference.py)
//   main.cpp          what is done with them, held against what knows better
//
// Writes planets.csv and planets.svg. Exits non-zero when a check fails.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <tower/tower.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "solar_system.h"
#include "support/checks.h"
#include "support/command_line.h"
#include "support/plot.h"
#include "taylor_steps.h"

namespace planets {
namespace {

using support::Checks;
using support::seconds_of;

constexpr int64_t kOrder = 20;
constexpr double kYears = 100;
constexpr std::array kNames{"Sun", "Jupiter", "Saturn", "Uranus", "Neptune", "Pluto"};

struct Options {
  int64_t systems = 1024;
  std::string folder = "planets_results";
};

double largest(const Tensor& t) { return t.abs().max().item<double>(); }
Tensor years(double count) { return at::scalar_tensor(count, at::kDouble); }

/// Systems that begin within a hundredth of where ours did.
Tensor beginnings(int64_t count) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const Tensor shifts = 2 * at::rand({count, 2, kBodies, 3}, generator, at::kDouble) - 1;
  Tensor all = start() * (1 + 0.01 * shifts);
  all.select(0, 0).copy_(start());
  return all;
}

Flight one(const Tensor& y, const Tensor& duration) { return fly(Attraction{}, y, duration, kOrder); }

double change_of_energy(const Tensor& before, const Tensor& after) {
  const Tensor e = tower::vmap(energy)(before);
  return largest((tower::vmap(energy)(after) - e) / e);
}

Tensor reference() {
  std::ifstream file(std::filesystem::path(TOWER_EXAMPLES_DIR) / "planets/reference.csv");
  std::vector<double> values;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line[0] == 'x') continue;
    std::stringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) values.push_back(std::stod(cell));
  }
  return at::tensor(values, at::kDouble).view({kBodies, 2, 3}).transpose(0, 1);
}

template <class Fly>
void run_batch(const Fly& fly_all, const Options& options, Checks& check) {
  fmt::print("\n{} systems for {} years\n", options.systems, kYears);
  // A graph of one number of systems, and of another: from then on one of any.
  const double first = seconds_of([&] {
    for (const int64_t few : {8, 16, 8}) fly_all(beginnings(few), years(1));
  });
  const Tensor from = beginnings(options.systems);
  Flight end;
  for (int call = 0; call < 2; ++call) fly_all(from, years(kYears));
  const double time = seconds_of([&] { end = fly_all(from, years(kYears)); });
  fmt::print("  {} to {} steps in {:.3f} s, after {:.1f} s of compiling\n", end.steps.min().template item<int64_t>(),
             end.steps.max().template item<int64_t>(), time, first);
  const double error = change_of_energy(from, end.y);
  check(error < 1e-14, fmt::format("energy is kept to {:.1e}", error));
  const double apart = largest(end.y[0] - reference());
  check(apart < 1e-10, fmt::format("ours ends where heyoka's does, but for {:.1e}", apart));
  const Flight alone = one(from[1], years(10));
  const double of_batch = largest(alone.y - fly_all(from, years(10)).y[1]);
  check(of_batch < 1e-12, fmt::format("one alone, operator by operator, is as it is in the batch to {:.1e}", of_batch));
  const Tensor turn = at::tensor({1.0, -1.0}, at::kDouble).view({2, 1, 1});
  const double back = largest(fly_all(end.y * turn, years(kYears)).y * turn - from);
  check(back < 1e-9, fmt::format("backwards they return to where they began to {:.1e}", back));
}

template <class Fly>
void draw(const Fly& fly_all, const Options& options) {
  const std::filesystem::path folder(options.folder);
  constexpr std::array kColours{"#ff7f0e", "#d62728", "#2ca02c", "#9467bd", "#1f77b4", "#7f7f7f"};
  plot::Panel paths{"The outer Solar System, 250 years", "x / astronomical units", "y", {}};
  for (size_t b = 0; b < kNames.size(); ++b) paths.lines.push_back({kNames[b], kColours[b], {}});
  plot::Panel error{"Energy of our system", "years", "relative change", {{"order 20", "#1f77b4", {}}}};
  std::ofstream csv(folder / "planets.csv");
  csv << "year,body,x,y,z\n";
  const Tensor from = beginnings(8);
  Tensor y = from;
  for (int year = 0; year <= 250; ++year) {
    for (size_t b = 0; b < kNames.size(); ++b) {
      const Tensor place = y[0][0][static_cast<int64_t>(b)];
      const auto at = [&](int64_t k) { return place[k].item<double>(); };
      csv << fmt::format("{},{},{:.6f},{:.6f},{:.6f}\n", year, kNames[b], at(0), at(1), at(2));
      paths.lines[b].points.emplace_back(at(0), at(1));
    }
    const double e = energy(from[0]).item<double>();
    error.lines[0].points.emplace_back(year, energy(y[0]).item<double>() / e - 1);
    y = fly_all(y, years(1)).y;
  }
  std::ofstream(folder / "planets.svg") << plot::svg({paths, error});
  fmt::print("\nWritten to {}: planets.csv, planets.svg\n", options.folder);
}

int run_demo(const Options& options) {
  at::set_num_threads(1);
  std::filesystem::create_directories(options.folder);
  Checks check;
  const auto fly_all = tower::compile(tower::vmap(one, {.in_dims = {0, std::nullopt}}), {.math = tower::Math::fast});
  run_batch(fly_all, options, check);
  draw(fly_all, options);
  if (check.failed() > 0) fmt::print("{} checks failed\n", check.failed());
  return check.failed() > 0 ? 1 : 0;
}

}  // namespace
}  // namespace planets

int main(int argc, char** argv) {
  planets::Options options;
  bool brief = false;
  support::CommandLine line("planets", "The outer Solar System by Taylor series, with Tower");
  line.option("--systems", options.systems, "at once", {8, 1e6})
      .option("--out", options.folder, "folder for the results")
      .flag("--short", brief, "32 systems");
  return line.run(argc, argv, [&] {
    if (brief) options.systems = 32;
    return planets::run_demo(options);
  });
}
