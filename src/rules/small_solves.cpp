// Factorizations of small matrices and what is solved with them. Rows are exchanged by each lane for itself: where one
// may go to several places, each of these chooses.
#include "rules/small_solves.h"

#include <cmath>

#include "numbers/thresholds.h"

namespace tower::rules::small {

using namespace compiler;

namespace {

using Grid = std::vector<std::vector<E>>;

Grid grid_of(const SmallCall& c, const Small& t) {
  Grid grid(t.size(0));
  const size_t columns = t.sizes.size() > 1 ? t.size(1) : 1;  // a vector is a column
  for (size_t i = 0; i < grid.size(); ++i)
    for (size_t j = 0; j < columns; ++j) grid[i].push_back(c.at(t, i * columns + j));
  return grid;
}

Grid transposed(const Grid& a) {
  Grid result(a.empty() ? 0 : a[0].size());
  for (const auto& row : a)
    for (size_t j = 0; j < row.size(); ++j) result[j].push_back(row[j]);
  return result;
}

Small small_of(const Grid& grid, const Sizes& sizes, at::ScalarType dtype) {
  Small t{sizes, {}, dtype};
  for (const auto& row : grid)
    for (const E& e : row) t.ids.push_back(e.id());
  return t;
}

Small small_of(const std::vector<E>& list, at::ScalarType dtype) {
  Small t{{static_cast<int64_t>(list.size())}, {}, dtype};
  for (const E& e : list) t.ids.push_back(e.id());
  return t;
}

void exchange(const E& swaps, E& a, E& b) {
  const E before = a;
  a = where(swaps, b, before);
  b = where(swaps, before, b);
}

// Row k of `a` with that of the rows after it for which `swaps` holds, one at most.
void exchange_rows(Grid& a, size_t k, const std::vector<E>& swaps) {
  for (size_t j = 0; j < a[k].size(); ++j) {
    const E before = a[k][j];
    for (size_t i = k + 1; i < a.size(); ++i) {
      E& other = a[i][j];
      a[k][j] = where(swaps[i - k - 1], other, a[k][j]);
      other = where(swaps[i - k - 1], before, other);
    }
  }
}

// a − b c, rounded once.
E less(const E& a, const E& b, const E& c) { return fma(-b, c, a); }

// LU by columns, as LAPACK has it: of pivots of one size the first is taken, and a column of zeros is passed over.
struct Factored {
  Grid lu;
  std::vector<E> inverse;                // of the pivots
  std::vector<std::vector<E>> is_pivot;  // of column k: whether row i is exchanged with row k, for i > k
  std::optional<E> info;                 // the first pivot that is zero, from 1
};

// What else goes through the exchanges and eliminations are the rows of `with`.
Factored factor(const SmallCall& c, Grid a, Grid& with) {
  const size_t n = a.size();
  Factored f;
  E info = c.constant(Type::i32, 0);
  for (size_t k = 0; k < n; ++k) {
    // Which row: the greatest so far moves up from row to row.
    E best = abs(a[k][k]);
    std::vector<E> better;
    for (size_t i = k + 1; i < n; ++i) {
      const E size = abs(a[i][k]);
      better.push_back(size > best);
      best = where(better.back(), size, best);
    }
    std::vector<E> is_pivot(better);
    for (size_t i = is_pivot.size(); i-- > 0;)
      for (size_t later = i + 1; later < better.size(); ++later) is_pivot[i] = is_pivot[i] & !better[later];
    exchange_rows(a, k, is_pivot);
    exchange_rows(with, k, is_pivot);
    const E pivot = a[k][k], is_zero = pivot == 0;
    info = where(is_zero & (info == 0), static_cast<double>(k + 1), info);
    const E inverse = 1 / pivot, scale = where(is_zero, 1, inverse);
    for (size_t i = k + 1; i < n; ++i) {
      a[i][k] = a[i][k] * scale;
      for (size_t j = k + 1; j < n; ++j) a[i][j] = less(a[i][j], a[i][k], a[k][j]);
      for (size_t j = 0; j < with[k].size(); ++j) with[i][j] = less(with[i][j], a[i][k], with[k][j]);
    }
    f.inverse.push_back(inverse);
    f.is_pivot.push_back(std::move(is_pivot));
  }
  f.lu = std::move(a);
  f.info = info;
  return f;
}

// As LAPACK numbers them: the row that row k was exchanged with, from 1.
std::vector<E> pivots(const SmallCall& c, const Factored& f) {
  std::vector<E> result;
  for (size_t k = 0; k < f.lu.size(); ++k) {
    E row = c.constant(Type::i32, static_cast<double>(k + 1));
    for (size_t i = 0; i < f.is_pivot[k].size(); ++i)
      row = where(f.is_pivot[k][i], static_cast<double>(k + i + 2), row);
    result.push_back(row);
  }
  return result;
}

// U x = b, of the upper triangle of `a`.
void solve_upper(const Grid& a, const std::vector<E>& inverse, Grid& b) {
  for (size_t k = a.size(); k-- > 0;)
    for (E& e : b[k]) {
      const auto column = static_cast<size_t>(&e - b[k].data());
      for (size_t j = k + 1; j < a.size(); ++j) e = less(e, a[k][j], b[j][column]);
      e = e * inverse[k];
    }
}
void solve_lower(const Grid& a, const std::vector<E>* inverse, Grid& b) {
  for (size_t k = 0; k < a.size(); ++k)
    for (E& e : b[k]) {
      const auto column = static_cast<size_t>(&e - b[k].data());
      for (size_t j = 0; j < k; ++j) e = less(e, a[k][j], b[j][column]);
      if (inverse) e = e * (*inverse)[k];
    }
}

std::vector<E> inverse_diagonal(const Grid& a) {
  std::vector<E> result;
  for (size_t k = 0; k < a.size(); ++k) result.push_back(1 / a[k][k]);
  return result;
}

// Where the call is told to check for errors, its results come after a check that the matrix could be factored.
SmallResults checked(const SmallCall& c, const E& info, SmallResults results) {
  if (!c.checks) return results;
  const Id failed = (info != 0).id();
  for (Small& t : results) t.ids = c.graph.checked(failed, std::move(t.ids));
  return results;
}

bool is_square(const Small& a) { return a.sizes.size() == 2 && a.sizes[0] == a.sizes[1] && a.sizes[0] > 0; }
bool fits(const SmallCall& c, const Small& a) { return is_square(a) && a.dtype == c.dtypes[0] && is_float(c.type(0)); }
bool is_right_side(const Small& a, const Small& b) {
  return (b.sizes.size() == 1 || b.sizes.size() == 2) && b.sizes[0] == a.sizes[0];
}

// Of a system that is too large to be written out. The factors are not given: a call whose factors are read stays
// LibTorch's.
SmallResults solve_in_memory(const SmallCall& c, const Small& a, const Small& b) {
  std::vector<Id> operands = a.ids;
  operands.insert(operands.end(), b.ids.begin(), b.ids.end());
  const int64_t columns = b.sizes.size() == 1 ? 1 : b.sizes[1];
  std::vector<Id> x = c.graph.solve(a.sizes[0], columns, std::move(operands));
  const Id info = c.graph.cast(x.back(), Type::i32);
  x.pop_back();
  return checked(c, {c.graph, info},
                 {Small{b.sizes, std::move(x), c.dtypes[0]}, Small{}, Small{}, Small{{}, {info}, c.dtypes[3]}});
}

}  // namespace

// (A, B, left, check_errors) → solution, LU, pivots, info
SmallResults solve(const SmallCall& c) {
  const Small &a = *c.operands[0], &b = *c.operands[1];
  if (!fits(c, a) || b.dtype != a.dtype || !is_right_side(a, b) || !c.arg(2).toBool()) return {};
  if (a.sizes[0] > thresholds().most_written_out) return solve_in_memory(c, a, b);
  Grid x = grid_of(c, b);
  const Factored f = factor(c, grid_of(c, a), x);
  solve_upper(f.lu, f.inverse, x);
  return checked(c, *f.info,
                 {small_of(x, b.sizes, c.dtypes[0]), small_of(f.lu, a.sizes, c.dtypes[1]),
                  small_of(pivots(c, f), c.dtypes[2]), Small{{}, {f.info->id()}, c.dtypes[3]}});
}

// (A, pivot, check_errors) → LU, pivots, info
SmallResults lu_factor(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a) || !c.arg(1).toBool()) return {};
  Grid nothing(a.size(0));
  const Factored f = factor(c, grid_of(c, a), nothing);
  return checked(c, *f.info,
                 {small_of(f.lu, a.sizes, c.dtypes[0]), small_of(pivots(c, f), c.dtypes[1]),
                  Small{{}, {f.info->id()}, c.dtypes[2]}});
}

