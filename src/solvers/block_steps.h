// The steps of a sparse fit, on plain tensors.
#pragma once

#include <memory>
#include <vector>

#include "solvers/block_equations.h"
#include "solvers/block_pattern.h"
#include "solvers/block_terms.h"
#include "tower/block_least_squares.h"

namespace tower::solvers {

struct BlockSolution {
  dynamic::Tensors x;
  double cost;
  FitStatus status;
  int64_t steps;
  dynamic::Tensors covariance;
  dynamic::Tensors at_bound;  // of each kind Bool {count, s}: what a bound holds
};

/// A sparse fit, but for its data. Bounds are like x0, and infinite for what is held.
struct BlockProblem {
  std::vector<FitUnknowns> unknowns;
  std::vector<FitTerm> terms;
  std::vector<std::shared_ptr<const BlockFunctions>> functions;
  std::shared_ptr<const BlockPattern> pattern;
  BlockFitOptions options;
  int64_t num_residuals = 0;

  /// Of `data`, those of a term.
  dynamic::Tensors data_of(size_t term, const dynamic::Tensors& data) const;
  bool has_bounds(size_t kind) const;
  bool has_bounds() const;
  /// The nearest that bounds leave, of one kind and of all.
  Tensor between_bounds(size_t kind, Tensor x) const;
  dynamic::Tensors between_bounds(dynamic::Tensors x) const;
  /// From `x0`, with these `data`.
  BlockSolution solve(const dynamic::Tensors& x0, const dynamic::Tensors& data) const;
  /// The inverse of the normal equations' matrix at `x`, a function of {count, s} of all kinds; what it is given where
  /// that matrix is singular.
  dynamic::Function preconditioner(const dynamic::Tensors& x, const dynamic::Tensors& data) const;
};

}  // namespace tower::solvers
