// Simple shear at constant rate, for which the rate-independent material has a closed form: von Mises stress √3 τ,
// equivalent strain γ/√3, and the flow direction never turns.
#pragma once

#include <cmath>
#include <vector>

#include "newton.h"

namespace material_newton {

/// τ(γ) [MPa] of the rate-independent material without saturation (Q = 0):
/// √3 τ = √3 G γ until σ₀ is reached; then √3 τ = σ₀ + H p and √3 τ = 3G (γ/√3 − p), solved for p.
inline double closed_form_linear(const Material& m, double gamma) {
  const double elastic = std::sqrt(3) * m.shear() * gamma;
  const double p = std::max(0.0, (elastic - m.c.yield_stress) / (3 * m.shear() + m.c.hardening));
  return (elastic - 3 * m.shear() * p) / std::sqrt(3);
}

/// The same with saturation, as a curve over p: {γ, τ} where √3 τ = σ_y(p) and γ/√3 = p + σ_y(p)/3G.
inline std::pair<double, double> closed_form_saturating(const Material& m, double p) {
  const Constants& c = m.c;
  const double yield = c.yield_stress + c.hardening * p + c.saturation * (1 - std::exp(-c.saturation_rate * p));
  return {std::sqrt(3) * (p + yield / (3 * m.shear())), yield / std::sqrt(3)};
}

/// How far τ lies above the closed form in steady flow with linear hardening at the shear rate γ̇: p grows at
/// γ̇/√3 · 3G/(3G+H), its overstress is carried, and H p falls short by the plastic strain that the overstress delays.
inline double steady_excess(const Material& m, double shear_rate) {
  const double share = 3 * m.shear() / (3 * m.shear() + m.c.hardening);
  const double rate = share * shear_rate / std::sqrt(3);
  return share * m.c.drag * std::asinh(rate / m.c.reference_rate) / std::sqrt(3);
}

struct ShearTest {
  std::vector<double> gamma;                    // {steps + 1}, from 0
  std::vector<at::Tensor> tau, plastic_strain;  // [MPa] and without unit; {rates} at each γ
};

/// Shears one point for each rate [1/s] up to γ = `most`, all of them as one batch.
inline ShearTest shear(const Material& m, const Correction& correct, const std::vector<double>& rates, double most,
                       int steps, double tolerance) {
  const int64_t n = static_cast<int64_t>(rates.size());
  const at::TensorOptions f64 = at::dtype(at::kDouble);
  const double gamma_increment = most / steps;
  Step step{at::zeros({n, 6}, f64), gamma_increment / at::tensor(rates, f64), at::zeros({n, 6}, f64),
            at::zeros({n}, f64)};
  step.strain_increment.select(1, 5).fill_(gamma_increment / std::sqrt(2));  // √2 ε₁₂, and ε₁₂ = γ/2

  ShearTest test{{0.0}, {at::zeros({n}, f64)}, {step.plastic_strain}};
  for (int i = 1; i <= steps; ++i) {
    const Solution solution = solve(correct, first_guess(m, step), step, tolerance);
    step = m.advance(step, solution.x);
    test.gamma.push_back(i * gamma_increment);
    test.tau.push_back(step.stress.select(1, 5) / std::sqrt(2));
    test.plastic_strain.push_back(step.plastic_strain);
  }
  return test;
}

}  // namespace material_newton
