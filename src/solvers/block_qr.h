// QR of the Jacobian of a sparse fit, by Eigen: for steps that normal equations, whose condition is the square of the
// Jacobian's, do not find.
#pragma once

#include <memory>
#include <vector>

#include "core/operator.h"
#include "solvers/block_pattern.h"

namespace tower::solvers {

/// What a term has at a point, double and contiguous: residuals {blocks, m} and Jacobians {blocks, m, columns}.
struct BlockValues {
  Tensor residuals, jacobians;
};

/// QR of the matrix that has J, and below it the roots of what is added to the diagonal of JᵀJ. Nothing is eliminated.
class BlockQr {
 public:
  virtual ~BlockQr() = default;
  /// Numbers for which `held` is not zero have a unit in place of their column. `diagonal` is that of JᵀJ: columns are
  /// scaled to one length. Whether no column is, to rounding, a sum of others.
  virtual bool factor(const std::vector<BlockValues>& values, const std::vector<double>& held,
                      const std::vector<double>& diagonal, const std::vector<double>& added) = 0;
  /// The least squares of J x + r, and what was added.
  virtual std::vector<double> least_squares(const std::vector<BlockValues>& values) const = 0;
  /// Solves with RᵀR for the columns of `b`, double {n, columns}.
  virtual Tensor solve(const Tensor& b) const = 0;
};

/// Throws UnsupportedError where Tower was built without Eigen.
std::unique_ptr<BlockQr> block_qr(const BlockPattern& pattern);

}  // namespace tower::solvers
