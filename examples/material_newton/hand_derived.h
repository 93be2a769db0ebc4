// The same material written the way it is done without Tower: the whole batch at once, and the derivatives worked out
// on paper. Every formula of material.h appears here a second time with the batch dimension threaded through it, and a
// third time differentiated; a change to the model is a change in three places. The demo and bench/material_newton.cpp
// hold Tower against it, for equality and for time.
#pragma once

#include "material.h"

namespace material_newton {

/// Residuals {n, 7} and their derivatives with respect to the unknowns {n, 7, 7}.
struct Linearised {
  at::Tensor residual;
  at::Tensor jacobian;
};

inline at::Tensor dot_rows(const at::Tensor& a, const at::Tensor& b) { return (a * b).sum(-1); }

/// The elastic trial stresses of a batch {n, 6}.
inline at::Tensor trial_by_hand(const Material& m, const Step& step) {
  return step.stress + at::mm(step.strain_increment, m.elasticity);
}

inline at::Tensor first_guess_by_hand(const Material& m, const Step& step) {
  return at::constant_pad_nd(trial_by_hand(m, step), {0, 1});
}

/// Residual and Jacobian of a batch:
///
///   ∂r_σ/∂σ = I + 3GΔp ∂(s/σ_eq)/∂σ,     ∂(s/σ_eq)/∂σ = (P − 3/2 s⊗s / σ_eq²) / σ_eq     (P: the deviator)
///   ∂r_σ/∂(3GΔp) = s / σ_eq
///   ∂r_p/∂σ = −3/2 s / σ_eq
///   ∂r_p/∂(3GΔp) = (H + Q b exp(−b p) + σ_d / √(Δt² ṗ₀² + Δp²)) / 3G
inline Linearised linearise_by_hand(const Material& m, const at::Tensor& x, const Step& step) {
  const Constants& c = m.c;
  const double three_g = 3 * m.shear();
  const at::Tensor stress = x.narrow(1, 0, 6);
  const at::Tensor drop = x.select(1, 6);

  const at::Tensor trial = trial_by_hand(m, step);
  const at::Tensor trial_deviator = at::mm(trial, m.deviator);
  const at::Tensor yields =
      1.5 * dot_rows(trial_deviator, trial_deviator) > at::square(m.hardened_yield_stress(step.plastic_strain));

  const at::Tensor s = at::mm(stress, m.deviator);
  const at::Tensor von_mises = at::where(yields, 1.5 * dot_rows(s, s), c.yield_stress * c.yield_stress).sqrt();
  const at::Tensor direction = s / von_mises.unsqueeze(1);
  const at::Tensor increment = drop / three_g;
  const at::Tensor p = step.plastic_strain + increment;

  at::Tensor residual = at::empty_like(x);
  residual.narrow(1, 0, 6).copy_(stress - trial + drop.unsqueeze(1) * direction);
  residual.select(1, 6).copy_(at::where(yields, m.flow_stress(p, increment / step.duration) - von_mises, drop));

  const at::Tensor slope = c.hardening + c.saturation * c.saturation_rate * at::exp(-c.saturation_rate * p) +
                           c.drag / at::hypot(c.reference_rate * step.duration, increment);
  const at::Tensor flowing = yields.to(x.scalar_type()).unsqueeze(1);
  const at::Tensor along_flow = (1.5 * flowing).unsqueeze(2) * direction.unsqueeze(2) * direction.unsqueeze(1);
  at::Tensor jacobian = at::empty({x.size(0), 7, 7}, x.options());
  at::Tensor stress_by_stress = jacobian.narrow(1, 0, 6).narrow(2, 0, 6);
  stress_by_stress.copy_((drop / von_mises).view({-1, 1, 1}) * (m.deviator - along_flow));
  stress_by_stress.diagonal(0, 1, 2).add_(1);
  jacobian.narrow(1, 0, 6).select(2, 6).copy_(direction);
  jacobian.select(1, 6).narrow(1, 0, 6).copy_(-1.5 * flowing * direction);
  jacobian.select(1, 6).select(1, 6).copy_(at::where(yields, slope / three_g, 1.0));
  return {residual, jacobian};
}

}  // namespace material_newton
