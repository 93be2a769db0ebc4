// What the points go through: strain histories that all differ in direction, size and speed.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <numbers>

namespace material_newton {

/// Closed, non-proportional strain cycles of n points: ε(t) = A (d₁ sin 2πt + d₂ (1 − cos 2πt) / 2), t from 0 to 1.
struct Cycles {
  at::Tensor amplitude;      // A {n}: from 0.2 % to 2 %; some points stay elastic, some are at rest
  at::Tensor first, second;  // d₁, d₂ {n, 6}: unit tensors
  at::Tensor period;         // {n} [s]: such that the strain moves at 1e-6 to 0.1 per second

  static Cycles random(int64_t points, uint64_t seed) {
    at::Generator generator = at::detail::createCPUGenerator(seed);
    const at::TensorOptions f64 = at::dtype(at::kDouble);
    const auto powers_of_ten = [&](double low, double high) {
      return at::pow(10.0, low + (high - low) * at::rand({points}, generator, f64));
    };
    const auto direction = [&] {
      const at::Tensor d = at::randn({points, 6}, generator, f64);
      return d / d.norm(2, {1}, true);
    };
    Cycles cycles;
    cycles.first = direction();
    cycles.second = direction();
    cycles.amplitude = powers_of_ten(std::log10(0.002), std::log10(0.02));
    cycles.period = 4 * cycles.amplitude / powers_of_ten(-6, -1);
    const at::Tensor number = at::arange(points);
    cycles.amplitude.masked_fill_(at::remainder(number, 20) == 10, 1e-4);
    cycles.amplitude.masked_fill_(at::remainder(number, 100) == 0, 0.0);
    return cycles;
  }

  /// The mean rate of strain over the cycle {n} [1/s].
  at::Tensor rate() const { return 4 * amplitude / period; }

  /// ε(t) {n, 6}
  at::Tensor strain(double t) const {
    const double angle = 2 * std::numbers::pi * t;
    return amplitude.unsqueeze(1) * (std::sin(angle) * first + (1 - std::cos(angle)) / 2 * second);
  }
};

}  // namespace material_newton
