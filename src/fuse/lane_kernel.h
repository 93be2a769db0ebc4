// A kernel whose lanes are examples, as an operator: where each of its inputs is in the tensors that it is given, how
// what it writes lies in memory, and how it is put together, call by call.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "fuse/small_graph.h"
#include "graph/kernel_operator.h"
#include "kernels/kernels.h"

namespace tower::compiler {

/// Whether each step of a loop has elements of its own of it.
bool is_stacked_operand(const Call& call, size_t k);
bool is_stacked_result(const Call& call, ValueId id);

/// Where a call looks its operand up in memory, because that is too large to be numbers: how many dimensions in front
/// are of examples that have a table each, such as directions; all lanes share them. None where it does not.
std::optional<int64_t> dims_of_tables(const Graph& graph, const Call& call, size_t k, uint64_t axis);

/// An operand as its elements are read: each is one input of the kernel.
struct LaneRead {
  size_t operand;
  int64_t lane;
  Sizes strides;                 // as traced
  std::vector<Sizes> elements;   // places in all dimensions but the lanes'
  std::vector<int64_t> offsets;  // of the elements, with the traced strides
  bool table = false;            // an input is all that lies from there on, row by row
};

struct LaneWritten {
  MemoryKernel::Result made;
  int64_t lane;
  std::vector<int64_t> offsets;
};

/// Of an element, whose place is that in all dimensions but the lanes'.
int64_t offset_of(const Sizes& place, at::IntArrayRef strides, int64_t lane);

c10::intrusive_ptr<KernelOperator> lane_kernel(std::shared_ptr<const Kernel> kernel, int64_t lanes,
                                               std::vector<LaneRead> reads, std::vector<LaneWritten> written);

/// A region and the kernel's operands while they are put together.
class LaneWriter {
 public:
  LaneWriter(const Graph& graph, uint64_t axis) : graph_(graph), axis_(axis) {}

  /// What the call computes, of what was added before and of operands. False where no kernel is to compute it.
  bool add(const Call& call);
  /// What came with the last call that was added.
  struct Added {
    int64_t operations = 0, functions = 0;
    bool loops = false, systems = false;
  };
  const Added& added() const { return added_; }
  /// What a call that was added gives for one lane.
  const Small& made(ValueId id) const { return made_.at(id).numbers; }

  LaneWritten give(ValueId id);
  /// The sum over the lanes of what was added before.
  LaneWritten give_sum(ValueId id, ValueId of);
  /// Removes from the region what no output needs. Gives what is left to read of each operand.
  std::vector<LaneRead> finish();

  Region& region() { return region_; }
  std::vector<ValueId> operands;

 private:
  struct Made {
    Small numbers;
    int64_t lane;
    bool stacked;
  };
  const Small& operand(const Call& call, size_t k);
  const Small& outside(const Call& call, size_t k);

  const Graph& graph_;
  const uint64_t axis_;
  Added added_;
  Region region_;
  std::vector<LaneRead> reads_;
  std::vector<std::pair<size_t, size_t>> inputs_;  // of each input: which of the reads, and which element
  std::unordered_map<ValueId, Made> made_;
  // By lane, whether it is stacked, and what tables it is.
  std::map<std::tuple<ValueId, int64_t, bool, std::optional<int64_t>>, Small> read_;
};

}  // namespace tower::compiler
