// Calls that put elements of their operand, and zeros, where the result has them, as copies of memory in programs
// without LibTorch: tril, diag_embed, of tensors that are too large to be numbers of a lane.
#pragma once

#include <optional>

#include "graph/graph.h"

namespace tower::compiler {

/// What takes the call's place; none where it is no such call, or would be too many copies.
std::optional<Call> moves_in_memory(const Graph& graph, const Call& call);

}  // namespace tower::compiler
