// Derivatives in physics: Newton's method for a material, an integrator, forces between particles.
#pragma once

#include <ATen/ATen.h>

#include "material_newton/hand_derived.h"
#include "material_newton/histories.h"
#include "material_newton/material.h"
#include "material_newton/newton.h"
#include "workloads/engine.h"

namespace workloads {

/// Ten Newton corrections of examples/material_newton, each at every point; by hand with the Jacobian derived on paper.
inline Workload newton(int64_t points, bool forward) {
  using namespace material_newton;
  const auto material = std::make_shared<const Material>(Constants{}, bench::device());
  const Cycles cycles = Cycles::random(points, 1);
  const at::TensorOptions f64 = here(at::kDouble);
  const Step step{cycles.strain(0.1).to(bench::device()), (cycles.period / 10).to(bench::device()),
                  at::zeros({points, 6}, f64), at::zeros({points}, f64)};
  const at::Tensor start = first_guess_by_hand(*material, step);
  constexpr int kCorrections = 10;
  const auto with = [=](const Engine& engine) -> Work {
    const Function residual = [material](const Tensors& a) -> Tensors {
      return {material->residual(a[0], Step{a[1], a[2], a[3], a[4]})};
    };
    const Function jacobian = forward ? engine.jacfwd(residual) : engine.jacrev(residual);
    const Function correct = [=](const Tensors& a) -> Tensors {
      return {a[0] - at::linalg_solve(jacobian(a)[0], residual(a)[0])};
    };
    return [=, mapped = engine.vmap(correct, Dims(5, 0))] {
      Tensors a{start, step.strain_increment, step.duration, step.stress, step.plastic_strain};
      for (int i = 0; i < kCorrections; ++i) a[0] = mapped(a)[0];
      return Tensors{a[0]};
    };
  };
  const Work by_hand = [=]() -> Tensors {
    const Correction correct = correct_by_hand(*material);
    at::Tensor x = start;
    for (int i = 0; i < kCorrections; ++i) x = correct(x, step).first;
    return {x};
  };
  return {"Newton, " + std::to_string(points) + " points, " + (forward ? "jacfwd" : "jacrev"), with, by_hand, 0.8};
}

/// Classical Runge-Kutta, 200 steps of three coupled oscillators; the gradient of the last state's energy by the start
/// and the stiffness, for each trajectory.
inline Workload integrator(int64_t trajectories) {
  const Tensors arguments{at::randn({trajectories, 6}, here()), at::rand({trajectories, 3}, here()) + 0.5};
  const auto with = [=](const Engine& engine) -> Work {
    const Function energy = [](const Tensors& a) -> Tensors {
      const at::Tensor& stiffness = a[1];
      const auto slope = [&](const at::Tensor& y) {
        const at::Tensor q = y.slice(0, 0, 3), v = y.slice(0, 3, 6);
        return at::cat({v, -stiffness * q - 0.1 * q * q * q + 0.2 * q.roll(1)});
      };
      constexpr double h = 0.02;
      at::Tensor y = a[0];
      for (int i = 0; i < 200; ++i) {
        const at::Tensor k1 = slope(y), k2 = slope(y + h / 2 * k1), k3 = slope(y + h / 2 * k2), k4 = slope(y + h * k3);
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4);
      }
      return {y.square().sum()};
    };
    return [=, gradients = engine.vmap(engine.grad(energy, {0, 1}), {0, 0})] { return gradients(arguments); };
  };
  return {"integrator, 200 steps, vmap(grad), " + std::to_string(trajectories), with, {}, 0.8};
}

/// Forces between 256 particles, the gradient of the sum of Lennard-Jones energies of all pairs.
inline Workload lennard_jones() {
  constexpr int64_t kParticles = 256;
  const at::TensorOptions f64 = here(at::kDouble);
  const at::Tensor grid = at::arange(8, f64) * 1.2;
  const at::Tensor lattice = at::cartesian_prod({grid, grid, grid}).slice(0, 0, kParticles);
  const at::Tensor positions = lattice + 0.1 * at::randn({kParticles, 3}, f64);
  const at::Tensor itself = at::eye(kParticles, f64);
  const auto with = [=](const Engine& engine) -> Work {
    const Function energy = [=](const Tensors& a) -> Tensors {
      const at::Tensor apart = a[0].unsqueeze(0) - a[0].unsqueeze(1);
      const at::Tensor squared = apart.square().sum(-1) + itself;
      const at::Tensor sixth = squared.pow(-3) * (1 - itself);
      return {2 * (sixth * sixth - sixth).sum()};
    };
    return [=, gradient = engine.grad(energy, {0})] { return gradient({positions}); };
  };
  const Work by_hand = [=]() -> Tensors {
    const at::Tensor apart = positions.unsqueeze(0) - positions.unsqueeze(1);
    const at::Tensor inverse = (apart.square().sum(-1) + itself).reciprocal();
    const at::Tensor sixth = inverse * inverse * inverse * (1 - itself);
    const at::Tensor factor = (24 * sixth - 48 * sixth * sixth) * inverse;  // of apart, the force on the first index
    return {(factor.unsqueeze(-1) * apart).sum(0)};
  };
  return {"Lennard-Jones forces, 256 particles", with, by_hand, 0.8};
}

}  // namespace workloads
