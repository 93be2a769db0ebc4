#include "rules/small_solves.h"

#include <ATen/ExpandUtils.h>

#include "numbers/thresholds.h"
#include "rules/small_matrices.h"

namespace tower::rules::small {

using namespace compiler;

namespace {

Sizes broadcast_sizes(const Batch& a, const Batch& b) { return Sizes(at::infer_size(a.sizes, b.sizes)); }

Small results_for(const SmallCall& c, size_t result, const Sizes& batch, std::initializer_list<int64_t> item) {
  Small t{batch, {}, c.dtypes[result]};
  t.sizes.append(item);
  return t;
}

void transpose(Batch& batch) {
  for (Grid& grid : batch.grids) grid = transposed(grid);
}

// A system that is too large to be written out: its solution, and the first pivot that is zero.
E solve_in_memory(const SmallCall& c, const Grid& a, Grid& b) {
  std::vector<Id> operands;
  for (const Grid* part : {&a, static_cast<const Grid*>(&b)})
    for (const auto& row : *part)
      for (const E& e : row) operands.push_back(e.id());
  const std::vector<Id> x =
      c.graph.solve(static_cast<int64_t>(a.size()), static_cast<int64_t>(b[0].size()), std::move(operands));
  size_t next = 0;
  for (auto& row : b)
    for (E& e : row) e = E(c.graph, x[next++]);
  return E(c.graph, x.back()).to(Type::i32);
}

}  // namespace

// (A, B, left, check_errors) → solution, LU, pivots, info. In memory the factors are not given: a call whose factors
// are read stays LibTorch's.
SmallResults solve(const SmallCall& c) {
  const Small &a = *c.operands[0], &b = *c.operands[1];
  if (!fits(c, a) || !is_square(a) || b.dtype != a.dtype) return {};
  const bool left = c.arg(2).toBool(), vector = is_for_vector(a.sizes, b.sizes);
  const bool in_memory = a.sizes.back() > thresholds().most_written_out;
  // From the right it is the transposed system, whose first pivot that is zero may be another one.
  if (in_memory && !left && !c.checks) return {};
  const Batch systems = matrices_of(c, a);
  Batch sides = vector ? columns_of(c, b) : matrices_of(c, b);
  const Sizes sizes = broadcast_sizes(systems, sides);
  sides = expanded(sides, sizes);
  Small solution = results_for(c, 0, sizes, {}), lu{a.sizes, {}, c.dtypes[1]}, rows{systems.sizes, {}, c.dtypes[2]},
        info{systems.sizes, {}, c.dtypes[3]};
  solution.sizes.append(b.sizes.end() - (vector ? 1 : 2), b.sizes.end());
  rows.sizes.push_back(a.sizes.back());
  const std::vector<size_t> read = broadcast(systems.sizes, sizes);
  for (size_t k = 0; k < read.size(); ++k) {
    const Grid& system = systems.grids[read[k]];
    Grid x = left ? sides.grids[k] : transposed(sides.grids[k]);
    if (x.size() != system.size()) return {};
    const bool is_first = read[k] == info.ids.size();  // of the systems that this one is read for
    if (in_memory) {
      const E zero_pivot = solve_in_memory(c, left ? system : transposed(system), x);
      if (is_first) info.ids.push_back(zero_pivot.id());
    } else {
      Grid nothing(system.size());
      const Factored f = factor(c, system, left ? x : nothing);
      const std::vector<E> exchanged = pivots(c, f);
      if (left) {
        solve_upper(f.lu, &f.inverse, x);
      } else {
        const Grid turned = transposed(f.lu);
        solve_lower(turned, &f.inverse, x);
        solve_upper(turned, nullptr, x);
        for (size_t i = x.size(); i-- > 0;) exchange_rows(c, x, i, exchanged[i]);
      }
      if (is_first) {
        append(lu, f.lu);
        append(rows, exchanged);
        info.ids.push_back(f.info.id());
      }
    }
    append(solution, left ? x : transposed(x));
  }
  if (in_memory) return checked(c, info, {solution, Small{}, Small{}, info});
  return checked(c, info, {solution, lu, rows, info});
}

// (LU, pivots, B, left, adjoint)
SmallResults lu_solve(const SmallCall& c) {
  const Small &lu = *c.operands[0], &rows = *c.operands[1], &b = *c.operands[2];
  if (!fits(c, lu) || !is_square(lu) || b.dtype != lu.dtype || b.sizes.size() < 2 || rows.sizes.empty()) return {};
  const bool left = c.arg(3).toBool(), adjoint = c.arg(4).toBool();
  Batch factors = matrices_of(c, lu), exchanges = columns_of(c, rows), sides = matrices_of(c, b);
  const Sizes sizes = broadcast_sizes(factors, sides);
  if (exchanges.sizes != factors.sizes) return {};
  factors = expanded(factors, sizes);
  exchanges = expanded(exchanges, sizes);
  sides = expanded(sides, sizes);
  Small solution = results_for(c, 0, sizes, {b.sizes.end()[-2], b.sizes.back()});
  for (size_t k = 0; k < factors.grids.size(); ++k) {
    const Grid &factor = factors.grids[k], &row = exchanges.grids[k];
    const size_t n = factor.size();
    // From the right: the transposed problem from the left.
    Grid x = left ? sides.grids[k] : transposed(sides.grids[k]);
    if (x.size() != n || row.size() != n) return {};
    if (adjoint != left) {
      const std::vector<E> inverse = inverse_diagonal(factor);
      for (size_t i = 0; i < n; ++i) exchange_rows(c, x, i, row[i][0]);
      solve_lower(factor, nullptr, x);
      solve_upper(factor, &inverse, x);
    } else {
      const Grid turned = transposed(factor);
      const std::vector<E> inverse = inverse_diagonal(factor);
      solve_lower(turned, &inverse, x);
      solve_upper(turned, nullptr, x);
      for (size_t i = n; i-- > 0;) exchange_rows(c, x, i, row[i][0]);
    }
    append(solution, left ? x : transposed(x));
  }
  return {solution};
}

// (A, check_errors) → inverse, info
SmallResults inverse(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a) || !is_square(a)) return {};
  const Batch batch = matrices_of(c, a);
  Small inverses{a.sizes, {}, c.dtypes[0]}, info{batch.sizes, {}, c.dtypes[1]};
  for (const Grid& grid : batch.grids) {
    const size_t n = grid.size();
    const Factored f = factor(c, grid);
    // Of L U first, whose zeros are known; then columns go back to where the rows came from.
    Grid x = identity(n, n, grid[0][0]);
    for (size_t j = 0; j < n; ++j)
      for (size_t i = j + 1; i < n; ++i) {
        E e = -f.lu[i][j];
        for (size_t k = j + 1; k < i; ++k) e = less(e, f.lu[i][k], x[k][j]);
        x[i][j] = e;
      }
    solve_upper(f.lu, &f.inverse, x);
    for (size_t k = n; k-- > 0;)
      for (size_t i = n; i-- > k + 1;)
        for (auto& row : x) exchange(f.is_pivot[k][i - k - 1], row[k], row[i]);
    append(inverses, x);
    info.ids.push_back(f.info.id());
  }
  return checked(c, info, {inverses, info});
}

