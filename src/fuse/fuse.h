// Calls of a graph that go over the same lanes become one call of a kernel. A pass over graphs: what comes out is a
// graph that a plan runs as any other, on plain tensors that nothing follows.
//
// There are two kinds of regions. Calls on tensors that are small for one example of a vmap have the examples as lanes,
// and are unrolled (fuse/unrolled.h); what is left of pointwise calls has all elements as lanes (fuse/rows.h).
#pragma once

#include "fuse/kernel_calls.h"

namespace tower::compiler {

/// The graph with calls of kernels in the place of regions, and what these are.
struct FusedGraph {
  Graph graph;
  std::vector<Fused> kernels;

  /// One line a kernel: operators, lanes, instructions, bytes, milliseconds to compile.
  std::string report() const;
};
/// Regions of fewer than `fewest` calls are left alone. Throws a CompileError where LLVM fails, or where there is none.
FusedGraph fuse(const Graph& graph, Kernels& kernels, size_t fewest = 2);

}  // namespace tower::compiler
