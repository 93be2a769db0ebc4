#include "solvers/block_factors.h"

#include <ATen/Functions.h>

#include <string>

#include "tower/errors.h"

#ifdef TOWER_HAS_EIGEN
#define EIGEN_MPL2_ONLY
#include <Eigen/SparseCholesky>
#endif

namespace tower::solvers {
namespace {

// Up to so many numbers LibTorch's dense factors take less time than the order in which a sparse matrix is eliminated
// (bench/bundle_adjustment).
constexpr int64_t kDenseUpTo = 600;
// Above this part of all entries the factors are full.
constexpr double kFull = 0.3;
// Dense factors without an alternative: 3 GB.
constexpr int64_t kDenseAtAll = 20'000;

class DenseBlocks final : public BlockFactors {
 public:
  explicit DenseBlocks(const BlockPattern& pattern) : pattern_(pattern) {}

  bool factor(const double* values) override {
    const int64_t n = pattern_.num_remaining();
    const Tensor matrix = at::zeros({n, n}, at::kDouble);
    double* all = matrix.mutable_data_ptr<double>();
    // Blocks above the diagonal, as the lower triangle has them.
    for (int64_t row = 0; row < pattern_.num_others(); ++row)
      for (const auto& [column, at] : pattern_.entries().of(row)) {
        const int64_t rows = pattern_.size(row), columns = pattern_.size(column);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < columns; ++j)
            all[(pattern_.offset(column) + j) * n + pattern_.offset(row) + i] = values[at + i * columns + j];
      }
    const auto [lower, info] = at::linalg_cholesky_ex(matrix);
    lower_ = lower;
    return info.item<int>() == 0;
  }
  Tensor solve(const Tensor& b) const override { return at::cholesky_solve(b, lower_); }

 private:
  const BlockPattern& pattern_;
  Tensor lower_;
};

#ifdef TOWER_HAS_EIGEN
class SparseBlocks final : public BlockFactors {
 public:
  explicit SparseBlocks(const BlockPattern& pattern) : pattern_(pattern) {
    const int64_t n = pattern.num_remaining();
    matrix_.resize(n, n);
    std::vector<Eigen::Index> lengths;
    for (int64_t row = 0; row < pattern.num_others(); ++row) {
      int64_t length = 0;
      for (const auto& [column, at] : pattern.entries().of(row)) length += pattern.size(column);
      for (int64_t i = 0; i < pattern.size(row); ++i) lengths.push_back(length - i);
    }
    matrix_.reserve(lengths);
    each([&](int64_t row, int64_t column, int64_t) { matrix_.insert(column, row) = 1; });
    matrix_.makeCompressed();
    factors_.analyzePattern(matrix_);
  }

  bool factor(const double* values) override {
    double* next = matrix_.valuePtr();
    each([&](int64_t, int64_t, int64_t at) { *next++ = values[at]; });
    factors_.factorize(matrix_);
    return factors_.info() == Eigen::Success;
  }
  Tensor solve(const Tensor& b) const override {
    using Columns = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Tensor rhs = b.contiguous();
    Tensor x = at::empty_like(rhs);
    Eigen::Map<Columns>(x.mutable_data_ptr<double>(), x.size(0), x.size(1)) =
        factors_.solve(Eigen::Map<const Columns>(rhs.const_data_ptr<double>(), rhs.size(0), rhs.size(1)));
    return x;
  }

 private:
  using Matrix = Eigen::SparseMatrix<double, Eigen::ColMajor, int64_t>;

  // f(row, column, place among the values) for the upper triangle, row by row: the columns of the lower one.
  template <class F>
  void each(const F& f) {
    for (int64_t row = 0; row < pattern_.num_others(); ++row)
      for (int64_t i = 0; i < pattern_.size(row); ++i)
        for (const auto& [column, at] : pattern_.entries().of(row))
          for (int64_t j = column == row ? i : 0; j < pattern_.size(column); ++j)
            f(pattern_.offset(row) + i, pattern_.offset(column) + j, at + i * pattern_.size(column) + j);
  }

  const BlockPattern& pattern_;
  Matrix matrix_;
  Eigen::SimplicialLLT<Matrix> factors_;
};
#endif

}  // namespace

std::unique_ptr<BlockFactors> block_factors(const BlockPattern& pattern) {
  const int64_t n = pattern.num_remaining();
#ifdef TOWER_HAS_EIGEN
  const double all = static_cast<double>(n) * static_cast<double>(n);
  if (n > kDenseUpTo && 2 * static_cast<double>(pattern.entry_values()) < kFull * all)
    return std::make_unique<SparseBlocks>(pattern);
#endif
  if (n > kDenseAtAll)
    throw UnsupportedError("block_least_squares: " + std::to_string(n) +
                           " numbers are left to factor, densely. Eliminate a kind of unknowns that no block takes two "
                           "of first, or build Tower with Eigen, for sparse factors.");
  return std::make_unique<DenseBlocks>(pattern);
}

}  // namespace tower::solvers
