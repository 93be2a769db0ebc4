// A graph that is run as what looks on wants it:
//
//   nobody             fused, as machine code (compile/fused_plan.h)
//   a transform, or    one operator, whose images are compiled graphs: mapped over examples, pulled back, pushed
//   LibTorch's autograd    forward (compile/graph_operator.h)
//   another trace      its operators, one by one; likewise where they do what has to be seen in their order: draw
//   random
//                      numbers, run a user's code, write to captured tensors
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "compile/fused_plan.h"
#include "compile/parts.h"

namespace tower::compiler {

class GraphOperator;

class CompiledGraph {
 public:
  /// `kernels` are shared with other graphs of the same function.
  CompiledGraph(Graph graph, std::shared_ptr<Kernels> kernels);
  ~CompiledGraph();

  const Graph& graph() const { return plan_.graph(); }
  /// Whether the captured tensors still are of the shapes that the graph was made for.
  bool fits() const { return plan_.fits(); }
  dynamic::Tensors run(const dynamic::Tensors& args) const;
  /// Its kernels and those of its images.
  std::string report() const;

 private:
  struct AsOperator;
  const AsOperator* as_operator() const;
  bool is_looked_at(const dynamic::Tensors& args) const;

  FusedPlan plan_;
  std::shared_ptr<Kernels> kernels_;
  mutable std::once_flag once_;
  mutable std::unique_ptr<const AsOperator> as_operator_;
};

}  // namespace tower::compiler
