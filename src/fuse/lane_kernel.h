// A kernel whose lanes are examples, as an operator: where the elements of one example are in the tensors that it is
// given, and in those that it writes.
#pragma once

#include "fuse/kernel_calls.h"
#include "graph/operand_dims.h"

namespace tower::compiler {

// An operand as its elements are read: each is one input of the kernel.
struct LaneRead {
  size_t operand;
  int64_t lane;
  Sizes strides;                 // as traced
  std::vector<Sizes> elements;   // places in all dimensions but the lanes'
  std::vector<int64_t> offsets;  // of the elements, with the traced strides
  bool table = false;            // all of it is one input, row by row
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

}  // namespace tower::compiler
