// The material: small strains, isotropic elasticity, von Mises (J2) plasticity with isotropic hardening, and Perzyna's
// overstress viscosity. Everything in this file speaks of ONE material point; Tower makes the batch and the
// derivatives.
//
// Units: stress in MPa, strain without unit, time in s. A symmetric tensor is a vector of six components in Mandel's
// notation (11, 22, 33, √2·23, √2·13, √2·12), in which the double contraction a:b is the plain dot product.
//
// One implicit (backward Euler) step from (σₙ, pₙ) over the strain increment Δε in the time Δt solves
//
//   σ  = σₙ + C : (Δε − Δp n),   n = 3/2 s / σ_eq            s: deviator of σ, σ_eq: its von Mises value
//   Δp = Δt ṗ₀ sinh ⟨(σ_eq − σ_y(p)) / σ_d⟩,  p = pₙ + Δp    Perzyna: the overstress drives the plastic flow
//   σ_y(p) = σ₀ + H p + Q (1 − exp(−b p))                    linear and saturating (Voce) hardening
//
// for σ and the increment Δp of the equivalent plastic strain. At rates far below ṗ₀ the overstress vanishes, and the
// rate-independent material remains.
#pragma once

#include <ATen/ATen.h>

#include <tuple>

namespace material_newton {

/// Constants of a steel-like metal.
struct Constants {
  double young = 210'000;        // E   [MPa]
  double poisson = 0.3;          // ν
  double yield_stress = 250;     // σ₀  [MPa]
  double hardening = 1500;       // H   [MPa]
  double saturation = 120;       // Q   [MPa]
  double saturation_rate = 40;   // b
  double drag = 10;              // σ_d [MPa]
  double reference_rate = 1e-3;  // ṗ₀  [1/s]
};

/// A load step of one point, or of many with a leading dimension: what is given.
struct Step {
  at::Tensor strain_increment;  // Δε {6}
  at::Tensor duration;          // Δt {} [s]
  at::Tensor stress;            // σₙ {6} [MPa], at the start of the step
  at::Tensor plastic_strain;    // pₙ {}, at the start of the step
};
// Makes it a tree: transforms reach the tensors inside.
constexpr auto tower_fields(const Step&) {
  return std::tuple(&Step::strain_increment, &Step::duration, &Step::stress, &Step::plastic_strain);
}

class Material {
 public:
  explicit Material(const Constants& constants, at::Device device = at::kCPU) : c(constants) {
    const at::TensorOptions f64 = at::dtype(at::kDouble).device(device);
    at::Tensor identity = at::zeros({6}, f64);
    identity.narrow(0, 0, 3).fill_(1);
    deviator = at::eye(6, f64) - at::outer(identity, identity) / 3;
    elasticity = lame() * at::outer(identity, identity) + 2 * shear() * at::eye(6, f64);
  }

  /// What must vanish: how far x = (σ, 3GΔp) is from solving the step. All seven unknowns and all seven residuals are
  /// stresses in MPa: 3GΔp is the drop of the von Mises stress from its elastic trial value to the solution.
  at::Tensor residual(const at::Tensor& x, const Step& step) const {
    const at::Tensor stress = x.narrow(0, 0, 6);
    const at::Tensor drop = x.select(0, 6);
    const at::Tensor trial = elastic_trial(step);
    const at::Tensor yields = is_beyond_yield(trial, step.plastic_strain);

    // An unstressed point has no flow direction. The root gets a harmless argument where a point stays elastic: a
    // derivative 0/0 would outlive a where() that comes after it.
    const at::Tensor s = at::mv(deviator, stress);
    const at::Tensor von_mises = at::where(yields, 1.5 * at::dot(s, s), c.yield_stress * c.yield_stress).sqrt();
    const at::Tensor increment = drop / (3 * shear());  // Δp

    const at::Tensor stress_residual = stress - trial + (drop / von_mises) * s;  // 2GΔp n = 3GΔp s / σ_eq
    const at::Tensor flow_residual =
        flow_stress(step.plastic_strain + increment, increment / step.duration) - von_mises;
    return at::cat({stress_residual, at::where(yields, flow_residual, drop).unsqueeze(0)});
  }

  /// Where Newton starts: the step taken elastically, with no plastic flow.
  at::Tensor first_guess(const Step& step) const { return at::constant_pad_nd(elastic_trial(step), {0, 1}); }

  /// Where the next step starts once x solves this one; for one point or for a batch.
  Step advance(Step step, const at::Tensor& x) const {
    step.stress = x.narrow(-1, 0, 6);
    step.plastic_strain = step.plastic_strain + x.select(-1, 6) / (3 * shear());
    return step;
  }

  /// σₙ + C : Δε
  at::Tensor elastic_trial(const Step& step) const { return step.stress + at::mv(elasticity, step.strain_increment); }

  at::Tensor is_beyond_yield(const at::Tensor& trial, const at::Tensor& plastic_strain) const {
    const at::Tensor s = at::mv(deviator, trial);
    return 1.5 * at::dot(s, s) > at::square(hardened_yield_stress(plastic_strain));
  }

  /// The von Mises stress while the material flows: σ_y(p) and the overstress of the rate ṗ.
  at::Tensor flow_stress(const at::Tensor& p, const at::Tensor& rate) const {
    return hardened_yield_stress(p) + c.drag * at::asinh(rate / c.reference_rate);
  }

  /// σ_y(p)
  at::Tensor hardened_yield_stress(const at::Tensor& p) const {
    return c.yield_stress + c.hardening * p - c.saturation * at::expm1(-c.saturation_rate * p);
  }

  double shear() const { return c.young / (2 * (1 + c.poisson)); }                               // G [MPa]
  double lame() const { return c.young * c.poisson / ((1 + c.poisson) * (1 - 2 * c.poisson)); }  // λ [MPa]

  Constants c;
  at::Tensor elasticity;  // C {6, 6} [MPa]
  at::Tensor deviator;    // {6, 6}: takes a stress to its deviator
};

}  // namespace material_newton
