#include "rules/small_factorizations.h"

#include <algorithm>

#include "rules/small_matrices.h"

namespace tower::rules::small {

using namespace compiler;

namespace {

// L, of ones on its diagonal, and U of factors that are packed.
Grid lower_of(const Grid& lu) {
  const size_t k = std::min(lu.size(), lu[0].size());
  Grid l = identity(lu.size(), k, lu[0][0]);
  for (size_t i = 0; i < lu.size(); ++i)
    for (size_t j = 0; j < std::min(i, k); ++j) l[i][j] = lu[i][j];
  return l;
}
// The first `rows` of the upper triangle.
Grid upper_of(const Grid& a, size_t rows) {
  Grid u = filled(rows, a[0].size(), a[0][0].like(0));
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = i; j < u[i].size(); ++j) u[i][j] = a[i][j];
  return u;
}

Sizes with(Sizes batch, size_t rows, size_t columns) {
  batch.push_back(static_cast<int64_t>(rows));
  batch.push_back(static_cast<int64_t>(columns));
  return batch;
}

struct Unpacked {
  Unpacked(const SmallCall& c, const Sizes& batch, size_t m, size_t n)
      : p{with(batch, m, m), {}, c.dtypes[0]},
        l{with(batch, m, std::min(m, n)), {}, c.dtypes[1]},
        u{with(batch, std::min(m, n), n), {}, c.dtypes[2]} {}
  void add(const SmallCall& c, const Grid& lu, const std::vector<E>& pivots) {
    append(p, permutation(c, lu.size(), pivots, lu[0][0]));
    append(l, lower_of(lu));
    append(u, upper_of(lu, std::min(lu.size(), lu[0].size())));
  }
  Small p, l, u;
};

}  // namespace

// (A, pivot, check_errors) → LU, pivots, info
SmallResults lu_factor(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a) || !c.arg(1).toBool()) return {};
  const Batch batch = matrices_of(c, a);
  Small lu{a.sizes, {}, c.dtypes[0]}, rows{batch.sizes, {}, c.dtypes[1]}, info{batch.sizes, {}, c.dtypes[2]};
  rows.sizes.push_back(std::min(a.sizes.end()[-2], a.sizes.back()));
  for (const Grid& grid : batch.grids) {
    const Factored f = factor(c, grid);
    append(lu, f.lu);
    append(rows, pivots(c, f));
    info.ids.push_back(f.info.id());
  }
  return checked(c, info, {lu, rows, info});
}

// (A, pivot) → P, L, U
SmallResults lu(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a) || !c.arg(1).toBool()) return {};
  const Batch batch = matrices_of(c, a);
  Unpacked unpacked(c, batch.sizes, batch.grids[0].size(), batch.grids[0][0].size());
  for (const Grid& grid : batch.grids) {
    const Factored f = factor(c, grid);
    unpacked.add(c, f.lu, pivots(c, f));
  }
  return {unpacked.p, unpacked.l, unpacked.u};
}

// (LU, pivots, unpack_data, unpack_pivots) → P, L, U
SmallResults lu_unpack(const SmallCall& c) {
  const Small &lu = *c.operands[0], &rows = *c.operands[1];
  if (!fits(c, lu) || rows.sizes.empty() || !c.arg(2).toBool() || !c.arg(3).toBool()) return {};
  const Batch batch = matrices_of(c, lu), exchanges = columns_of(c, rows);
  if (exchanges.sizes != batch.sizes) return {};
  Unpacked unpacked(c, batch.sizes, batch.grids[0].size(), batch.grids[0][0].size());
  for (size_t k = 0; k < batch.grids.size(); ++k) unpacked.add(c, batch.grids[k], transposed(exchanges.grids[k])[0]);
  return {unpacked.p, unpacked.l, unpacked.u};
}

