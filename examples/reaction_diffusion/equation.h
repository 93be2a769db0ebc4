// Fisher's equation u_t = D Δu + ρ u (1 − u) on a square, by five points in space and the trapezoidal rule in time. A
// plane front is a closed form of it (Ablowitz and Zeppetella 1979): for D = ρ = 1
//
//   u = (1 + exp((s − 5 t/√6) / √6))⁻²,  s = the distance along any direction.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

namespace reaction_diffusion {

using at::Tensor;

struct Grid {
  int64_t n;  // unknowns along a side, without the walls
  double length = 20;

  double spacing() const { return length / static_cast<double>(n + 1); }
};

struct Coefficients {
  Tensor diffusivity, rate;
};
constexpr auto tower_fields(const Coefficients&) { return std::tuple(&Coefficients::diffusivity, &Coefficients::rate); }

inline Coefficients of_the_closed_form() { return {at::ones({}, at::kDouble), at::ones({}, at::kDouble)}; }

/// The front at time t, on all points with the walls: {n + 2, n + 2}.
inline Tensor front(const Grid& grid, double t) {
  constexpr double kAngle = 0.5;
  const Tensor x = at::linspace(0, grid.length, grid.n + 2, at::kDouble);
  const Tensor s = std::cos(kAngle) * x.unsqueeze(1) + std::sin(kAngle) * x - 0.4 * grid.length;
  return (1 + ((s - 5 * t / std::sqrt(6)) / std::sqrt(6)).exp()).pow(-2);
}
inline Tensor inside(const Tensor& wide) { return wide.slice(0, 1, -1).slice(1, 1, -1); }
/// Its values on the walls, zeros inside.
inline Tensor walls(const Grid& grid, double t) {
  Tensor wide = front(grid, t);
  inside(wide).zero_();
  return wide;
}

/// u_t, from u inside and on the walls.
inline Tensor rate_of_change(const Grid& grid, const Coefficients& c, const Tensor& u, const Tensor& on_walls) {
  const Tensor wide = at::constant_pad_nd(u, {1, 1, 1, 1}) + on_walls;
  const auto shifted = [&](int64_t i, int64_t j) { return wide.narrow(0, i, grid.n).narrow(1, j, grid.n); };
  const Tensor laplacian = shifted(0, 1) + shifted(2, 1) + shifted(1, 0) + shifted(1, 2) - 4 * u;
  return c.diffusivity / (grid.spacing() * grid.spacing()) * laplacian + c.rate * u * (1 - u);
}

/// One step: the walls before and after it, and what must vanish.
struct Step {
  Grid grid;
  double duration;
  Tensor walls_before, walls_after;

  Tensor residual(const Tensor& u, const Tensor& before, const Coefficients& c) const {
    return u - before -
           duration / 2 * (rate_of_change(grid, c, u, walls_after) + rate_of_change(grid, c, before, walls_before));
  }
};

inline Step step_at(const Grid& grid, double t, double duration) {
  return {grid, duration, walls(grid, t), walls(grid, t + duration)};
}

}  // namespace reaction_diffusion
