// Sums over rows of a few numbers that lie next to each other (squares of a vector in space, contributions of atoms),
// as loops over tensors as they lie. Kernels of rows have the longer ones (fuse/rows.h): of so few numbers a vector of
// the CPU would be mostly empty, and LibTorch's sum takes longer to be called than to add up thousands of rows.
#pragma once

#include <optional>

#include "graph/kernel_operator.h"
#include "graph/operand_dims.h"

namespace tower::compiler {

/// Where each dimension of a sum's terms is in the sum, those of vmaps included; −1: it is summed over. None of calls
/// that are no sum in float32 or float64, or whose operand is the same for all examples of a vmap.
std::optional<Places> places_in_sum(const Graph& graph, const Call& call);

class ShortSums final : public MemoryKernel {
 public:
  /// Rows of `length` terms, which lie by `strides`, come to the elements of `made` as these lie.
  ShortSums(Sizes strides, int64_t length, Result made)
      : MemoryKernel({std::move(made)}, "tower::short_sums"), strides_(std::move(strides)), length_(length) {}
  void run_in(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results) const override;

 private:
  const Sizes strides_;
  const int64_t length_;
};

/// What takes the call's place; none where it is no such sum.
std::optional<Call> sum_of_short_rows(const Graph& graph, const Call& call);

}  // namespace tower::compiler
