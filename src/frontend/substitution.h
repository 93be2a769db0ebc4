// While a Substitution (tower/substitution.h) is alive, operators that meet one of its originals get the replacement.
#pragma once

#include "core/operator.h"

namespace tower::frontend {

/// Replaces substituted tensors among the arguments. Costs one thread-local read when there are none.
void substitute(const Operator& op, Stack& stack);

}  // namespace tower::frontend
