#include "rules/small_matrices.h"

#include <algorithm>
#include <cmath>

namespace tower::rules::small {

using namespace compiler;

namespace {

Batch grids_of(const SmallCall& c, const Small& t, Sizes sizes, size_t rows, size_t columns) {
  Batch batch{std::move(sizes), {}};
  for (size_t first = 0; first < t.ids.size(); first += rows * columns) {
    Grid grid(rows);
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < columns; ++j) grid[i].push_back(c.at(t, first + i * columns + j));
    batch.grids.push_back(std::move(grid));
  }
  return batch;
}

Sizes in_front(const Small& t, int64_t item) { return Sizes(t.sizes.begin(), t.sizes.end() - item); }

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

// A number that is chosen among constants is no less than the least of them; of others nothing is known.
double least_of(const Expressions& g, Id id) {
  if (const auto value = g.value(id)) return *value;
  const Node& n = g[id];
  return n.op == Op::select ? std::min(least_of(g, n.args[1]), least_of(g, n.args[2])) : 0;
}

}  // namespace

Batch matrices_of(const SmallCall& c, const Small& t) {
  return grids_of(c, t, in_front(t, 2), static_cast<size_t>(t.sizes.end()[-2]), static_cast<size_t>(t.sizes.back()));
}
Batch columns_of(const SmallCall& c, const Small& t) {
  return grids_of(c, t, in_front(t, 1), static_cast<size_t>(t.sizes.back()), 1);
}

Batch expanded(const Batch& batch, const Sizes& sizes) {
  Batch result{sizes, {}};
  for (const size_t k : broadcast(batch.sizes, sizes)) result.grids.push_back(batch.grids[k]);
  return result;
}

Grid transposed(const Grid& a) {
  Grid result(a.empty() ? 0 : a[0].size());
  for (const auto& row : a)
    for (size_t j = 0; j < row.size(); ++j) result[j].push_back(row[j]);
  return result;
}

Grid filled(size_t rows, size_t columns, const E& number) { return Grid(rows, std::vector<E>(columns, number)); }

Grid identity(size_t rows, size_t columns, const E& of_type) {
  Grid grid = filled(rows, columns, of_type.like(0));
  for (size_t i = 0; i < std::min(rows, columns); ++i) grid[i][i] = of_type.like(1);
  return grid;
}

void append(Small& t, const Grid& grid) {
  for (const auto& row : grid) append(t, row);
}
void append(Small& t, const std::vector<E>& elements) {
  for (const E& e : elements) t.ids.push_back(e.id());
}

bool fits(const SmallCall& c, const Small& a) {
  return a.sizes.size() >= 2 && a.dtype == c.dtypes[0] && is_float(c.type(0));
}
bool is_square(const Small& a) { return a.sizes.size() >= 2 && a.sizes.end()[-2] == a.sizes.back(); }

void exchange(const E& swaps, E& a, E& b) {
  const E before = a;
  a = where(swaps, b, before);
  b = where(swaps, before, b);
}

