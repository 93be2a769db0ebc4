// In-place and out= operators inside a transform: the functional operator runs, and its result is written to the
// tensor. So one rule serves `add`, `add_`, `add.out` and writes through views.
//
// Which functional operator that is: twins.h. How a write reaches aliases: views.h.
#pragma once

#include "core/operator.h"

namespace tower::frontend {

/// Runs an operator that writes to its arguments. Throws MutationError, before anything is changed, where a value that
/// a transform tracks would go into a tensor that cannot hold it.
void write(const Operator& op, Stack& stack);

/// Throws MutationError if `target` cannot hold `value`: it was made outside of the transform that tracks the value.
/// For rules that write to an argument without saying so in their schema; `advice` ends the message.
void check_holds(const Operator& op, const Tensor& target, const Tensor& value, const std::string& advice);

}  // namespace tower::frontend
