#include "rules/small_spectra.h"

#include <algorithm>
#include <limits>

#include "rules/small_matrices.h"

namespace tower::rules::small {

using namespace compiler;

namespace {

constexpr int64_t kMostSweeps = 30;      // of rotations; some six to ten are made
constexpr int64_t kMostHalvings = 1100;  // of the largest number

double epsilon_of(Type type) {
  return type == Type::f64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

// A loop of numbers that goes on with all of a matrix, and with one number besides.
struct Carried {
  Grid grid;
  E number;
};
template <class Condition, class Step>
Carried loop_over(const SmallCall& c, const Carried& start, int64_t most, const Condition& condition,
                  const Step& step) {
  const auto ids_of = [](const Carried& carried) {
    std::vector<Id> ids;
    for (const auto& row : carried.grid)
      for (const E& e : row) ids.push_back(e.id());
    ids.push_back(carried.number.id());
    return ids;
  };
  const auto of_ids = [&](const std::vector<Id>& ids) {
    Carried carried = start;
    size_t next = 0;
    for (auto& row : carried.grid)
      for (E& e : row) e = E(c.graph, ids[next++]);
    carried.number = E(c.graph, ids[next]);
    return carried;
  };
  const LoopId loop = c.graph.open_loop(ids_of(start));
  const Carried before = of_ids(c.graph.loop(loop).carries);
  const E goes_on = condition(before);
  return of_ids(c.graph.close_loop(goes_on.id(), ids_of(step(before)), most, /*must_end=*/false));
}

E largest_of(const Grid& grid) {
  E largest = abs(grid[0][0]);
  for (const auto& row : grid)
    for (const E& e : row) largest = larger(largest, abs(e));
  return largest;
}

void multiply(Grid& grid, const E& by) {
  for (auto& row : grid)
    for (E& e : row) e = e * by;
}

void sort(std::vector<E>& values, bool descending) {
  for (size_t n = values.size(); n > 1; --n)
    for (size_t i = 0; i + 1 < n; ++i) {
      const E out_of_order = descending ? values[i] < values[i + 1] : values[i] > values[i + 1];
      exchange(out_of_order, values[i], values[i + 1]);
    }
}

// The tangent of the smaller angle by which a rotation takes (a g; g b) to a diagonal, a to a − t g and b to b + t g;
// zero where g is (Rutishauser 1966). Of a cotangent whose square may be out of range, one does not count beside it.
E tangent_of_rotation(const E& a, const E& b, const E& g) {
  const E cotangent = (b - a) / (g + g), size = abs(cotangent);
  const E t = 1 / (size + where(size > 0x1p60, size, sqrt(fma(size, size, size.like(1)))));
  return where(g == 0, 0, copysign(t, cotangent));
}

// What did not come to an end, as NaN does not, is an error of LibTorch's or none: LibTorch says it.
void give_unless(const SmallCall& c, const E& failed, Small& t) {
  t.ids = c.graph.checked(failed.id(), std::move(t.ids));
}

}  // namespace

// (A, UPLO, compute_v) → eigenvalues, eigenvectors. By Jacobi's rotations, one for each element above the diagonal in a
// sweep (Golub and Van Loan, "Matrix Computations", section 8.5). Which sign eigenvectors have is LAPACK's affair: a
// call whose vectors are read stays LibTorch's.
SmallResults symmetric_eigenvalues(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a) || !is_square(a)) return {};
  const bool upper = c.arg(1).toStringRef() == "U" || c.arg(1).toStringRef() == "u";
  const Batch batch = matrices_of(c, a);
  Small values{batch.sizes, {}, c.dtypes[0]};
  values.sizes.push_back(a.sizes.back());
  E failed = c.constant(Type::b1, 0);
  for (const Grid& grid : batch.grids) {
    // The upper triangle, row by row.
    const size_t n = grid.size();
    Grid triangle(n);
    for (size_t i = 0; i < n; ++i)
      for (size_t j = i; j < n; ++j) triangle[i].push_back(upper ? grid[i][j] : grid[j][i]);
    const Scale scale = scale_of(largest_of(triangle));
    multiply(triangle, scale.by);
    const auto remains = [&](const Grid& t) {
      const double e = epsilon_of(c.type(0)) / 4;
      E off = c.constant(c.type(0), 0), all = off;
      for (size_t i = 0; i < n; ++i) {
        all = fma(t[i][0], t[i][0], all);
        for (size_t j = 1; j < t[i].size(); ++j) off = fma(t[i][j], t[i][j], off);
      }
      return std::pair(off, (all + off) * (e * e));
    };
    const auto goes_on = [&](const Carried& before) {
      const auto [off, bound] = remains(before.grid);
      return off > bound;
    };
    const auto sweep = [&](const Carried& before) {
      Carried after = before;
      const auto at = [&](size_t i, size_t j) -> E& {
        return after.grid[std::min(i, j)][std::max(i, j) - std::min(i, j)];
      };
      for (size_t p = 0; p < n; ++p)
        for (size_t q = p + 1; q < n; ++q) {
          const E g = at(p, q), t = tangent_of_rotation(at(p, p), at(q, q), g);
          const E cosine = 1 / sqrt(fma(t, t, t.like(1))), sine = t * cosine, half = sine / (1 + cosine);
          at(p, p) = less(at(p, p), t, g);
          at(q, q) = fma(t, g, at(q, q));
          at(p, q) = g.like(0);
          for (size_t r = 0; r < n; ++r) {
            if (r == p || r == q) continue;
            const E of_p = at(r, p), of_q = at(r, q);
            at(r, p) = less(of_p, sine, fma(half, of_p, of_q));
            at(r, q) = fma(sine, less(of_p, half, of_q), of_q);
          }
        }
      return after;
    };
    const Carried left = loop_over(c, {triangle, c.constant(c.type(0), 0)}, kMostSweeps, goes_on, sweep);
    const auto [off, bound] = remains(left.grid);
    failed = failed | !(off <= bound) | !(bound < bound.like(std::numeric_limits<double>::infinity()));
    std::vector<E> diagonal;
    for (const auto& row : left.grid) diagonal.push_back(row[0] * scale.back);
    sort(diagonal, /*descending=*/false);
    append(values, diagonal);
  }
  give_unless(c, failed, values);
  return {values, Small{}};
}

