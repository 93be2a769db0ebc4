// Loops in files.
#pragma once

#include "graph/stored_graph.h"

namespace tower::compiler {

/// The operator of a loop, or of a loop's pullback, that its code stored. Throws as GraphReader does.
c10::intrusive_ptr<const Operator> read_loop(GraphReader& graphs, ByteReader& in);

}  // namespace tower::compiler
