// The states of a loop after any number of steps, which is what a sparsity pattern is of where the number depends on
// values.
#pragma once

#include "tower/dynamic.h"

namespace tower::sparse {

/// A level that looks for a pattern is on top, with no more than vmaps above it. The values are those of `start`; each
/// element depends on all that it can depend on after some number of steps, none too: the fixed point of the step's
/// dependence, which one evaluation of the step gives. Nothing is returned where the step cannot be evaluated at
/// `start`.
dynamic::Tensors any_number_of_steps(const dynamic::Function& step, const dynamic::Tensors& start);

}  // namespace tower::sparse