// (A, full_matrices, compute_uv, driver) → U, S, Vᴴ. By rotations of columns until all are orthogonal (Hestenes 1958):
// their lengths are then the singular values. A call whose vectors are read stays LibTorch's.
SmallResults singular_values(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (a.sizes.size() < 2 || a.dtype != c.dtypes[1] || !is_float(c.type(1))) return {};
  const Batch batch = matrices_of(c, a);
  Small values{batch.sizes, {}, c.dtypes[1]};
  values.sizes.push_back(std::min(a.sizes.end()[-2], a.sizes.back()));
  E failed = c.constant(Type::b1, 0);
  for (const Grid& grid : batch.grids) {
    // Row by row what are columns to the method, of which there are no more than each has numbers.
    Grid columns = grid.size() > grid[0].size() ? transposed(grid) : grid;
    const size_t n = columns.size();
    const Scale scale = scale_of(largest_of(columns));
    multiply(columns, scale.by);
    const auto product = [&](const std::vector<E>& x, const std::vector<E>& y) {
      E sum = x[0] * y[0];
      for (size_t i = 1; i < x.size(); ++i) sum = fma(x[i], y[i], sum);
      return sum;
    };
    // What is smaller than a rounding of the largest column, beside it, moves no singular value by more than one.
    const double close = epsilon_of(c.type(1)) * static_cast<double>(columns[0].size()), e = epsilon_of(c.type(1)) / 4;
    E all = c.constant(c.type(1), 0);
    for (const auto& column : columns) all = all + product(column, column);
    const E negligible = all * (e * e);
    const auto sweep = [&](const Carried& before) {
      Carried after{before.grid, c.constant(Type::b1, 0)};
      for (size_t p = 0; p < n; ++p)
        for (size_t q = p + 1; q < n; ++q) {
          auto &x = after.grid[p], &y = after.grid[q];
          const E xx = product(x, x), yy = product(y, y), xy = product(x, y);
          after.number = after.number | ((xy * xy > xx * yy * (close * close)) & (abs(xy) > negligible));
          const E t = tangent_of_rotation(xx, yy, xy), cosine = 1 / sqrt(fma(t, t, t.like(1))), sine = t * cosine;
          for (size_t i = 0; i < x.size(); ++i) {
            const E of_x = x[i];
            x[i] = less(cosine * of_x, sine, y[i]);
            y[i] = fma(sine, of_x, cosine * y[i]);
          }
        }
      return after;
    };
    const auto goes_on = [](const Carried& before) { return before.number; };
    const Carried left = loop_over(c, {columns, c.constant(Type::b1, 1)}, kMostSweeps, goes_on, sweep);
    failed = failed | left.number;
    std::vector<E> lengths;
    for (const auto& column : left.grid) {
      lengths.push_back(sqrt(product(column, column)) * scale.back);
      failed = failed | !(abs(lengths.back()) < lengths.back().like(std::numeric_limits<double>::infinity()));
    }
    sort(lengths, /*descending=*/true);
    append(values, lengths);
  }
  give_unless(c, failed, values);
  return {Small{}, values, Small{}};
}

