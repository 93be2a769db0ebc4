// Cholesky factors of the matrix that is left of a sparse fit's normal equations: dense ones by LibTorch, sparse ones
// by Eigen.
#pragma once

#include <memory>

#include "core/operator.h"
#include "solvers/block_pattern.h"

namespace tower::solvers {

class BlockFactors {
 public:
  virtual ~BlockFactors() = default;
  /// Of the blocks' `values`, as the pattern has its entries. Whether the matrix is positive definite.
  virtual bool factor(const double* values) = 0;
  /// Solves with these factors for the columns of `b`, double {n, columns}.
  virtual Tensor solve(const Tensor& b) const = 0;
};

/// Whatever is faster for this pattern; where there is no Eigen, dense ones. Throws UnsupportedError where these would
/// take all of the memory.
std::unique_ptr<BlockFactors> block_factors(const BlockPattern& pattern);

}  // namespace tower::solvers
