// Motion around a mass, in a plane: the equation, and its solution where the mass is a point.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <array>
#include <cmath>

namespace orbits {

using at::Tensor;

/// y = (position, velocity). `mu` is the mass times the constant of gravity; with `oblateness` the attraction grows
/// towards the mass by 1 + oblateness / r², as over the equator of a flattened one.
struct Attraction {
  Tensor mu;
  double oblateness = 0;

  Tensor operator()(const Tensor& y) const {
    const Tensor position = y.narrow(0, 0, 2), velocity = y.narrow(0, 2, 2);
    const Tensor r2 = position.square().sum();
    Tensor pull = mu * r2.pow(-1.5);
    if (oblateness != 0) pull = pull * (1 + oblateness / r2);
    return at::cat({velocity, -pull * position});
  }
};

/// An orbit of semi-major axis 1 around mu = 1 where it is nearest to the mass, at (1 - e, 0).
inline Tensor nearest_point(const Tensor& e) {
  const Tensor zero = at::zeros_like(e);
  return at::stack({1 - e, zero, zero, ((1 + e) / (1 - e)).sqrt()});
}

struct Place {
  std::array<double, 4> y;     // after a time t
  std::array<double, 2> by_e;  // derivative of the position by the eccentricity
};

/// Kepler's equation: E - e sin E = t.
inline Place exact(double e, double t) {
  double E = t;
  for (int i = 0; i < 60; ++i) E -= (E - e * std::sin(E) - t) / (1 - e * std::cos(E));
  const double c = std::cos(E), s = std::sin(E), b = std::sqrt(1 - e * e), rate = 1 / (1 - e * c);
  const double E_by_e = s * rate;
  return {{c - e, b * s, -s * rate, b * c * rate}, {-s * E_by_e - 1, b * c * E_by_e - e / b * s}};
}

}  // namespace orbits
