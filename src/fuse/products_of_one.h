// Products with one and the same matrix become one call, for which that goes through the caches once:
//
//     Y = X W, Y' = X' W, Z = Z' W          →          Y, Y', Z = products of X, X', Z' by W
//
// Values, tangents and Laplacians meet every weight one after the other, and there are many tangents for each value: a
// product of few rows takes as long as reading the weight does. What is joined are calls none of which waits for
// another one. A pass over graphs whose products are those of fuse/matrix_products.h.
#pragma once

#include "graph/graph.h"

namespace tower::compiler {

void join_products_of_one(Graph& graph);

}  // namespace tower::compiler
