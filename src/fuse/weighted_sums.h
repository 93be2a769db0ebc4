// Sums over what products of matrices give, where the weights of the terms are the same for some examples: the weights
// are multiplied by the matrix, and the product for each of these examples is not made.
//
//     Σₙ uₙ (Σⱼ xⱼ Wⱼₙ) = Σⱼ xⱼ (Σₙ Wⱼₙ uₙ)          x: [directions, rows, j], u: [rows, n], W: [j, n]
//
// So it is on the way back to one number of a row (a distance, a time) along the directions of a second derivative:
// layer after layer would be a product for each direction. It is the transposed of fuse/scaled_products.h, by a pass
// over graphs that run on plain tensors.
#pragma once

#include "graph/graph.h"

namespace tower::compiler {

void take_products_out_of_sums(Graph& graph);

}  // namespace tower::compiler
