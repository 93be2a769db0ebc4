// What factorizations of small matrices, and what is solved with them, come to in numbers, for their records.
#pragma once

#include "numbers/small.h"

namespace tower::rules::small {

using compiler::SmallCall;
using compiler::SmallResults;

SmallResults solve(const SmallCall& c);
SmallResults lu_factor(const SmallCall& c);
SmallResults lu_solve(const SmallCall& c);
SmallResults inverse(const SmallCall& c);
SmallResults determinant(const SmallCall& c);
SmallResults cholesky(const SmallCall& c);
SmallResults solve_triangular(const SmallCall& c);

}  // namespace tower::rules::small
