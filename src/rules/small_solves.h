// What is solved with small matrices, in numbers, for the operators' records.
#pragma once

#include "numbers/small.h"

namespace tower::rules {

/// LibTorch takes a right-hand side B for a vector, or a batch of vectors, when its shape is A's without the last
/// dimension.
inline bool is_for_vector(at::IntArrayRef a, at::IntArrayRef b) {
  return b.size() == 1 || (b.size() + 1 == a.size() && b.equals(a.slice(0, b.size())));
}

namespace small {

using compiler::SmallCall;
using compiler::SmallResults;

SmallResults solve(const SmallCall& c);
SmallResults lu_solve(const SmallCall& c);
SmallResults inverse(const SmallCall& c);
SmallResults cholesky(const SmallCall& c);
SmallResults solve_triangular(const SmallCall& c);

}  // namespace small
}  // namespace tower::rules
