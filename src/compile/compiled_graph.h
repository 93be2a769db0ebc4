// A graph that is run as what looks on wants it:
//
//   nobody             fused, as machine code (fuse/fused_plan.h)
//   a transform, or    parts of it as operators, whose images are compiled graphs: mapped over examples, pulled back,
//   LibTorch's autograd    pushed forward (compile/graph_operator.h). All of it is one part, unless it does what has to
//                      be seen in its order: draws random numbers, runs a user's code, writes to tensors it did not
//                      make
//   another trace      its operators, one by one
#pragma once

#include <memory>
#include <string>

#include "fuse/fused_plan.h"
#include "graph/trace.h"

namespace tower::compiler {

class CompiledGraph {
 public:
  /// `kernels` are shared with other graphs of the same function.
  CompiledGraph(Graph graph, std::shared_ptr<Kernels> kernels, Assumptions assumptions = {}, Reads reads = {});
  ~CompiledGraph();

  const Graph& graph() const { return plan_.graph(); }
  /// Whether the captured tensors still are of the shapes that the graph was made for.
  bool fits() const { return plan_.fits(); }
  /// Whether there is more that it takes for granted than what it is called with, and whether that is so.
  bool assumes() const { return !assumptions_.empty() || reads_values(); }
  bool assumptions_hold(const dynamic::Tensors& args) const;
  /// Whether it is for certain values that the function read (NOTE [Values that were read]).
  bool reads_values() const { return !read_.empty(); }
  dynamic::Tensors run(const dynamic::Tensors& args) const;
  /// Its kernels and those of its images.
  std::string report() const;

 private:
  struct InParts;
  const InParts* in_parts() const;
  bool is_looked_at(const dynamic::Tensors& args) const;

  FusedPlan plan_;
  std::shared_ptr<Kernels> kernels_;
  Assumptions assumptions_;
  std::unique_ptr<const CompiledGraph> reading_;  // gives what was read
  std::vector<bool> read_;
  MadeOnce<std::unique_ptr<const InParts>> in_parts_;
};

}  // namespace tower::compiler
