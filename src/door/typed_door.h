// NOTE [Typed doors]
// At the fallback LibTorch boxes the arguments into a stack that it allocates for every call, and names the operator by
// a handle whose record must be looked up. Operators with a record and one of the commonest signatures get a kernel of
// that signature at the same key besides: it knows its record, and takes its stack from a few that the thread keeps.
// From there on all calls are alike: they go through arrive().
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

#include "core/operator.h"

namespace tower {

/// A call at the door, by whichever way: tensors of functorch are seen to, and it goes on to enter(). `keys` are those
/// that it was dispatched by.
void arrive(const Operator& op, Stack& stack, c10::DispatchKeySet keys);

/// Opens a typed door for every operator that has a record by now; they close when the handles are destroyed.
std::vector<c10::RegistrationHandleRAII> open_typed_doors();

}  // namespace tower
