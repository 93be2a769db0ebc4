#include "rules/folds.h"

#include <cmath>
#include <limits>

namespace tower::rules::folds {
namespace {

// The first lane where `x` is `best`, or NaN, if that is.
E first(RowCall& c, E x, E best) {
  E is = x == best;
  if (x.floating()) is = is | isnan(x);
  return c.least(where(is, c.place(), std::numeric_limits<int32_t>::max()));
}

E mean_of(RowCall& c, E x) { return c.sum(x) / static_cast<double>(c.length()); }

// NOTE [Deviations]
// The mean of numbers with an offset is off by a rounding error of the offset, which may be more than they are apart.
// So what they are apart from it has a mean of its own, found in the same pass as their squares: taken off, it leaves
// errors in proportion to the deviations alone (Chan, Golub, LeVeque 1983).
struct Deviations {
  E mean, apart, squares;  // of the row; of a lane; the sum of all lanes' squares, zero or more
};
Deviations deviations(RowCall& c, E x) {
  const auto n = static_cast<double>(c.length());
  const E mean = mean_of(c, x), apart = x - mean;
  const E left = c.sum(apart), squares = c.sum(apart * apart), corrected = squares - left * left / n;
  const E above = where(corrected < 0, 0, corrected);
  return {mean + left / n, apart - left / n, where(squares == INFINITY, squares, above)};
}

// In float64, as LibTorch does it: squares may be out of a range that their root is in.
E in_double(RowCall& c) { return c[0].to(Type::f64); }
E spread(RowCall& c) {
  const double correction = c.arg(2).isNone() ? 1 : c.arg(2).toScalar().toDouble();
  const E squares = deviations(c, in_double(c)).squares;
  return squares / std::max(static_cast<double>(c.length()) - correction, 0.0);
}

}  // namespace

// ---- one for each row ----

Ids sum(RowCall& c) { return c.give(c.sum(c[0])); }
Ids nansum(RowCall& c) {
  if (!c[0].floating()) return sum(c);
  return c.give(c.sum(where(isnan(c[0]), 0, c[0])));
}
Ids mean(RowCall& c) {
  if (!c[0].floating()) return {};
  return c.give(c.sum(c[0]) / static_cast<double>(c.length()));
}
Ids product(RowCall& c) { return c.give(c.product(c[0])); }
Ids greatest(RowCall& c) { return c.give(c.greatest(c.raw(0))); }
Ids least(RowCall& c) { return c.give(c.least(c.raw(0))); }
Ids any(RowCall& c) { return c.give(c.greatest(c.raw(0).to(Type::b1))); }
Ids every(RowCall& c) { return c.give(c.least(c.raw(0).to(Type::b1))); }
Ids count_nonzero(RowCall& c) { return c.give(c.sum(c.raw(0).to(Type::b1).to(Type::i64))); }

Ids least_and_greatest(RowCall& c) { return c.give(c.least(c.raw(0)), c.greatest(c.raw(0))); }
Ids dot(RowCall& c) { return c.give(c.sum(c[0] * c[1])); }

Ids place_of_greatest(RowCall& c) { return c.give(first(c, c.raw(0), c.greatest(c.raw(0)))); }
Ids place_of_least(RowCall& c) { return c.give(first(c, c.raw(0), c.least(c.raw(0)))); }
Ids greatest_and_place(RowCall& c) {
  const E best = c.greatest(c.raw(0));
  return c.give(best, first(c, c.raw(0), best));
}
Ids least_and_place(RowCall& c) {
  const E best = c.least(c.raw(0));
  return c.give(best, first(c, c.raw(0), best));
}

Ids variance(RowCall& c) { return c.give(spread(c)); }
Ids deviation(RowCall& c) { return c.give(sqrt(spread(c))); }
Ids variance_and_mean(RowCall& c) { return c.give(spread(c), mean_of(c, in_double(c))); }
Ids deviation_and_mean(RowCall& c) { return c.give(sqrt(spread(c)), mean_of(c, in_double(c))); }

Ids norm(RowCall& c) {
  if (!c[0].floating()) return {};
  const double order = c.arg(1).isNone() ? 2 : c.arg(1).toScalar().toDouble();
  if (order == 2) return c.give(sqrt(c.sum(c[0] * c[0])));
  if (order == 1) return c.give(c.sum(abs(c[0])));
  if (order == 0) return c.give(c.sum((c[0] != 0).to(c.type())));
  if (std::isinf(order)) return c.give(order > 0 ? c.greatest(abs(c[0])) : c.least(abs(c[0])));
  return {};
}

Ids logsumexp(RowCall& c) {
  if (!c[0].floating()) return {};
  const E top = c.greatest(c[0]);
  // Infinities would give NaN.
  const E shift = where(abs(top) == std::numeric_limits<double>::infinity(), 0, top);
  return c.give(log(c.sum(exp(c[0] - shift))) + shift);
}

// ---- one for each lane ----

Ids softmax(RowCall& c) {
  const E p = exp(c[0] - c.greatest(c[0]));
  return c.give(p / c.sum(p));
}
// Zero where all of a row is -inf.
Ids safe_softmax(RowCall& c) {
  const E top = c.greatest(c[0]), p = exp(c[0] - top);
  return c.give(where(top == -std::numeric_limits<double>::infinity(), 0, p / c.sum(p)));
}
Ids log_softmax(RowCall& c) {
  const E apart = c[0] - c.greatest(c[0]);
  return c.give(apart - log(c.sum(exp(apart))));
}
// Of (gradient, output, dim, dtype).
Ids softmax_backward(RowCall& c) { return c.give((c[0] - c.sum(c[0] * c[1])) * c[1]); }
Ids log_softmax_backward(RowCall& c) { return c.give(c[0] - exp(c[1]) * c.sum(c[0])); }

Ids layer_norm(RowCall& c) {
  const auto [mean, apart, squares] = deviations(c, c[0]);
  const E rstd = 1 / sqrt(squares / static_cast<double>(c.length()) + c.arg(4).toDouble());
  E result = apart * rstd;
  if (const auto weight = c.tensor(2)) result = result * *weight;
  if (const auto bias = c.tensor(3)) result = result + *bias;
  return c.give(result, mean, rstd);
}

}  // namespace tower::rules::folds
