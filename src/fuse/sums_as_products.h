// Products that are made only to be summed, as matrix products: what per-example rules leave of a gradient by what the
// examples share, Σ aᵢ bⱼ over all examples, has no room for all its terms. Weighted sums and sums of squares of them
// are products of smaller ones, too: an example's gradient by a layer's weight, aᵢ bⱼ, is clipped and summed without
// being there. A pass over graphs that run on plain tensors.
#pragma once

#include "graph/graph.h"

namespace tower::compiler {

void contract_summed_products(Graph& graph);

}  // namespace tower::compiler
