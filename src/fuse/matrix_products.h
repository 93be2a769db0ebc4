// Matrix products of a graph, mapped ones too, as products of its tensors as they lie (kernels/gemm.h): what vmap would
// arrange at each call is known when the plan is made.
#pragma once

#include <optional>

#include "graph/graph.h"

namespace tower::compiler {

/// What takes the call's place; none where it is no product of float32 or float64, or scales it.
std::optional<Call> product_of_matrices(const Graph& graph, const Call& call);

}  // namespace tower::compiler
