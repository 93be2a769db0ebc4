// Two electrons and a nucleus of charge two, in Hartree's units, the nucleus at rest; and a wave function of Hylleraas
// (Zeitschrift fuer Physik 54, 347, 1929), with s = r1 + r2, t = r2 - r1, u the distance of the electrons:
//
//   psi = exp(-zeta s) (1 + c1 u + c2 t²)
//
// Everything is written for one place x of both electrons, six numbers.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/taylor.h>
#include <tower/tower.h>

#include <tuple>

namespace schroedinger {

using at::Tensor;

struct Distances {
  Tensor first, second, between;
};

inline Distances distances(const Tensor& x) {
  const Tensor a = x.narrow(0, 0, 3), b = x.narrow(0, 3, 3);
  const auto length = [](const Tensor& v) { return v.square().sum().sqrt(); };
  return {length(a), length(b), length(a - b)};
}

/// The parameters are {zeta, c1, c2}.
inline Tensor wave_function(const Tensor& parameters, const Tensor& x) {
  const auto [first, second, u] = distances(x);
  const Tensor s = first + second, t = second - first;
  return (-parameters[0] * s).exp() * (1 + parameters[1] * u + parameters[2] * t.square());
}

/// -½ Δψ / ψ + V: what an exact wave function has the same everywhere, the energy.
inline Tensor local_energy(const Tensor& parameters, const Tensor& x) {
  const auto [value, laplacian] =
      tower::laplacian([&](const Tensor& place) { return wave_function(parameters, place); })(x);
  const auto [first, second, between] = distances(x);
  return -0.5 * laplacian / value - 2 / first - 2 / second + 1 / between;
}

/// What a place says: its local energy, and the derivatives of log |ψ| by the parameters.
inline std::pair<Tensor, Tensor> measure(const Tensor& parameters, const Tensor& x) {
  const auto logarithm = [&](const Tensor& p) { return wave_function(p, x).abs().log(); };
  return {local_energy(parameters, x), tower::grad(logarithm)(parameters)};
}

/// A step of Metropolis' algorithm: to x + move where the density |ψ|² there is large enough, beside a uniform number.
/// Also gives whether it went.
inline std::pair<Tensor, Tensor> walk(const Tensor& parameters, const Tensor& x, const Tensor& move,
                                      const Tensor& uniform) {
  const Tensor there = x + move;
  const auto density = [&](const Tensor& place) { return wave_function(parameters, place).square(); };
  const Tensor goes = uniform * density(x) < density(there);
  return {at::where(goes, there, x), goes.to(x.scalar_type())};
}

}  // namespace schroedinger