namespace {

Grid product(const Grid& a, const Grid& b) {
  Grid result(a.size());
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b[0].size(); ++j) {
      E sum = a[i][0] * b[0][j];
      for (size_t k = 1; k < b.size(); ++k) sum = fma(a[i][k], b[k][j], sum);
      result[i].push_back(sum);
    }
  return result;
}

}  // namespace

// Taylor's polynomial of a matrix that is halved until its norm is below a bound, by its powers up to the fourth
// (Paterson and Stockmeyer 1973), and squared as often as it was halved. What the polynomial leaves out is below the
// rounding of one: bound^(degree + 1) / (degree + 1)!.
SmallResults exponential(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a) || !is_square(a)) return {};
  const bool twice = c.type(0) == Type::f64;
  const int degree = twice ? 16 : 8;
  const double bound = twice ? 0.75 : 0.5;
  const Batch batch = matrices_of(c, a);
  Small exponentials{a.sizes, {}, c.dtypes[0]};
  for (const Grid& grid : batch.grids) {
    const size_t n = grid.size();
    const E one = c.constant(c.type(0), 1);
    E norm = one.like(0);  // the greatest sum of a column
    for (size_t j = 0; j < n; ++j) {
      E sum = abs(grid[0][j]);
      for (size_t i = 1; i < n; ++i) sum = sum + abs(grid[i][j]);
      norm = larger(norm, sum);
    }
    const E scale = loop_over(
                        c, {{}, one}, kMostHalvings, [&](const Carried& s) { return norm * s.number > bound; },
                        [](const Carried& s) {
                          return Carried{{}, s.number * 0.5};
                        })
                        .number;
    std::vector<Grid> powers{identity(n, n, one), grid};
    multiply(powers[1], scale);
    for (int k = 2; k <= 4; ++k) powers.push_back(product(powers.back(), powers[1]));
    // Σ a^k / k! for k from `first` on, up to the third power, added to what there is.
    const auto add_terms = [&](Grid sum, int first) {
      double factorial = 1;
      for (int k = 2; k <= first; ++k) factorial *= k;
      for (int k = 0; k < 4; factorial *= first + ++k)
        for (size_t i = 0; i < n; ++i)
          for (size_t j = 0; j < n; ++j)
            sum[i][j] = k == 0 ? (i == j ? sum[i][j] + 1 / factorial : sum[i][j])
                               : fma(powers[static_cast<size_t>(k)][i][j], one.like(1 / factorial), sum[i][j]);
      return sum;
    };
    double last = 1;
    for (int k = 2; k <= degree; ++k) last *= k;
    Grid sum = powers[4];
    multiply(sum, one.like(1 / last));
    for (int first = degree - 4; first >= 0; first -= 4) {
      sum = add_terms(std::move(sum), first);
      if (first > 0) sum = product(sum, powers[4]);
    }
    const Carried squared = loop_over(
        c, {sum, scale}, kMostHalvings, [](const Carried& s) { return (s.number < 1) & (s.number > 0); },
        [](const Carried& s) {
          return Carried{product(s.grid, s.grid), s.number * 2};
        });
    append(exponentials, squared.grid);
  }
  return {exponentials};
}

}  // namespace tower::rules::small
