// laplacian: every value carries its first derivatives along D directions, stacked in front, and one sum over the
// directions of the second ones, for the highest derivative enters each operator linearly ("collapsed" Taylor mode:
// Dangel et al., 2025; the forward Laplacian of Li et al., 2023):
//
//   y = f(x)    Tᵧ = Df(x) Tₓ, by direction    Lᵧ = Df(x) Lₓ + Σ D²f(x)[Tₓ, Tₓ]
//
//   affine       the operator on T and on L
//   pointwise    f'(x) T and f'(x) L + f''(x) Σ T²
//   products     Leibniz' rule, with 2 Σ of the product of both T
//   others       the last term by series of order two (taylor/growing.h), mapped over the directions and summed
#pragma once

#include "core/level.h"
#include "core/wrapper.h"

namespace tower::taylor {

class Collapsed final : public Level {
 public:
  Collapsed(const char* label, int64_t directions) : Level(Kind::jvp, label), directions_(directions) {}

  void process(const Operator& op, Stack& stack) override;
  void took(Wrapper& w) override;

 private:
  int64_t directions_;
};

}  // namespace tower::taylor
