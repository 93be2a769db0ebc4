// Custom operators on plain tensors that require grad: their rules as a node of LibTorch's own autograd graph.
#pragma once

#include "core/operator.h"

namespace tower {

/// If grad mode is on and one of the arguments, which are plain tensors, requires grad: runs `op`, records its vjp rule
/// in LibTorch's autograd graph, and returns true. The rule can be differentiated in turn (create_graph). Without a vjp
/// rule the outputs require grad, and their backward is an error that says what to register.
/// Throws DerivativeError if an argument carries a tangent of LibTorch's forward mode, which knows no rules of ours.
bool record_in_libtorch(const Operator& op, Stack& stack);

}  // namespace tower
