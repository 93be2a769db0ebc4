// Sums over directions of the K-th derivatives along them, K being two or more: every value carries its first K - 1
// derivatives along R directions, stacked in front, and one sum over the directions of the K-th, for the highest
// derivative enters each operator linearly ("collapsed" Taylor mode: Dangel et al., 2025; the forward Laplacian of Li
// et al., 2023, is K = 2):
//
//   y = f(x)    Tᵧ = Df(x) Tₓ, by direction    Lᵧ = Df(x) Lₓ + Σ D²f(x)[Tₓ, Tₓ]
//
//   affine       the operator on T and on L
//   pointwise    f'(x) T and f'(x) L + f''(x) Σ T², where K is two
//   products     Leibniz' rule, with 2 Σ of the product of both T
//   others       the last term by series of order K (taylor/growing.h), mapped over the directions and summed
#pragma once

#include "taylor/collapsed_level.h"

namespace tower::taylor {

/// Which derivatives are summed.
struct Summed {
  size_t order;         // K
  int64_t directions;   // R
  Tensor weights = {};  // one number for each direction; undefined: ones
};

class Collapsed final : public CollapsedLevel {
 public:
  Collapsed(const char* label, Summed summed);

 private:
  Carried carry(const CollapsedCall& call, Growth growth) const override;

  Summed summed_;
};

}  // namespace tower::taylor
