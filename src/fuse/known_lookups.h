// Results that are known because all rows of a table are the same, as those of a sparse Jacobian's directions are: all
// cameras move along one and the same unit vector.
#pragma once

#include "graph/graph.h"

namespace tower::compiler {

/// Finds calls that look up in constants of equal rows, and notes what they give as `known` of their results. Only
/// where another call looks up in a table of the same size by the same index: that one reports what is out of range.
void know_lookups(Graph& graph);
/// Removes calls whose results are known where nobody reads them any more, and the notes.
void remove_known_lookups(Graph& graph);

}  // namespace tower::compiler
