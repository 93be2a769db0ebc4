// A potential that Python exported, in C++: forces and molecular dynamics of many molecules at once, and the normal
// modes of one, by derivatives that the file does not have.
//
//   export.py   makes the model: an energy of a water molecule
//   water.pt2   what torch.export.save wrote
//   main.cpp    what is done with it, held against finite differences
//
// Exits non-zero when a check fails.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <tower/exported.h>
#include <tower/tower.h>

#include <cmath>
#include <numbers>
#include <string>

#include "support/checks.h"
#include "support/command_line.h"

namespace exported_potential {
namespace {

using at::Tensor;
using support::Checks;

// Ångström, electronvolt and atomic mass units: time is then in 10.1805 fs, and a square root of eV / (u Å²) is a
// frequency of 521.47 / cm.
constexpr double kFemtoseconds = 10.1805, kWavenumber = 521.47;
constexpr double kOxygen = 15.999, kHydrogen = 1.008;

double largest(const Tensor& t) { return t.abs().max().item<double>(); }

Tensor masses() { return at::tensor({kOxygen, kHydrogen, kHydrogen}, at::kDouble).unsqueeze(1); }

/// Flat, with bonds and an angle that are not those of the minimum.
Tensor some_molecule() { return at::tensor({0.0, 0.0, 0.0, 1.0, 0.0, 0.0, -0.2, 0.95, 0.0}, at::kDouble).view({3, 3}); }

/// The central difference of `f` along each of the places' coordinates: its shape, behind the places'.
template <class F>
Tensor differences(const F& f, const Tensor& places) {
  constexpr double h = 1e-4;
  std::vector<Tensor> columns;
  for (int64_t i = 0; i < places.numel(); ++i) {
    const Tensor step = at::zeros({places.numel()}, at::kDouble).index_fill(0, at::tensor({i}), h).view_as(places);
    columns.push_back((f(places + step) - f(places - step)) / (2 * h));
  }
  return at::stack(columns);
}

template <class Gradient>
Tensor relaxed(const Gradient& gradient, Tensor places) {
  for (int n = 0; n < 3000; ++n) places = places - 0.01 * gradient(places);
  return places;
}

/// In 1/cm, the smallest first; imaginary ones negative.
Tensor frequencies(const Tensor& hessian) {
  const Tensor root = masses().expand({3, 3}).reshape({9}).sqrt();
  const Tensor squares = at::linalg_eigvalsh(hessian.reshape({9, 9}) / root.unsqueeze(0) / root.unsqueeze(1));
  return squares.abs().sqrt() * squares.sign() * kWavenumber;
}

struct Molecules {
  Tensor places, velocities;
};

/// Velocity Verlet (Swope et al. 1982).
template <class Gradients>
Molecules moved(const Gradients& gradients, Molecules now, double time_step, int64_t steps) {
  const Tensor per_force = -0.5 * time_step / masses();
  Tensor push = gradients(now.places) * per_force;
  for (int n = 0; n < steps; ++n) {
    const Tensor halfway = now.velocities + push;
    now.places = now.places + time_step * halfway;
    push = gradients(now.places) * per_force;
    now.velocities = halfway + push;
  }
  return now;
}

int run(int64_t steps) {
  Checks check;
  const auto energy = tower::load_exported<Tensor(Tensor)>(TOWER_EXAMPLES_DIR "/exported_potential/water.pt2");
  fmt::print("The model is {}.\n\n", energy.signature());
  const auto gradient = tower::compile(tower::grad(energy));

  const Tensor start = some_molecule();
  check(largest(gradient(start) - differences(energy, start).view({3, 3})) < 1e-6,
        "its gradient is that of differences of energies");

  const Tensor rest = relaxed(gradient, start);
  const Tensor arms = rest.slice(0, 1) - rest[0], lengths = arms.square().sum(1).sqrt();
  const double angle = std::acos(arms[0].dot(arms[1]).item<double>() / lengths.prod().item<double>());
  check(largest(gradient(rest)) < 1e-8,
        fmt::format("at rest: bonds of {:.4f} and {:.4f} Å, an angle of {:.2f}°", lengths[0].item<double>(),
                    lengths[1].item<double>(), angle * 180 / std::numbers::pi));

  const Tensor hessian = tower::hessian(energy)(rest);
  check(largest(hessian.view({9, 9}) - differences(gradient, rest).view({9, 9})) < 1e-5,
        "its Hessian is that of differences of gradients");
  const Tensor modes = frequencies(hessian);
  check(largest(modes.slice(0, 0, 6)) < 1 && modes[6].item<double>() > 1000,
        fmt::format("normal modes: {:.0f}, {:.0f} and {:.0f} / cm, and six of moving and turning as a whole",
                    modes[6].item<double>(), modes[7].item<double>(), modes[8].item<double>()));

  constexpr int64_t kMolecules = 64;
  constexpr double kTimeStep = 0.2 / kFemtoseconds, kTemperature = 0.025;  // eV
  at::manual_seed(1);
  Molecules molecules{rest.expand({kMolecules, 3, 3}),
                      at::randn({kMolecules, 3, 3}, at::kDouble) * (kTemperature / masses()).sqrt()};
  const auto energies = tower::vmap(energy);
  const auto all = [&](const Molecules& m) {
    return energies(m.places) + 0.5 * (masses() * m.velocities.square()).sum({1, 2});
  };
  const Tensor before = all(molecules);
  const auto gradients = tower::compile(tower::vmap(tower::grad(energy)));
  const double seconds = support::seconds_of([&] { molecules = moved(gradients, molecules, kTimeStep, steps); });
  check(largest(all(molecules) - before) < 2e-3,
        fmt::format("{} molecules for {:.0f} fs: energies change by {:.2f} meV at most, {:.0f} µs a step", kMolecules,
                    0.2 * steps, 1000 * largest(all(molecules) - before), 1e6 * seconds / steps));

  const Tensor hessians = tower::compile(tower::vmap(tower::hessian(energy)))(molecules.places);
  check(largest(hessians[7] - tower::hessian(energy)(molecules.places[7])) < 1e-9,
        "the Hessians of all molecules, in one call, are those of each");
  return check.failed();
}

}  // namespace
}  // namespace exported_potential

int main(int argc, char** argv) {
  int64_t steps = 5000;
  bool brief = false;
  support::CommandLine line("exported_potential",
                            "Molecular dynamics and normal modes of a potential that Python exported");
  line.option("--steps", steps, "of 0.2 fs", {1, 1e8}).flag("--short", brief, "few steps, as a test");
  return line.run(argc, argv, [&] { return exported_potential::run(brief ? 200 : steps) == 0 ? 0 : 1; });
}
