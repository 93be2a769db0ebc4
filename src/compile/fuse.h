// Pointwise calls of a graph that go over the same elements become one call of a kernel. A pass over graphs: what comes
// out is a graph that a plan runs as any other, on plain tensors that nothing follows.
//
// A region is a set of calls with element rules (compile/element.h) whose results have the same sizes, mapped
// dimensions included: its lanes are all elements. An operand from outside is read once for each lane, or, where it has
// one element, once for all. Regions are as large as they can be without one waiting for itself.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "compile/graph.h"
#include "compile/kernel.h"

namespace tower::compiler {

/// What has been compiled and is still there, by the region's text: graphs that differ in the number of lanes share
/// their kernels.
class Kernels {
 public:
  /// Throws a CompileError.
  std::shared_ptr<const Kernel> get(const Region& region);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<const Kernel>> known_;
};

/// For reports: one kernel of a graph.
struct Fused {
  std::vector<std::string> operators;  // by name, in order
  int64_t lanes;
  std::shared_ptr<const Kernel> kernel;
};

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
