// A vmap over one example, inside of another, is none: calls under it, on plain tensors, are made without it, and
// values lack its dimension. (The gradient of a number is its Jacobian, a vmap over one row.) What is computed before
// and what after then have equal sizes, and can be in one kernel.
#pragma once

#include "graph/graph.h"

namespace tower::compiler {

void drop_vmaps_of_one(Graph& graph);
/// Whether that leaves out those of this call.
bool may_lack_vmaps(const Call& call);

}  // namespace tower::compiler
