// Small matrices of blocks' numbers, row-major, by pointers: products, and Cholesky factors.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tower::solvers {

inline size_t place(int64_t k) { return static_cast<size_t>(k); }

// Of row-major matrices: to `out`, of `rows` rows in a matrix of `out_width` columns, is added sign · aᵀ b, for a of
// {depth, a_width} and b of {depth, b_width}, whose first columns are taken.
struct Product {
  double sign;
  int64_t depth, rows, a_width, b_width, out_width;
};
template <size_t columns>
void add_columns(double* out, const double* a, const double* b, const Product& p) {
  for (int64_t i = 0; i < p.rows; ++i) {
    double sums[columns] = {};
    for (int64_t k = 0; k < p.depth; ++k) {
      const double factor = a[k * p.a_width + i];
      for (size_t j = 0; j < columns; ++j) sums[j] += factor * b[k * p.b_width + static_cast<int64_t>(j)];
    }
    for (size_t j = 0; j < columns; ++j) out[i * p.out_width + static_cast<int64_t>(j)] += p.sign * sums[j];
  }
}
// One function for each number of columns up to this: loops of a known length are vectors.
constexpr int64_t kColumns = 12;
template <size_t... columns>
constexpr auto each_number_of_columns(std::index_sequence<columns...>) {
  return std::array{&add_columns<columns + 1>...};
}
inline void add_product(double* out, const double* a, const double* b, int64_t columns, const Product& p) {
  static constexpr auto kAdd = each_number_of_columns(std::make_index_sequence<kColumns>());
  for (int64_t done = 0; done < columns; done += kColumns)
    kAdd[place(std::min(columns - done, kColumns) - 1)](out + done, a, b + done, p);
}

// The Cholesky factor of a small matrix, in its place. Whether it is positive definite.
inline bool factor_small(double* m, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < j; ++i) m[i * n + j] = 0;
    for (int64_t i = j; i < n; ++i) {
      double value = m[i * n + j];
      for (int64_t k = 0; k < j; ++k) value -= m[i * n + k] * m[j * n + k];
      if (i > j) {
        m[i * n + j] = value / m[j * n + j];
      } else if (value > 0 && std::isfinite(value)) {
        m[j * n + j] = std::sqrt(value);
      } else {
        return false;
      }
    }
  }
  return true;
}
// L⁻¹ of {n, columns}, in its place, and L⁻ᵀ.
inline void solve_lower(const double* lower, int64_t n, double* x, int64_t columns) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      double value = x[i * columns + j];
      for (int64_t k = 0; k < i; ++k) value -= lower[i * n + k] * x[k * columns + j];
      x[i * columns + j] = value / lower[i * n + i];
    }
}
inline void solve_upper(const double* lower, int64_t n, double* x, int64_t columns) {
  for (int64_t i = n - 1; i >= 0; --i)
    for (int64_t j = 0; j < columns; ++j) {
      double value = x[i * columns + j];
      for (int64_t k = i + 1; k < n; ++k) value -= lower[k * n + i] * x[k * columns + j];
      x[i * columns + j] = value / lower[i * n + i];
    }
}
// x −= or += m v, of {rows, columns}.
inline void add_image(double* x, double sign, const double* m, const double* v, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) x[i] += sign * m[i * columns + j] * v[j];
}

}  // namespace tower::solvers
