// Whether a graph writes to what is not its own.
#pragma once

#include <algorithm>

#include "graph/graph.h"

namespace tower::compiler {

/// Whether a call writes to arguments, captured tensors, or views of these.
inline bool has_effects(const Graph& graph) {
  return std::any_of(graph.calls.begin(), graph.calls.end(), [](const Call& call) { return call.effect; });
}

}  // namespace tower::compiler
