// A kernel over all elements of its results, as an operator: where each of its inputs is in the tensors that it is
// given, and how what it writes lies in memory.
#pragma once

#include "fuse/kernel_calls.h"
#include "fuse/row_reach.h"
#include "graph/operand_dims.h"

namespace tower::compiler {

/// What a kernel is given for each of its inputs.
struct Reading {
  static constexpr size_t kOwn = static_cast<size_t>(-1);

  size_t operand;  // kOwn: none, but what the kernel has
  Places places;
  bool repeated;                              // one element for each row of lanes, or a table
  bool laid_out;                              // first written out with all lanes of a row, which has some of them only
  std::optional<Sizes> table = std::nullopt;  // all of the operand, row by row: how far apart it begins for rows
  at::Tensor own = {};                        // the same for each row
  std::optional<Reach> reach = std::nullopt;  // of a table: where lanes read it, if that follows from their places
};

/// A tensor that it writes: without gaps, in the order of the lanes, and how it was traced.
struct Written {
  Sizes sizes, strides, wanted;
  at::ScalarType dtype;
  Places places;  // of each dimension of the lanes; −1: one element for all of it
  bool is_sum;    // rows are added to it
};

/// `outer`: how many dimensions of the lanes count rows; the others are the lanes of one row.
c10::intrusive_ptr<KernelOperator> row_kernel(std::shared_ptr<const Kernel> kernel, std::vector<Reading> readings,
                                              Sizes lanes, size_t outer, std::vector<Written> results);

}  // namespace tower::compiler