// (A, upper, check_errors) → factor, info
SmallResults cholesky(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a) || !is_square(a)) return {};
  const bool upper = c.arg(1).toBool();
  const Batch batch = matrices_of(c, a);
  Small factors{a.sizes, {}, c.dtypes[0]}, info{batch.sizes, {}, c.dtypes[1]};
  for (const Grid& grid : batch.grids) {
    Grid l = upper ? transposed(grid) : grid;
    E failed = c.constant(Type::i32, 0);
    for (size_t j = 0; j < l.size(); ++j) {
      for (size_t k = 0; k < j; ++k) l[j][j] = less(l[j][j], l[j][k], l[j][k]);
      failed = where((!(l[j][j] > 0)) & (failed == 0), static_cast<double>(j + 1), failed);
      l[j][j] = sqrt(l[j][j]);
      const E inverse = 1 / l[j][j];
      for (size_t i = j + 1; i < l.size(); ++i) {
        for (size_t k = 0; k < j; ++k) l[i][j] = less(l[i][j], l[i][k], l[j][k]);
        l[i][j] = l[i][j] * inverse;
      }
      for (size_t i = 0; i < j; ++i) l[i][j] = c.constant(c.type(0), 0);
    }
    append(factors, upper ? transposed(l) : l);
    info.ids.push_back(failed.id());
  }
  return checked(c, info, {factors, info});
}

// (A, B, upper, left, unitriangular)
SmallResults solve_triangular(const SmallCall& c) {
  const Small &a = *c.operands[0], &b = *c.operands[1];
  if (!fits(c, a) || !is_square(a) || b.dtype != a.dtype || b.sizes.size() < 2) return {};
  const bool upper = c.arg(2).toBool(), left = c.arg(3).toBool(), unit = c.arg(4).toBool();
  Batch triangles = matrices_of(c, a), sides = matrices_of(c, b);
  const Sizes sizes = broadcast_sizes(triangles, sides);
  if (!left) {
    transpose(triangles);
    transpose(sides);
  }
  triangles = expanded(triangles, sizes);
  sides = expanded(sides, sizes);
  Small solution = results_for(c, 0, sizes, {b.sizes.end()[-2], b.sizes.back()});
  for (size_t k = 0; k < triangles.grids.size(); ++k) {
    const Grid& triangle = triangles.grids[k];
    Grid& x = sides.grids[k];
    if (x.size() != triangle.size()) return {};
    const std::vector<E> inverse = unit ? std::vector<E>{} : inverse_diagonal(triangle);
    if (upper == left) solve_upper(triangle, unit ? nullptr : &inverse, x);
    else solve_lower(triangle, unit ? nullptr : &inverse, x);
    append(solution, left ? x : transposed(x));
  }
  return {solution};
}

}  // namespace tower::rules::small
