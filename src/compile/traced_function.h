// Functions as graphs, for calls that are made of them: a choice between two, a checkpoint of one.
#pragma once

#include <optional>

#include "graph/graph.h"
#include "operators/known_code.h"
#include "tower/dynamic.h"

namespace tower::compiler {

/// The graph of `f`, of operands like these, all of them defined; `op` is what messages call it. None where it is not
/// all that `f` does: where that draws random numbers, writes, reads values, calls a collective or code that is not
/// known. Throws what `f` throws.
std::optional<Graph> traced_function(const dynamic::Function& f, const dynamic::Tensors& operands, const char* op);
/// Makes arguments of the tensors that a graph captured, behind those that it has: gives these.
dynamic::Tensors pass_captured(Graph& graph);
/// The same of either of two.
dynamic::Tensors pass_captured(Graph& a, Graph& b);

/// Notes in `code` what calls of its graph do.
void note_calls(KnownCode& code, const Graph& graph);

}  // namespace tower::compiler