Factored factor(const SmallCall& c, Grid a, Grid& with) {
  const size_t m = a.size(), n = a[0].size();
  Factored f{{}, {}, {}, c.constant(Type::i32, 0)};
  for (size_t k = 0; k < std::min(m, n); ++k) {
    // Which row: the greatest so far moves up from row to row.
    E best = abs(a[k][k]);
    std::vector<E> better;
    for (size_t i = k + 1; i < m; ++i) {
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
    f.info = where(is_zero & (f.info == 0), static_cast<double>(k + 1), f.info);
    const E inverse = 1 / pivot, scale = where(is_zero, 1, inverse);
    for (size_t i = k + 1; i < m; ++i) {
      a[i][k] = a[i][k] * scale;
      for (size_t j = k + 1; j < n; ++j) a[i][j] = less(a[i][j], a[i][k], a[k][j]);
      for (size_t j = 0; j < with[k].size(); ++j) with[i][j] = less(with[i][j], a[i][k], with[k][j]);
    }
    f.inverse.push_back(inverse);
    f.is_pivot.push_back(std::move(is_pivot));
  }
  f.lu = std::move(a);
  return f;
}

std::vector<E> pivots(const SmallCall& c, const Factored& f) {
  std::vector<E> result;
  for (size_t k = 0; k < f.is_pivot.size(); ++k) {
    E row = c.constant(Type::i32, static_cast<double>(k + 1));
    for (size_t i = 0; i < f.is_pivot[k].size(); ++i)
      row = where(f.is_pivot[k][i], static_cast<double>(k + i + 2), row);
    result.push_back(row);
  }
  return result;
}

E is_odd(const SmallCall& c, const Factored& f) {
  E odd = c.constant(Type::b1, 0);
  for (const auto& column : f.is_pivot)
    for (const E& swapped : column) odd = odd ^ swapped;
  return odd;
}

void exchange_rows(const SmallCall& c, Grid& a, size_t k, const E& row) {
  const double least = least_of(c.graph, row.id());
  for (size_t j = 0; j < a[k].size(); ++j) {
    const E before = a[k][j];
    for (size_t i = 0; i < a.size(); ++i) {
      const auto number = static_cast<double>(i + 1);
      if (i == k || number < least) continue;
      const E swaps = row == number;
      E& other = a[i][j];
      a[k][j] = where(swaps, other, a[k][j]);
      other = where(swaps, before, other);
    }
  }
}

Grid permutation(const SmallCall& c, size_t rows, const std::vector<E>& pivots, const E& of_type) {
  Grid from(rows);
  for (size_t i = 0; i < rows; ++i) from[i].push_back(c.constant(Type::i32, static_cast<double>(i)));
  for (size_t k = 0; k < pivots.size(); ++k) exchange_rows(c, from, k, pivots[k]);
  Grid p(rows);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < rows; ++j)
      p[i].push_back(where(from[j][0] == static_cast<double>(i), of_type.like(1), of_type.like(0)));
  return p;
}

SmallResults checked(const SmallCall& c, const Small& info, SmallResults results) {
  if (!c.checks) return results;
  E failed = c.constant(Type::b1, 0);
  for (size_t k = 0; k < info.ids.size(); ++k) failed = failed | (c.at(info, k) != 0);
  for (Small& t : results) t.ids = c.graph.checked(failed.id(), std::move(t.ids));
  return results;
}

void solve_upper(const Grid& a, const std::vector<E>* inverse, Grid& b) {
  for (size_t k = a.size(); k-- > 0;)
    for (size_t column = 0; column < b[k].size(); ++column) {
      E& e = b[k][column];
      for (size_t j = k + 1; j < a.size(); ++j) e = less(e, a[k][j], b[j][column]);
      if (inverse) e = e * (*inverse)[k];
    }
}
void solve_lower(const Grid& a, const std::vector<E>* inverse, Grid& b) {
  for (size_t k = 0; k < a.size(); ++k)
    for (size_t column = 0; column < b[k].size(); ++column) {
      E& e = b[k][column];
      for (size_t j = 0; j < k; ++j) e = less(e, a[k][j], b[j][column]);
      if (inverse) e = e * (*inverse)[k];
    }
}

std::vector<E> inverse_diagonal(const Grid& a) {
  std::vector<E> result;
  for (size_t k = 0; k < a.size(); ++k) result.push_back(1 / a[k][k]);
  return result;
}

Scale scale_of(const E& largest) {
  const bool twice = largest.type() == Type::f64;
  const int large = twice ? 500 : 60, small = twice ? -480 : -48, down = twice ? -600 : -70, up = twice ? 600 : 102;
  const auto power = [](int exponent) { return std::ldexp(1.0, exponent); };
  const E is_large = largest > power(large), is_small = largest < power(small);
  return {where(is_large, largest.like(power(down)), where(is_small, largest.like(power(up)), largest.like(1))),
          where(is_large, largest.like(power(-down)), where(is_small, largest.like(power(-up)), largest.like(1)))};
}

}  // namespace tower::rules::small
