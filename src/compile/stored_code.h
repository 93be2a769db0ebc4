// Loops, choices and checkpoints in files.
#pragma once

#include "graph/stored_graph.h"
#include "operators/known_code.h"

namespace tower::compiler {

/// What code there is, as files number it.
enum class StoredCode : uint8_t { loop, pullback, choice, checkpoint, end };

/// The operator of code that stored itself. Throws as GraphReader does.
c10::intrusive_ptr<const Operator> read_code(GraphReader& graphs, ByteReader& in);

/// What a value is for one example. Fails, as a ByteReader does, where there is none.
KnownCode::Kind kind_of(const Graph& graph, ValueId id);
std::vector<KnownCode::Kind> kinds_of(const Graph& graph, const std::vector<ValueId>& ids);
/// Fails, as a ByteReader does, where the graph captures or writes.
void check_is_function(const Graph& graph);

}  // namespace tower::compiler
