// A user material for finite element programs: written for one point in Tower, exported as a C library with Abaqus's
// interface, and driven here as an element drives it.
//
//   material.h   the residual of one point, its solution by a while_loop, its consistent tangent
//   umat.c       Abaqus's interface around the exported function: nothing of the model is in it
//   library.h    exports, builds and loads the library
//   main.cpp     strain histories, and mixed ones by Newton's method with the tangent, against closed forms
//
// Leaves libumat.so in its folder. Exits non-zero when a check fails. Needs a C compiler (cc).
#include <ATen/Parallel.h>
#include <ATen/ops/linalg_solve.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <string>
#include <vector>

#include "library.h"
#include "support/checks.h"
#include "support/command_line.h"

namespace umat {
namespace {

using support::Checks;

struct Options {
  int64_t steps = 400;
  std::string folder = "umat_results";
};

const std::array<double, 4> kSteel = {200'000, 0.3, 250, 0.002};  // E [MPa], ν, σ₀ [MPa], p₀

struct Elastic {
  double young = kSteel[0], poisson = kSteel[1];
  double shear() const { return young / (2 * (1 + poisson)); }
  double lame() const { return young * poisson / ((1 + poisson) * (1 - 2 * poisson)); }
};

struct State {
  Six stress{};
  double plastic_strain = 0;
};

double largest(const Six& a) {
  double most = 0;
  for (const double x : a) most = std::max(most, std::abs(x));
  return most;
}
Six difference(const Six& a, const Six& b) {
  Six d;
  for (size_t i = 0; i < 6; ++i) d[i] = a[i] - b[i];
  return d;
}

/// The step on paper: the stress goes back to the yield surface along the trial's deviator, by as much as
/// q − 3G Δp = σ₀ √(1 + (p + Δp) / p₀) says, which is a quadratic equation for Δp.
State by_hand(const State& before, const Six& increment) {
  const Elastic e;
  const double g = e.shear(), yield = kSteel[2], scale = kSteel[3];
  Six trial = before.stress;
  const double volume = increment[0] + increment[1] + increment[2];
  for (size_t i = 0; i < 6; ++i) trial[i] += i < 3 ? e.lame() * volume + 2 * g * increment[i] : g * increment[i];
  const double mean = (trial[0] + trial[1] + trial[2]) / 3;
  Six s = trial;
  for (size_t i = 0; i < 3; ++i) s[i] -= mean;
  const double q =
      std::sqrt(1.5 * (s[0] * s[0] + s[1] * s[1] + s[2] * s[2] + 2 * (s[3] * s[3] + s[4] * s[4] + s[5] * s[5])));
  if (q <= yield * std::sqrt(1 + before.plastic_strain / scale)) return {trial, before.plastic_strain};
  // (3G)² Δp² − (6G q + σ₀² / p₀) Δp + q² − σ₀² (1 + p / p₀) = 0, the smaller root.
  const double a = 9 * g * g, b = 6 * g * q + yield * yield / scale,
               c = q * q - yield * yield * (1 + before.plastic_strain / scale);
  const double more = 2 * c / (b + std::sqrt(b * b - 4 * a * c));
  for (size_t i = 0; i < 6; ++i) trial[i] -= 3 * g * more * s[i] / q;
  return {trial, before.plastic_strain + more};
}

/// A closed strain history that turns: no two steps go the same way.
Six strain_at(double t) {
  const double angle = 2 * std::numbers::pi * t, a = 0.01;
  return {a * std::sin(angle),     -0.4 * a * std::sin(angle),          0.3 * a * (1 - std::cos(angle)),
          a * std::sin(2 * angle), 0.5 * a * (1 - std::cos(2 * angle)), -0.7 * a * std::sin(angle)};
}

void check_strain_history(const Umat& umat, const Options& options, Checks& check) {
  State found, expected;
  double apart = 0, tangent_apart = 0, asymmetry = 0;
  int flowed = 0;
  for (int k = 0; k < options.steps; ++k) {
    const Six increment = difference(strain_at((k + 1.0) / options.steps), strain_at(double(k) / options.steps));
    const Answer a = umat(found.stress, found.plastic_strain, increment, kSteel);
    expected = by_hand(found, increment);
    apart = std::max({apart, largest(difference(a.stress, expected.stress)) / kSteel[2],
                      std::abs(a.plastic_strain - expected.plastic_strain)});
    // The tangent by central differences of fourth order, except where the yield surface is nearer than these reach.
    const double h = 1e-6;
    const bool flows = a.plastic_strain > found.plastic_strain;
    const bool near = std::abs(a.plastic_strain - found.plastic_strain) < 4 * h && flows;
    flowed += flows;
    for (size_t j = 0; j < 6 && !near; ++j) {
      const auto at = [&](double step) {
        Six moved = increment;
        moved[j] += step;
        return umat(found.stress, found.plastic_strain, moved, kSteel).stress;
      };
      const Six one = at(h), back = at(-h), two = at(2 * h), far_back = at(-2 * h);
      for (size_t i = 0; i < 6; ++i) {
        const double slope = (8 * (one[i] - back[i]) - (two[i] - far_back[i])) / (12 * h);
        tangent_apart = std::max(tangent_apart, std::abs(a.tangent[i][j] - slope) / kSteel[0]);
      }
    }
    for (size_t i = 0; i < 6; ++i)
      for (size_t j = 0; j < i; ++j)
        asymmetry = std::max(asymmetry, std::abs(a.tangent[i][j] - a.tangent[j][i]) / kSteel[0]);
    found = {a.stress, a.plastic_strain};
  }
  fmt::print("\n{} steps of a strain that turns, {} of them plastic, to p = {:.4f}\n", options.steps, flowed,
             found.plastic_strain);
  check(apart < 1e-11, fmt::format("stress and plastic strain are those of the closed form: {:.1e}", apart));
  check(tangent_apart < 1e-6, fmt::format("the tangent is that of differences: {:.1e} E", tangent_apart));
  check(asymmetry < 1e-10, fmt::format("it is symmetric: {:.1e} E", asymmetry));
}

/// Equilibrium as an element has it: ε₁₁ is given, the other stresses vanish. Newton's method on the other strains.
struct Equilibrium {
  Answer answer;
  std::vector<double> residuals;
};
Equilibrium pulled(const Umat& umat, const State& before, double stretch) {
  Six increment{stretch, 0, 0, 0, 0, 0};
  Equilibrium e;
  for (int k = 0; k < 20; ++k) {
    e.answer = umat(before.stress, before.plastic_strain, increment, kSteel);
    Six out = e.answer.stress;
    out[0] = 0;
    e.residuals.push_back(largest(out) / kSteel[2]);
    if (e.residuals.back() < 1e-12) break;
    at::Tensor matrix = at::empty({5, 5}, at::kDouble), right = at::empty({5}, at::kDouble);
    for (int64_t i = 0; i < 5; ++i) {
      right[i] = out[static_cast<size_t>(i) + 1];
      for (int64_t j = 0; j < 5; ++j)
        matrix[i][j] = e.answer.tangent[static_cast<size_t>(i) + 1][static_cast<size_t>(j) + 1];
    }
    const at::Tensor correction = at::linalg_solve(matrix, right);
    for (int64_t i = 0; i < 5; ++i) increment[static_cast<size_t>(i) + 1] -= correction[i].item<double>();
  }
  return e;
}

void check_tension(const Umat& umat, Checks& check) {
  const double yield = kSteel[2], scale = kSteel[3], young = kSteel[0];
  State state;
  double apart = 0, stretch = 0;
  size_t most = 0;
  std::vector<double> residuals;
  for (int k = 1; k <= 20; ++k) {
    stretch += 5e-4;
    const Equilibrium e = pulled(umat, state, 5e-4);
    state = {e.answer.stress, e.answer.plastic_strain};
    if (e.residuals.size() > most) {
      most = e.residuals.size();
      residuals = e.residuals;
    }
    // ε = σ / E + p, σ = σ₀ √(1 + p / p₀): a quadratic equation for σ, or the elastic line.
    double expected = young * stretch;
    if (expected > yield) {
      const double a = scale / (yield * yield), b = 1 / young, c = -scale - stretch;
      expected = (-b + std::sqrt(b * b - 4 * a * c)) / (2 * a);
    }
    apart = std::max(apart, std::abs(state.stress[0] - expected) / yield);
  }
  fmt::print("\nuniaxial tension to 1 %, by Newton's method on the other strains\n");
  check(apart < 1e-11, fmt::format("the stress is that of the closed form: {:.1e}", apart));
  std::string text;
  for (const double r : residuals) text += fmt::format(" {:.1e}", r);
  fmt::print("          residuals of the step that took most:{}\n", text);
  // Of quadratic convergence: each residual is at most the square of the one before, times a constant.
  double factor = 0;
  for (size_t k = 1; k + 1 < residuals.size(); ++k)
    if (residuals[k] < 0.1 && residuals[k + 1] > 1e-12)
      factor = std::max(factor, residuals[k + 1] / (residuals[k] * residuals[k]));
  check(most <= 8 && factor < 1e3, fmt::format("it converges quadratically, in at most {} steps", most));
}

int run(const Options& options) {
  std::filesystem::create_directories(options.folder);
  make_library(options.folder);
  fmt::print("libumat.so is in {}: {} bytes\n", options.folder,
             std::filesystem::file_size(std::filesystem::path(options.folder) / "libumat.so"));
  const Umat umat((std::filesystem::absolute(options.folder) / "libumat.so").string());
  Checks check;

  const Answer elastic = umat({}, 0, {1e-4, 0, 0, 2e-4, 0, 0}, kSteel);
  const Elastic e;
  check(std::abs(elastic.stress[0] - 1e-4 * (e.lame() + 2 * e.shear())) < 1e-11 &&
            std::abs(elastic.stress[3] - 2e-4 * e.shear()) < 1e-11 && elastic.plastic_strain == 0 &&
            std::abs(elastic.tangent[1][0] - e.lame()) < 1e-7 && elastic.shorter_step == 1,
        "a small step is Hooke's law");
  check_strain_history(umat, options, check);
  check_tension(umat, check);

  const auto calls = [&] {
    State state;
    for (int k = 0; k < options.steps; ++k) {
      const Answer a =
          umat(state.stress, state.plastic_strain,
               difference(strain_at((k + 1.0) / options.steps), strain_at(double(k) / options.steps)), kSteel);
      state = {a.stress, a.plastic_strain};
    }
  };
  calls();
  fmt::print("\na call, with stress and tangent: {:.1f} µs\n", support::seconds_of(calls) / options.steps * 1e6);
  return check.failed();
}

}  // namespace
}  // namespace umat

int main(int argc, char** argv) {
  umat::Options options;
  bool brief = false;
  support::CommandLine line("umat", "A user material for finite element programs");
  line.option("--steps", options.steps, "of the strain history", {8, 1e6})
      .option("--folder", options.folder, "for the library")
      .flag("--short", brief, "fewer steps");
  return line.run(argc, argv, [&] {
    if (brief) options.steps = 80;
    at::set_num_threads(1);
    return umat::run(options) == 0 ? 0 : 1;
  });
}
