// What runs a graph: its calls in order, each as user code would make it here and now. So levels that are running
// above, and LibTorch's autograd, see every operator, and derivatives to any order and batches are right by
// construction. A value is freed where it is read for the last time.
#pragma once

#include "graph/graph.h"
#include "tower/dynamic.h"

namespace tower::compiler {

class KernelOperator;

class Plan {
 public:
  explicit Plan(Graph graph);

  const Graph& graph() const { return graph_; }
  /// Whether the captured tensors still are of the shapes that the graph was made for.
  bool fits() const;
  /// `args`: of the shapes that the graph was made for. Can run on several threads at once.
  dynamic::Tensors run(const dynamic::Tensors& args) const;

 private:
  struct Step {
    const KernelOperator* kernel = nullptr;  // where the call is one's
    c10::SmallVector<bool, 4> last;          // of each operand: nobody reads it afterwards
    bool gives_up_first;                     // the memory of the first operand may be taken for the result
    bool is_view;                            // by aten::view
  };
  void check_writes(const dynamic::Tensors& args) const;

  Graph graph_;
  std::vector<ValueId> captured_, held_;  // captured values; these and constants
  std::vector<Step> steps_;               // one for each call
  ById<ValueId, bool> kept_;              // values that are read, or returned
  std::vector<size_t> written_;           // arguments
};

}  // namespace tower::compiler
