// x = 2ᵏ (1 + f) with 1 + f from √½ to √2, which takes x apart by its bits. With s = f / (2 + f),
//
//   log(1 + f) = 2 s + s R(s²) = f − f²/2 + s (f²/2 + R(s²))
//
// with a polynomial R, as in Sun's fdlibm. The terms that are rounded are small beside f, and are kept as a sum of two;
// pow needs more of them than the rest, for its exponent multiplies what they lack.
#include <limits>

#include "numbers/exponentials.h"

namespace tower::compiler {
namespace {

constexpr double kLog2Head = 0x1.62e42fefa2000p-1, kLog2Tail = 0x1.9ef35793c7673p-41;  // the first of 40 bits
constexpr double kLog2HeadOfSingle = 0x1.62e4p-1, kLog2TailOfSingle = 0x1.7f7d1cp-20;
constexpr double kLarge = 0x1p28;  // its square and one more are its square

struct Split {
  E exponent;  // k, as a float
  E mantissa;  // 1 + f
};

// Of a normal number above zero.
Split split_normal(E x) {
  const bool wide = x.type() == Type::f64;
  const E all = bits(x), places = whole_number(all, wide ? 52 : 23);
  const E k = shift_right(all - whole_number(all, wide ? 0x3FE6A09E667F3BCD : 0x3F3504F3), places);  // √½
  // Not every CPU converts integers of 64 bits.
  const E exponent = wide ? bits(k + bits(to_integer(x))) - to_integer(x) : k.to(Type::f32);
  return {exponent, bits(all - shift_left(k, places))};
}
Split split(E x) {
  const bool wide = x.type() == Type::f64;
  const double least = wide ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min();
  const E denormal = x < least;
  const auto [k, mantissa] = split_normal(where(denormal, x * (wide ? 0x1p54 : 0x1p24), x));
  return {where(denormal, k - (wide ? 54 : 24), k), mantissa};
}

E polynomial_of_log(E z) {
  if (z.type() == Type::f32)
    return polynomial_in_order(z, {0x1.55557ad8a4eeep-1, 0x1.995e33e028ecep-2, 0x1.31eebe6e43c99p-2});
  return polynomial(z, {0x1.5555555555594p-1, 0x1.999999997f72dp-2, 0x1.249249423c734p-2, 0x1.c71c51d50fa2ap-3,
                        0x1.7466486178ecdp-3, 0x1.39a0ddfab7bbbp-3, 0x1.2f0d5baaed33ap-3});
}

// log(1 + f), for 1 + f from √½ to √2. The second may be some hundredths of the first.
Two logarithm_series(Two f) {
  const E s = f.hi / (2 + f.hi), z = s * s;
  const E r = z * polynomial_of_log(z);
  const E half = 0.5 * f.hi, square = half * f.hi, of_square = fma(half, f.hi, -square);
  const auto [hi, rounded] = ordered_sum(f.hi, -square);
  const E of_lo = f.lo * fma(f.hi, f.hi - 1, f.hi.like(1));  // about f.lo / (1 + f)
  return {hi, rounded + (fma(s, square + r, of_lo - of_square))};
}

struct Factor {
  double of_double, rest, of_single, rest_of_single;
  E hi(E x) const { return x.like(x.type() == Type::f64 ? of_double : of_single); }
  E lo(E x) const { return x.like(x.type() == Type::f64 ? rest : rest_of_single); }
};

constexpr Factor kTimesInverseLog2{0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56, 0x1.715476p+0, 0x1.4ae0c0p-26};
constexpr Factor kTimesInverseLog10{0x1.bcb7b1526e50ep-2, 0x1.95355baaafad3p-57, 0x1.bcb7b2p-2, -0x1.5b235ep-27};
constexpr Factor kLog10Of2{0x1.34413509f6000p-2, 0x1.9fef311f12b36p-42, 0x1.344000p-2,
                           0x1.3509f8p-18};  // heads: exact times k

// log(1 + f) · factor, for f that is exact.
Two series_times(E f, const Factor& factor) {
  const E s = f / (2 + f), z = s * s, square = 0.5 * f * f;
  const E less = fma(-s, fma(z, polynomial_of_log(z), square), square);
  const Two hi = product(f, factor.hi(f));
  return {hi.hi, fma(-less, factor.hi(f), fma(f, factor.lo(f), hi.lo))};
}

// log((1 + s) / (1 − s)), exact to 64 bits and more.
Two exact_series(Two s) {
  const Two z = product(s, s);
  const E rest =
      z.hi * polynomial(z.hi, {0x1.9999999999995p-2, 0x1.2492492493150p-2, 0x1.c71c71c56444fp-3, 0x1.745d183dec639p-3,
                               0x1.3b135fff863dfp-3, 0x1.112112a7d3c4cp-3, 0x1.de26218a327a9p-4, 0x1.eb7618039c8f1p-4});
  Two r = ordered_sum(rest.like(0x1.5555555555555p-1), rest);
  r.lo = r.lo + 0x1.5555555555555p-55;
  const Two third = product(s, product(z, r));
  const Two all = ordered_sum(s.hi + s.hi, third.hi);
  return {all.hi, all.lo + fma(s.lo, 2, third.lo)};
}

// The two rounded to one, for f that is exact.
E whole_series(E f, E k) {
  const bool wide = f.type() == Type::f64;
  const E s = f / (2 + f), z = s * s, square = 0.5 * f * f;
  const E rest = fma(s, fma(z, polynomial_of_log(z), square), k * (wide ? kLog2Tail : kLog2TailOfSingle));
  return fma(k, wide ? kLog2Head : kLog2HeadOfSingle, f - (square - rest));
}

// a + b, where |a| ≥ |b| or a is zero.
Two ordered_sum_and(E a, Two b) {
  const Two s = ordered_sum(a, b.hi);
  return {s.hi, s.lo + b.lo};
}

Two plus_doublings(Two log, E k) { return ordered_sum_and(k * kLog2Head, {log.hi, fma(k, kLog2Tail, log.lo)}); }

E sum_of(Two a) { return a.hi + a.lo; }

// log(1 + f) + doublings · log 2, for f > −1.
Two logarithm_of_one_plus(Two f, E doublings) {
  Two u = sum(f.hi, f.hi.like(1));
  u.lo = u.lo + f.lo;
  const auto [k, mantissa] = split_normal(u.hi);
  const E power = power_of_two(to_integer(k) - k);
  const E lo = where(k < 1000, u.lo * power, 0);
  return plus_doublings(logarithm_series(ordered_sum(mantissa - 1, lo)), k + doublings);
}

}  // namespace

Two exact_logarithm(Two x) {
  const auto [k, mantissa] = split(x.hi);
  const E power = power_of_two(to_integer(k) - k);
  const Two f = ordered_sum(mantissa - 1, where(abs(k) < 1000, x.lo * power, 0));
  const Two more = ordered_sum(f.hi.like(2), f.hi);
  const Two s = ordered_sum(quotient(f, {more.hi, more.lo + f.lo}));
  return ordered_sum(plus_doublings(exact_series(s), k));
}

E where_positive(E x, E value, double zero) {
  const E special = where(x == zero, -kInfinity, where(x < zero, kNaN, x));
  return where((x > zero) & (x < kInfinity), value, special);
}

namespace formulas {

E log(E x) {
  const auto [k, mantissa] = split(x);
  return where_positive(x, whole_series(mantissa - 1, k));
}

E log2(E x) {
  const auto [k, mantissa] = split(x);
  return where_positive(x, sum_of(ordered_sum_and(k, series_times(mantissa - 1, kTimesInverseLog2))));
}

E log10(E x) {
  const auto [k, mantissa] = split(x);
  const Two of_mantissa = series_times(mantissa - 1, kTimesInverseLog10);
  return where_positive(
      x, sum_of(ordered_sum_and(k * kLog10Of2.hi(k), {of_mantissa.hi, fma(k, kLog10Of2.lo(k), of_mantissa.lo)})));
}

E log1p(E x) {
  const E value = sum_of(logarithm_of_one_plus({x, x.like(0)}, x.like(0)));
  return where(abs(x) < 0x1p-60, x, where_positive(x, value, -1));
}

// Of float32. With 2ᵏ near 1 + x, 1 + f = (1 + x) / 2ᵏ from ¾ to 1½, where f = x / 2ᵏ − (1 − 2⁻ᵏ) is rounded once, and
// for k = 0 not at all: no sum of two is needed, as log(1 + f) is beside k log 2 then. 1 + x is rounded to 1½ from
// below, too, where f would be less than −¼ and have one bit less: so ¾ is counted to what lies below. `minus_k` stands
// where a float has its exponent. Zero keeps its sign.
E log1p_of_single(E x) {
  constexpr int32_t kAboveThreeQuarters = 0x3F400001, kFour = 0x40800000, kFraction = 0x007FFFFF;
  const E of_sum = bits(1 + x);
  const E minus_k =
      (whole_number(of_sum, kAboveThreeQuarters + kFraction) - of_sum) & whole_number(of_sum, ~int64_t{kFraction});
  const E times_four = bits(whole_number(of_sum, kFour) + minus_k);  // 2⁻ᵏ may be denormal
  const E f = bits(bits(x) + minus_k) - fma(times_four, -0.25, x.like(1));
  const E q = polynomial_in_order(f, {-0.5, 0x1.55555cp-2, -0x1.000072p-2, 0x1.999672p-3, -0x1.551798p-3, 0x1.24743cp-3,
                                      -0x1.04e088p-3, 0x1.de9016p-4, -0x1.723656p-4, 0x1.2f5408p-5});
  const E value = fma(minus_k.to(Type::f32), -0x1.62e430p-24, fma(f * f, q, f));
  return where(x < kInfinity, where(x > -1, value, where(x == -1, x.like(-kInfinity), kNaN)), x);
}

// log(1 + (a + a² / (1 + √(a² + 1)))); log(2 a) where a is large.
E asinh(E x) {
  const E a = abs(x), large = a > kLarge;
  const Two square = product(a, a), more = sum(square.hi, x.like(1));
  const Two root_of_more = root({more.hi, more.lo + square.lo});
  const Two under = ordered_sum(root_of_more.hi, x.like(1));
  const Two q = quotient(square, {under.hi, under.lo + root_of_more.lo});
  const Two f = sum(a, q.hi);
  const Two value =
      logarithm_of_one_plus({where(large, a - 1, f.hi), where(large, 0, f.lo + q.lo)}, where(large, x.like(1), 0));
  const E finite = where(a < kInfinity, sum_of(value), a);
  return where(a < 0x1p-28, x, copysign(finite, x));
}

// log(1 + (t + √(t (t + 2)))) for t = x − 1; log(2 x) where x is large.
E acosh(E x) {
  const E large = x > kLarge, zero = x.like(0), t = x - 1;
  const Two square = product(t, t), more = sum(t + t, square.hi);
  const Two under = ordered_sum(more.hi, more.lo + square.lo);
  const Two r = root(under);
  const Two f = sum(t, r.hi);
  const Two value =
      logarithm_of_one_plus({where(large, t, f.hi), where(large, 0, f.lo + r.lo)}, where(large, x.like(1), 0));
  const E finite = where(x < kInfinity, sum_of(value), x);
  return where(x > 1, finite, where(x == 1, zero, kNaN));
}

// log(1 + 2 a / (1 − a)) / 2.
E atanh(E x) {
  const E a = abs(x), zero = x.like(0);
  const Two less = ordered_sum(x.like(1), -a);
  const Two f = quotient(a + a, less);
  const E half = 0.5 * sum_of(logarithm_of_one_plus(ordered_sum(f), zero));
  const E inside = where(a < 1, half, where(a == 1, x.like(kInfinity), kNaN));
  return where(a < 0x1p-28, x, copysign(inside, x));
}

E pow(E x, E y) {
  const auto [k, mantissa] = split(abs(x));
  const E f = mantissa - 1;
  const Two s = ordered_sum(quotient(f, ordered_sum(f.like(2), f)));
  const Two of_a = ordered_sum(plus_doublings(exact_series(s), k));
  const Two all = product(y, of_a.hi);
  return exponential({all.hi, fma(y, of_a.lo, all.lo)});
}

}  // namespace formulas

E power_or_special(E x, E y, E usual) {
  const E a = abs(x), infinity = x.like(kInfinity), whole = trunc(y) == y;
  const E half = 0.5 * y, odd = whole & (trunc(half) != half);
  const E zero = a == 0, y_negative = y < 0;
  const E of_ends = where(zero ^ y_negative, 0, infinity);
  const E for_infinite = where(a == 1, 1, where((a > 1) ^ y_negative, infinity, 0));
  E r = where(zero | (a == infinity), of_ends, usual);
  r = where(abs(y) == infinity, for_infinite, r);
  r = where(odd, copysign(r, x), r);
  r = where((x < 0) & (a < infinity) & !whole, kNaN, r);
  r = where(isnan(x) | isnan(y), kNaN, r);
  return where((y == 0) | (x == 1), 1, r);
}
}  // namespace tower::compiler
