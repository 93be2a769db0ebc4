// Matrix products of a graph, mapped ones too, as products of its tensors as they lie (kernels/gemm.h): what vmap would
// arrange at each call is known when the plan is made.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "fuse/memory_steps.h"
#include "graph/graph.h"
#include "graph/kernel_operator.h"
#include "graph/operand_dims.h"
#include "kernels/gemm.h"

namespace tower::compiler {

/// What takes the call's place; none where it is no product of float32 or float64, or scales it.
std::optional<Call> product_of_matrices(const Graph& graph, const Call& call);

/// The operator of such a call.
class ProductOperator final : public MemoryKernel, public StepsInMemory {
 public:
  static constexpr int64_t kNoDim = -1;
  /// Where a dimension of the result, or what is summed over, is in the operands.
  struct Dimension {
    int64_t a = kNoDim, b = kNoDim, s = kNoDim;
  };

  ProductOperator(std::vector<Dimension> dimensions, Dimension inner, bool adds, const Value& result,
                  const Places& order);

  /// The product of operands that lie so.
  GemmCall gemm(c10::ArrayRef<InMemory> operands, const InMemory& result) const;
  void run_in(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results) const override;
  bool is_another_kernel() const override { return true; }
  MemorySteps steps(c10::ArrayRef<InMemory> operands, Kernels& kernels) const override;

 private:
  const std::vector<Dimension> dimensions_;  // of the result
  const Dimension inner_;
  const bool adds_;
};

}  // namespace tower::compiler