// → determinant, LU, pivots. Whether the factors are those of the matrix or of its transpose depends on how it lies in
// memory.
SmallResults determinant(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a) || !is_square(a)) return {};
  const Batch batch = matrices_of(c, a);
  Small determinants{batch.sizes, {}, c.dtypes[0]};
  for (const Grid& grid : batch.grids) {
    const Factored f = factor(c, grid);
    E product = f.lu[0][0];
    for (size_t k = 1; k < f.lu.size(); ++k) product = product * f.lu[k][k];
    determinants.ids.push_back(where(is_odd(c, f), -product, product).id());
  }
  return {determinants, Small{}, Small{}};
}

// → sign, log|det|, LU, pivots. Likewise. Of NaN the sign is zero, as LibTorch's sgn has it.
SmallResults log_determinant(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a) || !is_square(a)) return {};
  const Batch batch = matrices_of(c, a);
  Small signs{batch.sizes, {}, c.dtypes[0]}, logs{batch.sizes, {}, c.dtypes[1]};
  for (const Grid& grid : batch.grids) {
    const Factored f = factor(c, grid);
    const auto sign_of = [](const E& x) { return where(x > 0, x.like(1), where(x < 0, x.like(-1), x.like(0))); };
    E sign = sign_of(f.lu[0][0]), sum = log(abs(f.lu[0][0]));
    for (size_t k = 1; k < f.lu.size(); ++k) {
      sign = sign * sign_of(f.lu[k][k]);
      sum = sum + log(abs(f.lu[k][k]));
    }
    signs.ids.push_back(where(is_odd(c, f), -sign, sign).id());
    logs.ids.push_back(sum.id());
  }
  return {signs, logs, Small{}, Small{}};
}

// ---- reflectors ----
//
// Column k of a matrix holds a vector v below its diagonal (with a one on it), which stands for H = I − τ v vᵀ.

namespace {

// The reflector that takes what is in column k from row k on to a multiple of the first unit vector, and which is put
// there; its τ. As LAPACK's dlarfg has it: the sign is such that nothing cancels, and where there is nothing below the
// diagonal it is the identity.
E reflect(Grid& a, size_t k) {
  const E x = a[k][k];
  if (k + 1 == a.size()) return x.like(0);
  E largest = abs(x), is_zero = a[k + 1][k] == 0;
  for (size_t i = k + 1; i < a.size(); ++i) {
    largest = larger(largest, abs(a[i][k]));
    is_zero = is_zero & (a[i][k] == 0);
  }
  const Scale scale = scale_of(largest);
  const E first = x * scale.by;
  E sum = first * first;
  for (size_t i = k + 1; i < a.size(); ++i) {
    a[i][k] = a[i][k] * scale.by;
    sum = fma(a[i][k], a[i][k], sum);
  }
  const E beta = -copysign(sqrt(sum), first), inverse = 1 / (first - beta);
  for (size_t i = k + 1; i < a.size(); ++i) a[i][k] = where(is_zero, a[i][k], a[i][k] * inverse);
  a[k][k] = where(is_zero, x, beta * scale.back);
  return where(is_zero, 0, (beta - first) / beta);
}

// Columns of `c` from `first` on by the reflector in column k of `v`.
void apply_reflector(const Grid& v, size_t k, const E& tau, Grid& c, size_t first) {
  for (size_t j = first; j < c[0].size(); ++j) {
    E w = c[k][j];
    for (size_t i = k + 1; i < c.size(); ++i) w = fma(v[i][k], c[i][j], w);
    w = w * tau;
    c[k][j] = c[k][j] - w;
    for (size_t i = k + 1; i < c.size(); ++i) c[i][j] = less(c[i][j], v[i][k], w);
  }
}

// The τ of all columns; in the matrix, R, and below it the reflectors.
std::vector<E> reflectors(Grid& a) {
  std::vector<E> taus;
  for (size_t k = 0; k < std::min(a.size(), a[0].size()); ++k) {
    taus.push_back(reflect(a, k));
    if (k + 1 < a.size()) apply_reflector(a, k, taus.back(), a, k + 1);
  }
  return taus;
}

// The first columns of the product of all reflectors, from the last one on: what is before column k is then still a
// unit matrix's.
Grid product_of_reflectors(const Grid& v, const std::vector<E>& taus, size_t columns) {
  Grid q = identity(v.size(), columns, v[0][0]);
  for (size_t k = taus.size(); k-- > 0;) {
    apply_reflector(v, k, taus[k], q, k + 1);
    q[k][k] = 1 - taus[k];
    for (size_t i = k + 1; i < q.size(); ++i) q[i][k] = -taus[k] * v[i][k];
  }
  return q;
}

}  // namespace

