// The normal equations of a sparse fit: from the Jacobians of its blocks to a step.
#pragma once

#include <memory>
#include <vector>

#include "core/operator.h"
#include "solvers/block_factors.h"
#include "solvers/block_pattern.h"

namespace tower::solvers {

/// What a term has at a point, double and contiguous: residuals {blocks, m} and Jacobians {blocks, m, columns}.
struct BlockValues {
  Tensor residuals, jacobians;
};

/// A number for each of all unknowns' numbers.
struct BlockVector {
  std::vector<double> eliminated, others;

  double dot(const BlockVector& another) const;
  /// f(x, y), number by number.
  template <class F>
  BlockVector with(const BlockVector& y, const F& f) const {
    BlockVector result = *this;
    for (size_t i = 0; i < eliminated.size(); ++i) result.eliminated[i] = f(eliminated[i], y.eliminated[i]);
    for (size_t i = 0; i < others.size(); ++i) result.others[i] = f(others[i], y.others[i]);
    return result;
  }
};

/// JᵀJ of one point, and factors of it with something added to its diagonal.
class BlockEquations {
 public:
  explicit BlockEquations(std::shared_ptr<const BlockPattern> pattern);

  /// JᵀJ and Jᵀr, with a unit of the matrix, and zero, for what is held.
  void assemble(const std::vector<BlockValues>& values);
  const BlockVector& gradient() const { return gradient_; }
  const BlockVector& diagonal() const { return diagonal_; }
  /// Factors of JᵀJ with `added` on the diagonal. Whether it is positive definite.
  bool factor(const BlockVector& added);
  /// x of (JᵀJ + what was added) x = b.
  BlockVector solve(const BlockVector& b) const;
  /// |J v|², of what is not held.
  double squared_image(const BlockVector& v, const std::vector<BlockValues>& values) const;
  /// The blocks on the diagonal of the inverse, of each kind {count, s, s}; zero for those that are held.
  std::vector<Tensor> inverse_blocks() const;

  BlockVector zeros() const;
  /// As tensors, of each kind {count, s}, and back.
  std::vector<Tensor> tensors(const BlockVector& v) const;
  BlockVector vector(const std::vector<Tensor>& tensors) const;

 private:
  bool is_held(int64_t kind, int64_t row) const;
  void assemble_eliminated(int64_t e, const std::vector<BlockValues>& values);
  void assemble_other(int64_t row, const std::vector<BlockValues>& values);
  bool factor_eliminated(int64_t e, const BlockVector& added);
  void subtract_eliminated(int64_t row, double* const* blocks_of_row);

  std::shared_ptr<const BlockPattern> pattern_;
  std::unique_ptr<BlockFactors> factors_;
  BlockVector gradient_, diagonal_;
  // JᵀJ: of the eliminated unknowns, of their ties, of the others; then L, L⁻¹ times the ties, and what is left.
  std::vector<double> own_, ties_, entries_, lower_, images_, left_;
  std::vector<uint8_t> other_held_;
};

}  // namespace tower::solvers
