// Loops of which it is not known how many steps they make, in sparsity patterns (control/cond.h, ForAnyValue).
#pragma once

#include "tower/dynamic.h"

namespace tower {

/// `loop(state)`, in patterns as after any number of steps. What they capture is appended to `captured`.
dynamic::Tensors run_undecided(const char* name, const dynamic::Function& loop, const dynamic::Function& step,
                               const dynamic::Tensors& state, dynamic::Tensors& captured);

}  // namespace tower
