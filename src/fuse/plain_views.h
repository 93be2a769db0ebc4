// Views that passes put into graphs.
#pragma once

#include "graph/graph.h"

namespace tower::compiler {

/// A call that shows a value with more dimensions of one element, or fewer: `sizes` and `strides` are its result's,
/// which is new in the graph.
Call view_of(Graph& graph, ValueId id, Sizes sizes, Sizes strides);

/// A call that exchanges two dimensions of a value.
Call transposed(Graph& graph, ValueId id, int64_t a, int64_t b);

}  // namespace tower::compiler
