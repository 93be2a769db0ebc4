// What residuals contribute to the cost of a fit.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "core/operator.h"
#include "tower/errors.h"
#include "tower/least_squares.h"

namespace tower::solvers {

/// ρ(z) and its first two derivatives.
struct Contributions {
  Tensor value, first, second;
};

inline Contributions contributions(Loss::Kind kind, const Tensor& z) {
  const auto where = [&](const Tensor& far) { return at::where(z <= 1, at::ones_like(z), far); };
  const Tensor beyond = z.clamp_min(1), root = beyond.sqrt(), next = 1 + z;
  switch (kind) {
    case Loss::Kind::squares:
      return {z, at::ones_like(z), at::zeros_like(z)};
    case Loss::Kind::huber:
      return {at::where(z <= 1, z, 2 * root - 1), where(1 / root), at::where(z <= 1, 0., -0.5 / (root * beyond))};
    case Loss::Kind::soft_l1:
      return {2 * (next.sqrt() - 1), next.rsqrt(), -0.5 * next.rsqrt() / next};
    case Loss::Kind::cauchy:
      return {z.log1p(), 1 / next, -1 / next.square()};
  }
  throw ArgumentError("least_squares: there is no such loss. Those that there are: squares, huber, soft_l1, cauchy.");
}

}  // namespace tower::solvers
