// The functions of a sparse fit, made of the residuals of one block: compiled ones of all blocks for its steps, and the
// gradient for its derivatives.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

#include "core/operator.h"
#include "tower/block_least_squares.h"

namespace tower::solvers {

/// A term's residuals and Jacobians, compiled. A retracted unknown is seen as a function of the step from it.
class BlockFunctions {
 public:
  /// `residuals`: how many a block has.
  BlockFunctions(const FitTerm& term, const std::vector<FitUnknowns>& unknowns, int64_t residuals);

  /// {blocks, m} at the unknowns `x`, of all kinds, with the term's `data`.
  Tensor residuals(const dynamic::Tensors& x, const dynamic::Tensors& data) const;
  /// The same, and Jacobians {blocks, m, numbers of a step of all uses}.
  std::pair<Tensor, Tensor> jacobians(const dynamic::Tensors& x, const dynamic::Tensors& data) const;

 private:
  struct Traced {
    dynamic::Function function;
    mutable std::atomic<bool> called = false;
    // The tensors from number `mapped` on have blocks.
    dynamic::Tensors operator()(const dynamic::Tensors& all, size_t mapped) const;
  };

  std::vector<FitUse> uses_;
  Traced residuals_, jacobians_;
};

/// How many numbers a step of one of these unknowns has.
int64_t numbers_of_step(const FitUnknowns& unknowns);
/// All unknowns of a kind at the `step` {count, s} from `x`, operator by operator.
Tensor all_retracted(const FitUnknowns& unknowns, const Tensor& x, const Tensor& step);
/// The residuals of a block at its unknowns, then data, as a vector.
Tensor block_residuals(const FitTerm& term, const dynamic::Tensors& unknowns_and_data);
/// The cost of a term as a number, by operators that have all derivatives, at `x`, with its `data`.
Tensor cost_of_term(const FitTerm& term, const dynamic::Tensors& x, const dynamic::Tensors& data);
/// The cost of residuals {blocks, m}.
Tensor cost_of_residuals(const Loss& loss, const Tensor& residuals);

}  // namespace tower::solvers
