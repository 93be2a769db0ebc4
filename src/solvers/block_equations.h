// The normal equations of a sparse fit: from the Jacobians of its blocks to a step.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/operator.h"
#include "solvers/block_factors.h"
#include "solvers/block_pattern.h"
#include "solvers/block_qr.h"
#include "tower/block_least_squares.h"

namespace tower::solvers {

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

/// JᵀJ of one point, and factors of it with something added to its diagonal, or what else solves with it.
class BlockEquations {
 public:
  /// `tolerance`: of conjugate gradients.
  BlockEquations(std::shared_ptr<const BlockPattern> pattern, FitSolver solver, double tolerance);

  /// JᵀJ and Jᵀr, with a unit of the matrix, and zero, for what is held.
  void assemble(const std::vector<BlockValues>& values);
  const BlockVector& gradient() const { return gradient_; }
  const BlockVector& diagonal() const { return diagonal_; }
  /// Those numbers for which `numbers` is not zero are held, too: a unit of the matrix, and zero.
  void hold(const BlockVector& numbers);
  /// Factors of JᵀJ with `added` on the diagonal. Whether it is positive definite.
  bool factor(const BlockVector& added);
  /// x of (JᵀJ + what was added) x = b.
  BlockVector solve(const BlockVector& b) const;
  /// The same of b = −Jᵀr.
  BlockVector step() const;
  /// solve(b) by a matrix that is the same for all b, and near the inverse: of conjugate gradients their
  /// preconditioner.
  BlockVector precondition(const BlockVector& b) const;
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
  // The numbers that a block takes, and how many these are.
  std::pair<const double*, int64_t> numbers_of(const BlockVector& v, const BlockUse& use, int64_t block) const;
  // Of what is left, by factors: of {n, columns}.
  Tensor solve_left(const Tensor& b) const;
  // `solve_left` is of a vector, in its place.
  using SolveLeft = std::function<void(std::vector<double>& x)>;
  BlockVector solve_around(const BlockVector& b, const SolveLeft& solve_left) const;
  // block_iterations.cpp
  bool factor_diagonal();
  void precondition_left(std::vector<double>& x) const;
  void iterate_left(std::vector<double>& x) const;
  std::vector<double> left_times(const std::vector<double>& v) const;

  std::shared_ptr<const BlockPattern> pattern_;
  FitSolver solver_;
  double tolerance_;
  std::unique_ptr<BlockFactors> factors_;
  std::unique_ptr<BlockQr> qr_;
  const std::vector<BlockValues>* values_ = nullptr;  // of QR: what was assembled
  BlockVector gradient_, diagonal_, held_;            // held_: empty, or not zero for numbers that are
  // JᵀJ: of the eliminated unknowns, of their ties, of the others; then L, L⁻¹ times the ties, and what is left.
  std::vector<double> own_, ties_, entries_, lower_, images_, left_;
  std::vector<double> diagonal_factors_;  // of conjugate gradients: of the diagonal blocks of what is left
  std::vector<int64_t> diagonal_starts_;
  std::vector<uint8_t> other_held_;
};

}  // namespace tower::solvers