// (A, mode) → Q, R
SmallResults qr(const SmallCall& c) {
  const Small& a = *c.operands[0];
  const std::string mode = c.arg(1).toStringRef();
  if (!fits(c, a)) return {};
  Batch batch = matrices_of(c, a);
  const size_t m = batch.grids[0].size(), n = batch.grids[0][0].size(), k = mode == "complete" ? m : std::min(m, n);
  Small q{with(batch.sizes, m, k), {}, c.dtypes[0]}, r{with(batch.sizes, k, n), {}, c.dtypes[1]};
  for (Grid& grid : batch.grids) {
    const std::vector<E> taus = reflectors(grid);
    if (mode != "r") append(q, product_of_reflectors(grid, taus, k));
    append(r, upper_of(grid, k));
  }
  return {mode == "r" ? Small{} : q, r};
}

// → R and the reflectors, τ
SmallResults geqrf(const SmallCall& c) {
  const Small& a = *c.operands[0];
  if (!fits(c, a)) return {};
  Batch batch = matrices_of(c, a);
  Small packed{a.sizes, {}, c.dtypes[0]}, taus{batch.sizes, {}, c.dtypes[1]};
  taus.sizes.push_back(std::min(a.sizes.end()[-2], a.sizes.back()));
  for (Grid& grid : batch.grids) {
    append(taus, reflectors(grid));
    append(packed, grid);
  }
  return {packed, taus};
}

// (reflectors, τ)
SmallResults householder_product(const SmallCall& c) {
  const Small &v = *c.operands[0], &tau = *c.operands[1];
  if (!fits(c, v) || tau.dtype != v.dtype || tau.sizes.empty()) return {};
  const Batch batch = matrices_of(c, v), taus = columns_of(c, tau);
  const size_t n = batch.grids[0][0].size();
  if (batch.sizes != taus.sizes || taus.grids[0].size() > n || batch.grids[0].size() < n) return {};
  Small q{v.sizes, {}, c.dtypes[0]};
  for (size_t k = 0; k < batch.grids.size(); ++k)
    append(q, product_of_reflectors(batch.grids[k], transposed(taus.grids[k])[0], n));
  return {q};
}

// (reflectors, τ, C, left, transpose)
SmallResults ormqr(const SmallCall& c) {
  const Small &v = *c.operands[0], &tau = *c.operands[1], &other = *c.operands[2];
  const bool left = c.arg(3).toBool(), transpose = c.arg(4).toBool();
  if (!fits(c, v) || tau.dtype != v.dtype || other.dtype != v.dtype || tau.sizes.empty() || other.sizes.size() < 2)
    return {};
  const Batch batch = matrices_of(c, v), taus = columns_of(c, tau), others = matrices_of(c, other);
  if (batch.sizes != taus.sizes || batch.sizes != others.sizes) return {};
  Small product{other.sizes, {}, c.dtypes[0]};
  for (size_t n = 0; n < batch.grids.size(); ++n) {
    // From the right: the transposed product from the left.
    Grid x = left ? others.grids[n] : transposed(others.grids[n]);
    const Grid &reflectors = batch.grids[n], &of = taus.grids[n];
    if (x.size() != reflectors.size() || of.size() > std::min(x.size(), reflectors[0].size())) return {};
    for (size_t step = 0; step < of.size(); ++step) {
      const size_t k = left == transpose ? step : of.size() - 1 - step;
      apply_reflector(reflectors, k, of[k][0], x, 0);
    }
    append(product, left ? x : transposed(x));
  }
  return {product};
}

}  // namespace tower::rules::small
