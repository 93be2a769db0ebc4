// Rows of a table that are read where an index points (index_select, embedding), or to which rows are added where it
// points (index_add), as loops over tensors as they lie: what is sent along the edges of a graph, and its way back.
// What vmap would arrange at each call is known when the plan is made, and rows are added as rows, not slice by slice.
//
// Kernels of elements read by an index, too (fuse/elsewhere.h), where rows are long; here are those that are left.
#pragma once

#include <optional>
#include <utility>

#include "graph/kernel_operator.h"
#include "graph/operand_dims.h"
#include "numbers/look_up.h"

namespace tower::compiler {

/// A call that looks up, and what each dimension of its result is in the table, which is its first operand, and in the
/// index: those of vmaps first; −1: it is not there.
struct LookUpInMemory {
  LookUp how;
  Places in_table, in_index;
  int64_t along;  // dimension of the whole table, or LookUp::kAll
};
/// Of a call whose operator has a look_up_rule. None where that says none.
std::optional<LookUpInMemory> look_up_in_memory(const Graph& graph, const Call& call);

/// Lanes are elements of the result, which is looked up, or of what is added to the table, which then is the result.
struct RowsOfLanes {
  Sizes lanes;
  Places in_table, in_index, in_lanes;  // of each dimension of the lanes; −1: it is not there
  int64_t along;                        // dimension of the table to which the index points
  bool from_the_end;                    // an index below zero counts from there; else it is an error
  size_t index;                         // operand
  // Of what is added: which operand that is, and where the table's dimensions are in the operand that it begins with.
  size_t added = 0;
  Places in_start = {};
};

class RowsByIndex final : public MemoryKernel {
 public:
  RowsByIndex(RowsOfLanes how, Result made)
      : MemoryKernel({std::move(made)}, "tower::rows_by_index"), how_(std::move(how)) {}
  void run_in(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results) const override;

 private:
  const RowsOfLanes how_;
};

/// What takes the call's place; none where it is no such, or has no rows that lie together.
std::optional<Call> rows_by_index(const Graph& graph, const Call& call);

}  // namespace tower::compiler