// (LU, pivots, B, left, adjoint)
SmallResults lu_solve(const SmallCall& c) {
  const Small &lu = *c.operands[0], &rows = *c.operands[1], &b = *c.operands[2];
  if (!fits(c, lu) || b.dtype != lu.dtype || b.sizes.size() != 2 || rows.sizes.size() != 1) return {};
  const bool left = c.arg(3).toBool(), adjoint = c.arg(4).toBool();
  const size_t n = lu.size(0);
  const Grid factors = grid_of(c, lu);
  // From the right: the transposed problem from the left.
  Grid x = left ? grid_of(c, b) : transposed(grid_of(c, b));
  if (x.size() != n) return {};
  const auto exchange_row = [&](size_t k) {
    std::vector<E> swaps;
    for (size_t i = k + 1; i < n; ++i) swaps.push_back(c.at(rows, k) == static_cast<double>(i + 1));
    exchange_rows(x, k, swaps);
  };
  if (adjoint != left) {
    for (size_t k = 0; k < n; ++k) exchange_row(k);
    solve_lower(factors, nullptr, x);
    solve_upper(factors, inverse_diagonal(factors), x);
  } else {
    const Grid turned = transposed(factors);
    const std::vector<E> inverse = inverse_diagonal(factors);
    solve_lower(turned, &inverse, x);
    solve_upper(turned, std::vector<E>(n, c.constant(c.type(0), 1)), x);
    for (size_t k = n; k-- > 0;) exchange_row(k);
  }
  return {small_of(left ? x : transposed(x), b.sizes, c.dtypes[0])};
}

