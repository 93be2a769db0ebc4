#include "solvers/block_qr.h"

#include <ATen/Functions.h>

#include <cmath>

#include "tower/errors.h"

#ifdef TOWER_HAS_EIGEN
#define EIGEN_MPL2_ONLY
#include <Eigen/SparseQR>
#endif

namespace tower::solvers {
#ifdef TOWER_HAS_EIGEN
namespace {

class EigenQr final : public BlockQr {
 public:
  explicit EigenQr(const BlockPattern& pattern) : pattern_(pattern) {}

  bool factor(const std::vector<BlockValues>& values, const std::vector<double>& held,
              const std::vector<double>& diagonal, const std::vector<double>& added) override {
    const int64_t n = pattern_.num_remaining();
    scales_.resize(n);
    for (int64_t i = 0; i < n; ++i) {
      const auto k = static_cast<size_t>(i);
      const double square = diagonal[k] + added[k];
      scales_[i] = held[k] == 0 && square > 0 ? std::sqrt(square) : 1;
    }
    // What is zero is in the pattern, so that it stays the same.
    std::vector<Eigen::Triplet<double, Index>> entries;
    num_residuals_ = 0;
    for (size_t t = 0; t < values.size(); ++t) add_term(entries, values[t], pattern_.terms()[t], held);
    for (int64_t i = 0; i < n; ++i) {
      const auto k = static_cast<size_t>(i);
      entries.emplace_back(num_residuals_ + i, i, held[k] == 0 ? std::sqrt(added[k]) / scales_[i] : 1);
    }
    Matrix matrix(num_residuals_ + n, n);
    matrix.setFromTriplets(entries.begin(), entries.end());
    if (!analyzed_) factors_.analyzePattern(matrix);
    analyzed_ = true;
    factors_.factorize(matrix);
    if (factors_.info() != Eigen::Success || factors_.rank() < n) return false;
    r_ = factors_.matrixR().topLeftCorner(n, n);
    return true;
  }

  std::vector<double> least_squares(const std::vector<BlockValues>& values) const override {
    Eigen::VectorXd rhs = Eigen::VectorXd::Zero(num_residuals_ + pattern_.num_remaining());
    int64_t at = 0;
    for (const BlockValues& of_term : values) {
      const auto* residuals = of_term.residuals.const_data_ptr<double>();
      for (int64_t k = 0; k < of_term.residuals.numel(); ++k) rhs[at++] = -residuals[k];
    }
    const Eigen::VectorXd x = factors_.solve(rhs).cwiseQuotient(scales_);
    return {x.data(), x.data() + x.size()};
  }

  Tensor solve(const Tensor& b) const override {
    using Columns = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Tensor rhs = b.contiguous();
    Tensor x = at::empty_like(rhs);
    const Eigen::Map<const Columns> given(rhs.const_data_ptr<double>(), rhs.size(0), rhs.size(1));
    Eigen::MatrixXd v = factors_.colsPermutation().transpose() * (scales_.cwiseInverse().asDiagonal() * given);
    r_.transpose().triangularView<Eigen::Lower>().solveInPlace(v);
    r_.triangularView<Eigen::Upper>().solveInPlace(v);
    Eigen::Map<Columns>(x.mutable_data_ptr<double>(), x.size(0), x.size(1)) =
        scales_.cwiseInverse().asDiagonal() * (factors_.colsPermutation() * v);
    return x;
  }

 private:
  using Index = int64_t;
  using Matrix = Eigen::SparseMatrix<double, Eigen::ColMajor, Index>;

  void add_term(std::vector<Eigen::Triplet<double, Index>>& entries, const BlockValues& values, const BlockTerm& term,
                const std::vector<double>& held) {
    const int64_t depth = values.jacobians.size(1), width = values.jacobians.size(2);
    const auto* jacobian = values.jacobians.const_data_ptr<double>();
    for (int64_t row = 0; row < term.blocks * depth; ++row, jacobian += width)
      for (const BlockUse& use : term.uses) {
        const int64_t number = pattern_.number(use.kind, use.rows[static_cast<size_t>(row / depth)]);
        for (int64_t i = 0; i < pattern_.size(number); ++i) {
          const int64_t column = pattern_.offset(number) + i;
          const bool free = held[static_cast<size_t>(column)] == 0;
          entries.emplace_back(num_residuals_ + row, column, free ? jacobian[use.column + i] / scales_[column] : 0);
        }
      }
    num_residuals_ += term.blocks * depth;
  }

  const BlockPattern& pattern_;
  Eigen::SparseQR<Matrix, Eigen::COLAMDOrdering<Index>> factors_;
  Eigen::SparseMatrix<double, Eigen::RowMajor, Index> r_;
  Eigen::VectorXd scales_;
  int64_t num_residuals_ = 0;
  bool analyzed_ = false;
};

}  // namespace

std::unique_ptr<BlockQr> block_qr(const BlockPattern& pattern) { return std::make_unique<EigenQr>(pattern); }
#else
std::unique_ptr<BlockQr> block_qr(const BlockPattern&) {
  throw UnsupportedError(
      "block_least_squares: the solver qr takes Eigen's sparse QR, and Tower was built without Eigen. Build it with "
      "Eigen, or let the solver be cholesky.");
}
#endif

}  // namespace tower::solvers
