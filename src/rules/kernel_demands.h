// Demands that only the kernels know: dtypes that they are made for, and what the operators around them look at, where
// formulas and kernels of a batch take more. records/demands.h says what a demand is.
#pragma once

#include "records/demands.h"

namespace tower::rules {

/// What the operator's kernel says against the dtypes: it is run once for every combination of them, on zeros of the
/// example's shapes, and what it says is remembered.
void demand_kernel_dtypes(const Example& e);

/// Demands that results computed in `from` can be written to `to`.
void demand_castable(at::ScalarType from, at::ScalarType to);

/// Puts demands before operators all over the database; when all of them have their records.
void kernel_demands();

}  // namespace tower::rules
