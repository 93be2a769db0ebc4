// What runs a graph: its calls in order, each as user code would make it here and now. So levels that are running
// above, and LibTorch's autograd, see every operator, and derivatives to any order and batches are right by
// construction. A value is freed where it is read for the last time.
//
// NOTE [The block]
// What kernels leave for kernels and nobody else sees is no tensor: it has a place in a block of memory, which a run
// takes once and gives back at its end. Where the places are follows from which calls make and read what
// (graph/lifetimes.h), and is settled when the plan is made. The block is small: what is large is a tensor, which costs
// little beside what is done with it, and is freed as soon as nobody reads it any more.
//
// NOTE [Settled views]
// A view that only kernels read is not made, either: they are told where it lies in the memory of what it views
// (graph/viewed.h). Of what a kernel made that is known. An argument may lie otherwise than the one that was traced;
// then its views are made in that run.
#pragma once

#include "graph/graph.h"
#include "graph/kernel_operator.h"
#include "graph/viewed.h"
#include "tower/dynamic.h"

namespace tower::compiler {

/// Whether the tensor is of the sizes, strides and dtype that the value had when it was traced.
bool lies_as(const Value& value, const Tensor& t);

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
    const KernelOperator* kernel = nullptr;     // where the call is one's
    const MemoryKernel* in_memory = nullptr;    // which takes memory
    c10::SmallVector<bool, 4> last;             // of each operand: nobody reads it afterwards
    c10::SmallVector<size_t, 4> last_of_slots;  // the same, of tensors
    bool gives_up_first;                        // the memory of the first operand may be taken for the result
    bool is_view;                               // by aten::view
    bool is_settled = false;                    // NOTE [Settled views]
  };
  // Where a value is.
  struct Held {
    const MemoryKernel::Result* made = nullptr;  // how a kernel that takes memory made it; null: none did
    bool in_block = false;                       // or it is a tensor
    size_t at = 0;                               // a place in the block, or the tensor's slot
  };
  // Of a settled view.
  struct View {
    ValueId of;
    int64_t bytes;  // from the first of those of what is viewed
    Sizes sizes, strides;
    at::ScalarType dtype;
    size_t given = kIsMade;  // which of `given_` is viewed
    static constexpr size_t kIsMade = static_cast<size_t>(-1);
  };
  class Run;
  void settle_views();
  void place_in_block(size_t largest);
  ValueId memory_of(ValueId id) const { return views_[id] ? views_[id]->of : id; }
  void check_writes(const dynamic::Tensors& args) const;

  Graph graph_;
  std::vector<ValueId> captured_, held_;  // captured values; these and constants
  std::vector<Step> steps_;               // one for each call
  ById<ValueId, bool> kept_;              // values that are read, or returned
  ById<ValueId, Held> values_;
  ById<ValueId, std::optional<View>> views_;  // settled ones
  std::vector<ValueId> given_;                // what is viewed and no kernel made
  size_t slots_ = 0, block_bytes_ = 0;
  std::vector<size_t> written_;  // arguments
};

}  // namespace tower::compiler
