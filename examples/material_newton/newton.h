// Newton's method for a batch of material points, and the corrections it is built from: by Tower, from the residual of
// one point, or by hand.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tower/tower.h>

#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "hand_derived.h"
#include "material.h"

namespace material_newton {

/// From the unknowns of a batch {n, 7} to better ones, and the residuals' norms {n} [MPa] before the correction.
using Correction = std::function<std::pair<at::Tensor, at::Tensor>(const at::Tensor& x, const Step& step)>;

/// Newton's correction for ONE point: x − J⁻¹ r with the Jacobian of the residual as it is written.
inline std::pair<at::Tensor, at::Tensor> correct_one_point(const Material& material, const at::Tensor& x,
                                                           const Step& step) {
  const auto residual = [&](const at::Tensor& at_x) {
    const at::Tensor r = material.residual(at_x, step);
    return std::pair(r, r);  // to differentiate, and to keep
  };
  const auto [jacobian, r] = tower::jacfwd(residual, tower::has_aux)(x);
  return {x - at::linalg_solve(jacobian, r), r.norm()};
}

/// The same for a batch: this line is all that batching takes.
inline Correction correct_with_tower(const Material& material) {
  return tower::vmap([&](const at::Tensor& x, const Step& step) { return correct_one_point(material, x, step); });
}

/// And as machine code: traced with its first arguments, compiled where it is called again.
inline Correction compiled_correction(const Material& material) {
  return tower::compile(
      tower::vmap([&](const at::Tensor& x, const Step& step) { return correct_one_point(material, x, step); }));
}

/// Where Newton starts, for a batch.
inline at::Tensor first_guess(const Material& material, const Step& step) {
  return tower::vmap([&](const Step& one) { return material.first_guess(one); })(step);
}

/// The correction of a batch once more, batched and differentiated by hand.
inline Correction correct_by_hand(const Material& material) {
  return [&](const at::Tensor& x, const Step& step) {
    const Linearised l = linearise_by_hand(material, x, step);
    return std::pair(x - at::linalg_solve(l.jacobian, l.residual), l.residual.norm(2, {1}));
  };
}

/// Consistent tangent dσ/dΔε {6, 6} of ONE point at the solution x of its step. What was solved holds for every strain,
/// r(x(Δε), Δε) = 0: that makes x a function of the strain, and the first six rows of its Jacobian are the stress's.
inline at::Tensor tangent_of_one_point(const Material& material, const at::Tensor& x, const Step& step) {
  const auto residual = [&material, step](const at::Tensor& at_x, const at::Tensor& strain_increment) {
    return material.residual(at_x, {strain_increment, step.duration, step.stress, step.plastic_strain});
  };
  const auto solved = tower::implicit_root(residual, [x](const at::Tensor&) { return x; });
  return tower::jacfwd(solved)(step.strain_increment).narrow(0, 0, 6);
}

struct Solution {
  at::Tensor x;                   // {n, 7}
  std::vector<at::Tensor> norms;  // residuals' norms {n} [MPa] before each correction
};

/// Corrects until no point's residual is above the tolerance [MPa].
inline Solution solve(const Correction& correct, at::Tensor x, const Step& step, double tolerance) {
  constexpr int most_corrections = 30;
  Solution solution{std::move(x), {}};
  for (int i = 0; i < most_corrections; ++i) {
    auto [corrected, norm] = correct(solution.x, step);
    solution.x = corrected;
    solution.norms.push_back(norm);
    // NaN compares false: a point that went astray does not pass.
    if (norm.le(tolerance).all().item<bool>()) return solution;
  }
  throw std::runtime_error(fmt::format("Newton: a residual of {:.1e} MPa is left after {} corrections",
                                       solution.norms.back().max().item<double>(), most_corrections));
}

}  // namespace material_newton