// (A, check_errors) → inverse, info
SmallResults inverse(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a)) return {};
  const size_t n = a.size(0);
  Grid nothing(n);
  const Factored f = factor(c, grid_of(c, a), nothing);
  // Of L U first, whose zeros are known; then columns go back to where the rows came from.
  const E zero = c.constant(c.type(0), 0), one = c.constant(c.type(0), 1);
  Grid x(n, std::vector<E>(n, zero));
  for (size_t j = 0; j < n; ++j) {
    x[j][j] = one;
    for (size_t i = j + 1; i < n; ++i) {
      E e = -f.lu[i][j];
      for (size_t k = j + 1; k < i; ++k) e = less(e, f.lu[i][k], x[k][j]);
      x[i][j] = e;
    }
  }
  solve_upper(f.lu, f.inverse, x);
  for (size_t k = n; k-- > 0;)
    for (size_t i = n; i-- > k + 1;)
      for (auto& row : x) exchange(f.is_pivot[k][i - k - 1], row[k], row[i]);
  return checked(c, *f.info, {small_of(x, a.sizes, c.dtypes[0]), Small{{}, {f.info->id()}, c.dtypes[1]}});
}

// → determinant, LU, pivots. Whether the factors are those of the matrix or of its transpose depends on how it lies in
// memory.
SmallResults determinant(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a)) return {};
  Grid nothing(a.size(0));
  const Factored f = factor(c, grid_of(c, a), nothing);
  E product = f.lu[0][0];
  for (size_t k = 1; k < f.lu.size(); ++k) product = product * f.lu[k][k];
  E odd = c.constant(Type::b1, 0);
  for (const auto& column : f.is_pivot)
    for (const E& swapped : column) odd = odd ^ swapped;
  return {Small{{}, {where(odd, -product, product).id()}, c.dtypes[0]}, Small{}, Small{}};
}

// (A, upper, check_errors) → factor, info
SmallResults cholesky(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a)) return {};
  const bool upper = c.arg(1).toBool();
  const size_t n = a.size(0);
  Grid l = upper ? transposed(grid_of(c, a)) : grid_of(c, a);
  E info = c.constant(Type::i32, 0);
  for (size_t j = 0; j < n; ++j) {
    for (size_t k = 0; k < j; ++k) l[j][j] = less(l[j][j], l[j][k], l[j][k]);
    info = where((!(l[j][j] > 0)) & (info == 0), static_cast<double>(j + 1), info);
    l[j][j] = sqrt(l[j][j]);
    const E inverse = 1 / l[j][j];
    for (size_t i = j + 1; i < n; ++i) {
      for (size_t k = 0; k < j; ++k) l[i][j] = less(l[i][j], l[i][k], l[j][k]);
      l[i][j] = l[i][j] * inverse;
    }
    for (size_t i = 0; i < j; ++i) l[i][j] = c.constant(c.type(0), 0);
  }
  return checked(c, info,
                 {small_of(upper ? transposed(l) : l, a.sizes, c.dtypes[0]), Small{{}, {info.id()}, c.dtypes[1]}});
}

// (A, B, upper, left, unitriangular)
SmallResults solve_triangular(const SmallCall& c) {
  const Small &a = *c.operands[0], &b = *c.operands[1];
  if (!fits(c, a) || b.dtype != a.dtype || b.sizes.size() != 2) return {};
  const bool upper = c.arg(2).toBool(), left = c.arg(3).toBool(), unit = c.arg(4).toBool();
  const Grid triangle = left ? grid_of(c, a) : transposed(grid_of(c, a));
  Grid x = left ? grid_of(c, b) : transposed(grid_of(c, b));
  if (x.size() != triangle.size()) return {};
  const std::vector<E> inverse =
      unit ? std::vector<E>(triangle.size(), c.constant(c.type(0), 1)) : inverse_diagonal(triangle);
  if (upper == left) solve_upper(triangle, inverse, x);
  else solve_lower(triangle, &inverse, x);
  return {small_of(left ? x : transposed(x), b.sizes, c.dtypes[0])};
}

}  // namespace tower::rules::small
