// Products of matrices one of whose operands is a scale times something that some examples share: the scale comes out
// of the product, which is made once for those examples.
//
//     (s ⊙ M) W = s ⊙ (M W)          s: [directions, rows, 1], M: [rows, n], W: [n, m]
//
// Along the directions of a derivative, all that is computed from one number of a row (a distance, a time, a norm) has
// tangents of this form: the number's tangent times a derivative that no direction knows of. Of a network of it, layer
// after layer is a product for each direction; with the scale taken out, it is one for all of them. A pass over graphs
// that run on plain tensors.
#pragma once

#include "graph/graph.h"

namespace tower::compiler {

void take_scales_out_of_products(Graph& graph);

}  // namespace tower::compiler
