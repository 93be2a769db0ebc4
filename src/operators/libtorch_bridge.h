// Custom operators on plain tensors that require grad: their rules as a node of LibTorch's own autograd graph.
#pragma once

#include "core/operator.h"

namespace tower {

/// Runs `op` on plain tensors, of which one requires grad, and records its vjp rule in LibTorch's autograd graph. The
/// rule can be differentiated in turn (create_graph). Without a vjp rule the outputs require grad, and their backward
/// is an error that says what to register.
void record_in_libtorch(const Operator& op, Stack& stack);

}  // namespace tower
