// The Laplacian of the Laplacian: every value carries all of its derivatives by D elements that ΔΔ needs, each once:
//
//   yᵢ           the D first derivatives
//   yᵢⱼ, i ≤ j   the D (D + 1) / 2 second ones; Δy is the sum of D of them
//   (Δy)ᵢ        D sums of third ones
//   ΔΔy          one sum of fourth ones
//
// Of a polynomial P of derivatives a value carries as many of order k as P has linearly independent ones (P's apolar
// algebra: Iarrobino and Kanev, "Power sums, Gorenstein algebras, and determinantal loci", 1999). Two Laplacians nested
// carry (D + 2)² values, and have yᵢⱼ twice, Δy and (Δy)ᵢ too.
//
//   affine       the operator on each
//   pointwise    Faà di Bruno's formula, by the function's first four derivatives
//   products     Leibniz' rule
//   others       by two Laplacians nested, of the one call
#pragma once

#include "taylor/collapsed_level.h"

namespace tower::taylor {

class SquaredLaplacian final : public CollapsedLevel {
 public:
  /// Slopes that a value has: yᵢ, yᵢⱼ and (Δy)ᵢ.
  static constexpr size_t kOrders = 3;

  SquaredLaplacian(const char* label, int64_t directions);

 private:
  Carried carry(const CollapsedCall& call, Growth growth) const override;
  class Rules;

  const int64_t directions_;  // D
  // Of each pair i ≤ j: i, j, and how many of (i, j) and (j, i) there are. Of each i its pair (i, i); of each i and j
  // theirs.
  Tensor first_, second_, count_, diagonal_, all_;
};

}  // namespace tower::taylor
