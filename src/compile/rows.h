// Regions whose lanes are all elements: pointwise calls whose results have the same sizes, mapped dimensions included.
// An operand from outside is read once for each lane, or, where it has one element, once for all.
#pragma once

#include "compile/groups.h"
#include "compile/kernel_calls.h"

namespace tower::compiler {

/// Which calls can be in such a region.
Joining joining_of_rows(const Graph& graph);

/// The call of a kernel in the place of `calls`, in the graph's order.
Call write_rows(const Graph& graph, const std::vector<size_t>& calls, const Readers& readers, Kernels& kernels,
                std::vector<Fused>& report);

}  // namespace tower::compiler
