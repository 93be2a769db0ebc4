// What elimination leaves of a step's equations, by conjugate gradients, without the matrix: with Z = L⁻¹ W as in
// block_equations.cpp, S v = Hₒ v − Zᵀ (Z v), preconditioned by the Cholesky factors of S's diagonal blocks (S.
// Agarwal, N. Snavely, S. M. Seitz, R. Szeliski, Bundle adjustment in the large, 2010). A number is written by one
// thread, so that sums have one order.
#include <ATen/Parallel.h>

#include <atomic>
#include <numeric>

#include "solvers/block_equations.h"
#include "solvers/small_blocks.h"

namespace tower::solvers {
namespace {

constexpr int64_t kRowsAtOnce = 64;
// No more than this: what has not converged is a step all the same, and the cost says whether it is good.
constexpr int64_t kMostIterations = 500;

double product_of(const std::vector<double>& x, const std::vector<double>& y) {
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.);
}
// x += a y.
void add_multiple(std::vector<double>& x, double a, const std::vector<double>& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += a * y[i];
}

}  // namespace

bool BlockEquations::factor_diagonal() {
  std::atomic<bool> is_definite = true;
  at::parallel_for(0, pattern_->num_others(), kRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t size = pattern_->size(row);
      double* block = diagonal_factors_.data() + diagonal_starts_[place(row)];
      std::copy_n(left_.data() + pattern_->entries().of(row).begin()->values, size * size, block);
      for (const int64_t number : pattern_->ties_of_others().of(row)) {
        const double* image = images_.data() + pattern_->ties().all[place(number)].values;
        add_product(block, image, image, size, {-1, pattern_->eliminated_size(), size, size, size, size});
      }
      if (!factor_small(block, size)) is_definite = false;
    }
  });
  return is_definite;
}

void BlockEquations::precondition_left(std::vector<double>& x) const {
  at::parallel_for(0, pattern_->num_others(), kRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const double* lower = diagonal_factors_.data() + diagonal_starts_[place(row)];
      double* part = x.data() + pattern_->offset(row);
      solve_lower(lower, pattern_->size(row), part, 1);
      solve_upper(lower, pattern_->size(row), part, 1);
    }
  });
}

std::vector<double> BlockEquations::left_times(const std::vector<double>& v) const {
  const int64_t depth = pattern_->eliminated_size();
  std::vector<double> image(place(pattern_->num_eliminated() * depth)), result(v.size());
  at::parallel_for(0, pattern_->num_eliminated(), kRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e)
      for (const auto& tie : pattern_->ties().of(e))
        add_image(image.data() + e * depth, 1, images_.data() + tie.values, v.data() + pattern_->offset(tie.other),
                  depth, pattern_->size(tie.other));
  });
  // The upper triangle, and its transposed.
  for (int64_t row = 0; row < pattern_->num_others(); ++row)
    for (const auto& [column, start] : pattern_->entries().of(row)) {
      const int64_t rows = pattern_->size(row), columns = pattern_->size(column);
      const int64_t at = pattern_->offset(row), to = pattern_->offset(column);
      add_image(result.data() + at, 1, left_.data() + start, v.data() + to, rows, columns);
      if (column != row)
        add_product(result.data() + to, left_.data() + start, v.data() + at, 1, {1, rows, columns, columns, 1, 1});
    }
  at::parallel_for(0, pattern_->num_others(), kRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (const int64_t number : pattern_->ties_of_others().of(row)) {
        const BlockPattern::Tie& tie = pattern_->ties().all[place(number)];
        const int64_t size = pattern_->size(row);
        add_product(result.data() + pattern_->offset(row), image.data() + tie.eliminated * depth,
                    images_.data() + tie.values, size, {-1, depth, 1, 1, size, size});
      }
  });
  return result;
}

// S. G. Nash and A. Sofer, Assessing a search direction within a truncated-Newton method (1990), for the end: where an
// iteration takes little off ½ xᵀS x − bᵀx, beside the mean of all. The residual may be large long behind that.
void BlockEquations::iterate_left(std::vector<double>& x) const {
  std::vector<double> residual = x, z = x;
  std::fill(x.begin(), x.end(), 0.);
  precondition_left(z);
  std::vector<double> direction = z;
  double square = product_of(residual, z), taken = 0;
  for (int64_t k = 1; k <= kMostIterations && square > 0; ++k) {
    const std::vector<double> image = left_times(direction);
    const double curvature = product_of(direction, image);
    if (!(curvature > 0)) return;  // what rounding leaves of a singular matrix
    const double length = square / curvature, takes = 0.5 * square * length;
    add_multiple(x, length, direction);
    taken += takes;
    if (static_cast<double>(k) * takes < tolerance_ * taken) return;
    add_multiple(residual, -length, image);
    z = residual;
    precondition_left(z);
    const double next = product_of(residual, z);
    for (size_t i = 0; i < z.size(); ++i) direction[i] = z[i] + next / square * direction[i];
    square = next;
  }
}

}  // namespace tower::solvers
