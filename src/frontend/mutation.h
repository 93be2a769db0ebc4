// In-place and out= operators inside a transform: the functional operator runs, and its result replaces the payload of
// the written tensor. So one rule serves `add`, `add_`, `add.out` and writes through views.
#pragma once

#include "core/operator.h"

namespace tower::frontend {

/// Runs an operator that writes to its arguments. Throws MutationError, before anything is changed, where a value that
/// a transform tracks would go into a tensor that the transform does not own.
void write(const Operator& op, Stack& stack);

/// The functional operator with the same meaning; null if there is none.
const Operator* functional_twin(const Operator& op);

}  // namespace tower::frontend
