// The material: small strains, isotropic elasticity, von Mises plasticity that hardens by Swift's law with the exponent
// 1/2. For ONE material point.
//
// Stress and strain are as Abaqus has them: six components, 11, 22, 33, 12, 13, 23, and shear strains γ = 2ε. One
// implicit step from (σₙ, pₙ) over the strain increment Δε solves
//
//   σ   = σₙ + C Δε − 2G Δp n,   n = 3/2 s / σ_eq     s: deviator of σ, σ_eq: its von Mises value
//   σ_eq = σ_y(pₙ + Δp),         σ_y(p) = σ₀ √(1 + p / p₀)
//
// for σ and the increment Δp of the equivalent plastic strain.
#pragma once

#include <ATen/ATen.h>
#include <tower/tower.h>

#include <tuple>
#include <utility>

namespace umat {

using at::Tensor;

/// As an input file lists them.
struct Constants {
  Tensor young, poisson, yield_stress, hardening_strain;  // E, ν, σ₀, p₀

  explicit Constants(const Tensor& properties)
      : young(properties[0]), poisson(properties[1]), yield_stress(properties[2]), hardening_strain(properties[3]) {}
  Tensor shear() const { return young / (2 * (1 + poisson)); }                           // G
  Tensor lame() const { return young * poisson / ((1 + poisson) * (1 - 2 * poisson)); }  // λ
  Tensor hardened(const Tensor& p) const { return yield_stress * (1 + p / hardening_strain).sqrt(); }
};

/// σₙ + C Δε
inline Tensor elastic_trial(const Constants& c, const Tensor& stress, const Tensor& strain) {
  const Tensor normal = strain.narrow(0, 0, 3), shear = strain.narrow(0, 3, 3);
  return stress + at::cat({c.lame() * normal.sum() + 2 * c.shear() * normal, c.shear() * shear});
}

inline Tensor deviator(const Tensor& stress) {
  const Tensor normal = stress.narrow(0, 0, 3);
  return at::cat({normal - normal.sum() / 3, stress.narrow(0, 3, 3)});
}

/// 3/2 s:s, the square of the von Mises stress.
inline Tensor squared_von_mises(const Tensor& s) {
  return 1.5 * (s.narrow(0, 0, 3).square().sum() + 2 * s.narrow(0, 3, 3).square().sum());
}

/// A step of a point: what is given.
struct Step {
  Tensor stress, strain_increment, plastic_strain, properties;
};
constexpr auto tower_fields(const Step&) {
  return std::tuple(&Step::stress, &Step::strain_increment, &Step::plastic_strain, &Step::properties);
}

/// What must vanish: how far x = (σ, 3GΔp) is from solving the step; all seven are stresses.
inline Tensor residual(const Tensor& x, const Step& step) {
  const Constants c(step.properties);
  const Tensor stress = x.narrow(0, 0, 6), drop = x[6];
  const Tensor trial = elastic_trial(c, step.stress, step.strain_increment);
  const Tensor yields = squared_von_mises(deviator(trial)) > c.hardened(step.plastic_strain).square();
  const Tensor s = deviator(stress);
  // A point that stays elastic may be without stress, and its direction without meaning: the root gets what does no
  // harm.
  const Tensor von_mises = at::where(yields, squared_von_mises(s), c.yield_stress.square()).sqrt();
  const Tensor flow = von_mises - c.hardened(step.plastic_strain + drop / (3 * c.shear()));
  return at::cat({stress - trial + drop * s / von_mises, at::where(yields, flow, drop).unsqueeze(0)});
}

/// Newton's method, until the residual is rounding.
inline Tensor solved(const Step& step) {
  const Tensor enough = 1e-11 * step.properties[2];
  const auto correct = [step](const Tensor& x) {
    const auto with_value = [&](const Tensor& at) {
      const Tensor r = residual(at, step);
      return std::pair(r, r);
    };
    const auto [jacobian, r] = tower::jacfwd(with_value, tower::has_aux)(x);
    return x - at::linalg_solve(jacobian, r);
  };
  const Tensor guess =
      at::constant_pad_nd(elastic_trial(Constants(step.properties), step.stress, step.strain_increment), {0, 1});
  return tower::while_loop([=](const Tensor& x) { return residual(x, step).norm() > enough; }, correct, guess,
                           {.max_steps = 30});
}

/// Stress and equivalent plastic strain at the end of a step, and the consistent tangent ∂σ/∂Δε. What was solved holds
/// for every strain, r(x(Δε), Δε) = 0: so x is a function of the strain, with the derivative −(∂r/∂x)⁻¹ ∂r/∂Δε.
inline std::tuple<Tensor, Tensor, Tensor> point(const Tensor& stress, const Tensor& strain_increment,
                                                const Tensor& plastic_strain, const Tensor& properties) {
  const Step step{stress, strain_increment, plastic_strain, properties};
  const Tensor x = solved(step);
  const Tensor by_x = tower::jacfwd([&](const Tensor& at) { return residual(at, step); })(x);
  const Tensor by_strain = tower::jacfwd([&](const Tensor& increment) {
    return residual(x, Step{stress, increment, plastic_strain, properties});
  })(strain_increment);
  const Tensor tangent = -at::linalg_solve(by_x, by_strain).narrow(0, 0, 6);
  return {x.narrow(0, 0, 6), plastic_strain + x[6] / (3 * Constants(properties).shear()), tangent};
}

}  // namespace umat
