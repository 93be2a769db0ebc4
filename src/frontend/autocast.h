// LibTorch's autocast inside a transform. Which operators it casts for, and to what, is LibTorch's business: its own
// autocast kernel runs first, above all levels, so that the casts are operators like others: recorded on the tape,
// batched, differentiated. Everything an operator's rules then do runs in the dtypes that this gave.
#pragma once

#include "core/operator.h"

namespace tower::frontend {

/// The dispatch keys of the devices for which autocast is on here. One thread-local read.
inline c10::DispatchKeySet active_autocast() { return c10::autocast_dispatch_keyset - dispatch_keys().excluded(); }

/// Calls the operator through LibTorch's autocast kernel, which casts the arguments and calls it again. False, with
/// nothing done, if it has none for these arguments.
bool run_autocast(const Operator& op, Stack& stack, c10::DispatchKeySet active);

}  // namespace tower::frontend
