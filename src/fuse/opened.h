// Operators that no kernel computes, as what they are made of: where kernels take all of that, what would stand between
// two kernels is in one.
//
// An operator is opened by its decomposition (tower/decompose.h), which is traced for operands of these sizes, on
// tensors without memory where LibTorch does that. Of what it is then made LibTorch's own code may be faster, and take
// less memory, where kernels leave some of it to LibTorch: so calls are opened on trial, and those that kernels do not
// take as a whole are put back.
//
//   Opened opened(graph);
//   opened.graph();           // with all of them opened
//   opened.put_back(k);       // one that was not worth it
//   opened.graph();           // with the others
#pragma once

#include <unordered_map>

#include "graph/graph.h"

namespace tower::compiler {

class Opened {
 public:
  /// The graph has to be there as long as this.
  explicit Opened(const Graph& whole);

  Graph graph() const;
  /// Of a call in that graph: of which call it is a part; none: it was there before.
  std::optional<size_t> part_of(const Call& call) const;
  void put_back(size_t opened) { parts_[opened].open = false; }

 private:
  struct Part {
    size_t call;                    // in the whole graph
    Graph inside;                   // its arguments are the call's operands
    ById<ValueId, ValueId> number;  // of its values, in the whole graph
    bool open = true;
  };

  const Graph& whole_;
  ById<ValueId, Value> values_;                 // of the whole graph, and of all parts
  std::vector<Part> parts_;                     // in the order of the calls
  std::unordered_map<ValueId, size_t> makers_;  // of the values that parts make
};

}  // namespace tower::compiler
