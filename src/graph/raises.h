// Calls that raise for the values that they find. That is something they do, whoever reads their results: a graph keeps
// them.
#pragma once

#include "graph/graph.h"

namespace tower::compiler {

/// Whether the call factors with a check, or divides integers; or is a loop that must end, or has such calls in it.
bool may_raise(const Graph& graph, const Call& call);

}  // namespace tower::compiler
