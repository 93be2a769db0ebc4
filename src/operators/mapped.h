// vmap of an operator is an operator: it maps the implementation to evaluate, and the derivative rules to
// differentiate.
#pragma once

#include "interpreters/vmap.h"

namespace tower {

/// Runs `op` under the vmap level: binds its image one level down, so that the levels there meet an operator with
/// derivative rules of its own.
void bind_mapped(Vmap& level, const Operator& op, Stack& stack);

}  // namespace tower
