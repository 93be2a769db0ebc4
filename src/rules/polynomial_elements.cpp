// Elements of orthogonal polynomials of a degree that is a number (special_elements.h): their recurrences, written out.
#include <cmath>
#include <limits>

#include "rules/special_elements.h"

namespace tower::rules {
namespace {

// LibTorch's compiler rounds some of these products and sums once. With more steps that is more than some last places,
// and an infinity where there are two for another.
constexpr int64_t kHighestDegree = 8;

// LibTorch makes a number of the tensor's type of it, and takes the whole part.
std::optional<int64_t> whole_degree(E x, const at::Scalar& degree) {
  if (degree.isComplex() || !x.floating()) return std::nullopt;
  double n = degree.toDouble();
  if (x.type() == compiler::Type::f32) n = static_cast<float>(n);
  if (!(std::abs(n) <= kHighestDegree)) return std::nullopt;
  return static_cast<int64_t>(n);
}

enum class Family : uint8_t { t, u, v, w };

struct Chebyshev {
  Family kind;
  bool shifted;     // to [0, 1]
  int64_t highest;  // of higher degrees LibTorch takes cosines, whose last places are another library's
};

std::optional<E> chebyshev(const Chebyshev& which, E x, const at::Scalar& degree) {
  const auto given = whole_degree(x, degree);
  if (!given || *given > which.highest) return std::nullopt;
  const int64_t n = *given;
  if (n < 0) return x.like(0);
  const Family kind = which.kind;
  const bool shifted = which.shifted;
  const double sign = n % 2 ? -1 : 1, twice = static_cast<double>(n + n + 1), next = static_cast<double>(n + 1);
  const double at_one = kind == Family::u ? next : kind == Family::w ? twice : 1;
  const double at_minus_one = sign * (kind == Family::u ? next : kind == Family::v ? twice : 1);
  const E y = shifted ? x + x - 1 : x, slope = y + y;
  E before = x.like(1);
  E value = kind == Family::t ? y : kind == Family::u ? slope : kind == Family::v ? slope - 1 : slope + 1;
  for (int64_t k = 2; k <= n; ++k) {
    const E last = before;
    before = value;
    value = slope * before - last;
  }
  if (n == 0) value = before;
  value = where(x == (shifted ? 0.0 : -1.0), at_minus_one, value);
  return where(x == 1, at_one, value);
}

// Polynomials p₀ = 1, p₁ = first, pₖ₊₁ = step(k, pₖ, pₖ₋₁), of degree n.
template <class Step>
E by_recurrence(int64_t n, E first, Step step) {
  E before = first.like(1), value = first;
  if (n == 0) return before;
  for (int64_t k = 1; k < n; ++k) {
    const E next = step(static_cast<double>(k), value, before);
    before = value;
    value = next;
  }
  return value;
}

}  // namespace

std::optional<E> chebyshev_t(E x, const at::Scalar& degree) { return chebyshev({Family::t, false, 6}, x, degree); }
std::optional<E> chebyshev_u(E x, const at::Scalar& degree) { return chebyshev({Family::u, false, 8}, x, degree); }
std::optional<E> chebyshev_v(E x, const at::Scalar& degree) { return chebyshev({Family::v, false, 8}, x, degree); }
std::optional<E> chebyshev_w(E x, const at::Scalar& degree) { return chebyshev({Family::w, false, 8}, x, degree); }
std::optional<E> shifted_chebyshev_t(E x, const at::Scalar& degree) {
  return chebyshev({Family::t, true, 6}, x, degree);
}
std::optional<E> shifted_chebyshev_u(E x, const at::Scalar& degree) {
  return chebyshev({Family::u, true, 6}, x, degree);
}
std::optional<E> shifted_chebyshev_v(E x, const at::Scalar& degree) {
  return chebyshev({Family::v, true, 6}, x, degree);
}
std::optional<E> shifted_chebyshev_w(E x, const at::Scalar& degree) {
  return chebyshev({Family::w, true, 4}, x, degree);
}

std::optional<E> hermite_h(E x, const at::Scalar& degree) {
  const auto n = whole_degree(x, degree);
  if (!n) return std::nullopt;
  if (*n < 0) return x.like(0);
  const E slope = x + x;
  return by_recurrence(*n, slope, [&](double k, E p, E before) { return slope * p - 2 * k * before; });
}

std::optional<E> hermite_he(E x, const at::Scalar& degree) {
  const auto n = whole_degree(x, degree);
  if (!n) return std::nullopt;
  if (*n < 0) return x.like(0);
  return by_recurrence(*n, x, [&](double k, E p, E before) { return x * p - k * before; });
}

std::optional<E> laguerre_l(E x, const at::Scalar& degree) {
  const auto n = whole_degree(x, degree);
  if (!n) return std::nullopt;
  if (*n < 0) return x.like(0);
  const E first = 1 - x;
  const E value =
      by_recurrence(*n, first, [&](double k, E p, E before) { return ((2 * k + first) * p - k * before) / (k + 1); });
  return where(x == 0, 1, value);
}

std::optional<E> legendre_p(E x, const at::Scalar& degree) {
  const auto n = whole_degree(x, degree);
  if (!n) return std::nullopt;
  if (*n < 0) return x.like(0);
  const E value =
      by_recurrence(*n, x, [&](double k, E p, E before) { return ((2 * k + 1) * x * p - k * before) / (k + 1); });
  return where(x == 1, 1, where(x == -1, *n % 2 ? -1 : 1, value));
}

}  // namespace tower::rules
