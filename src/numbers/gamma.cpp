// log |Γ(x)|, of a = |x|:
//
//   from 6 on   (a − ½) (log a − 1) + …, Stirling's series as a polynomial of 1 / a²
//   below       p(u) ± log w, where a is shifted to 2 + u from 1.5 to 2.5: Γ(a) = (a − 1) (a − 2) … Γ(2 + u), or
//               Γ(2 + u) / (a (a + 1)); p has its zero, and so has the sum those at 1 and 2
//   x < 0       log(π / (a |sin π a|)) − log Γ(a)
//
// In float64 with sums of two, so that sums that cancel lose nothing that counts; not so in float32.
#include "numbers/exponentials.h"

namespace tower::compiler {
namespace {

constexpr double kLogPi = 0x1.250d048e7a1bdp+0, kLogPiRest = 0x1.7abf2ad8d5088p-57;
constexpr double kStirling = 0x1.acfe390c97d69p-2, kStirlingRest = 0x1.3494bc9001442p-56;  // (log 2π − 1) / 2
constexpr double kFirst = 0x1.b0ee6072093cep-2, kFirstRest = 0x1.6cb90701fbfabp-58;        // 1 − γ
constexpr double kSecond = 0x1.4a34cc4a60fa6p-2, kSecondRest = 0x1.1873d8912200cp-56;      // (ζ(2) − 1) / 2
constexpr double kShifted = 6, kMost = 2.5563481638716906e305;                             // beyond, it is infinite

// a that is below 6 as u, and what Γ(2 + u) is multiplied with or divided by.
struct Shifted {
  E u, divides;
  Two factor;
};
Shifted shifted(E a) {
  E t = a;
  Two factor{a.like(1), a.like(0)};
  for (int step = 0; step < 4; ++step) {
    const E more = t > 2.5, next = t - 1;
    factor = where(more, step ? product(next, factor) : Two{next, a.like(0)}, factor);
    t = where(more, next, t);
  }
  const E once = a < 1.5, twice = a < 0.5;
  const Two divisor = where(twice, product(a, ordered_sum(a.like(1), a)), {a, a.like(0)});
  return {where(once, where(twice, a, a - 1), t - 2), once, where(once, divisor, factor)};
}

// Without what a sum of two has beside its first number.
Shifted shifted_in_single(E a) {
  E t = a, factor = a.like(1);
  for (int step = 0; step < 4; ++step) {
    const E more = t > 2.5, next = t - 1;
    factor = where(more, factor * next, factor);
    t = where(more, next, t);
  }
  const E once = a < 1.5, twice = a < 0.5;
  const E divisor = where(twice, fma(a, a, a), a);
  return {where(once, where(twice, a, a - 1), t - 2), once, {where(once, divisor, factor), a}};
}

// p(u) = u (1 − γ + u ((ζ(2) − 1) / 2 + …))
E rest_near_two(E u) {
  return u *
         polynomial(u, {-0x1.13e001a557609p-4, 0x1.51322ac7d824dp-6, -0x1.e404fc218de2bp-8, 0x1.7add6eae257adp-9,
                        -0x1.38ac5c2d3708ap-10, 0x1.0b36af4607a81p-11, -0x1.d3fd4b6fc6df9p-13, 0x1.a127d6941a5f8p-14,
                        -0x1.78de998d43e22p-15, 0x1.58078b193a552p-16, -0x1.3cb3d8445d027p-17, 0x1.26357c1c1a2abp-18,
                        -0x1.12758a87b9e1fp-19, 0x1.eeb273c9b4734p-21, -0x1.ce2c55230e5ebp-22, 0x1.29f5b94eb65dbp-22,
                        -0x1.1fe70fc6b5b6bp-23});
}
Two near_two(E u) {
  Two second = ordered_sum(u.like(kSecond), rest_near_two(u));
  second.lo = second.lo + kSecondRest;
  const Two times = product(u, second);
  Two first = ordered_sum(u.like(kFirst), times.hi);
  first.lo = first.lo + (times.lo + kFirstRest);
  return product(u, first);
}

// What is beside (a − ½) (log a − 1).
Two stirling(E a) {
  const E inverse = 1 / a;
  const E series = polynomial(
      inverse * inverse, {0x1.5555555555555p-4, -0x1.6c16c16c11201p-9, 0x1.a01a01684b6f6p-11, -0x1.3813425624cd9p-11,
                          0x1.b92b7b5acc0c2p-11, -0x1.efc5b8067b26cp-10, 0x1.441e075c4daa4p-8, 0x1.3967c0a034d9bp-6,
                          -0x1.6efd4790681afp-1, 0x1.80b6ce149f91fp+2});
  const Two all = ordered_sum(a.like(kStirling), inverse * series);
  return {all.hi, all.lo + kStirlingRest};
}

// What is infinite, and NaN.
E where_finite(E x, E value) {
  const E a = abs(x), pole = (x <= 0) & (trunc(x) == x);
  return where(pole | (a == kInfinity), kInfinity, value);
}

}  // namespace

namespace formulas {

E lgamma(E x) {
  const E a = at_most(abs(x), kMost), small = a < kShifted, zero = x.like(0);
  const Shifted s = shifted(a);
  const Two log = exact_logarithm(where(small, s.factor, {a, zero}));

  const Two shift = where(s.divides, {-log.hi, -log.lo}, log);
  const Two near = sum(near_two(s.u), shift);

  const Two less = sum(log.hi, x.like(-1)),
            product_of_logs = product(sum(a, x.like(-0.5)), {less.hi, less.lo + log.lo});
  const Two large = sum(product_of_logs, stirling(a));
  const Two of_a = where(small, near, large);

  const Two reflected = exact_logarithm(product(a, sine_of_half_turns(a - round(a))));
  const Two of_pi = sum({x.like(kLogPi), x.like(kLogPiRest)}, {-reflected.hi, -reflected.lo});
  const Two negative = sum(of_pi, {-of_a.hi, -of_a.lo});

  const Two value = where((x < 0) & (a > 0x1p-60), negative, of_a);
  return where_finite(x, where(x > kMost, kInfinity, value.hi + value.lo));
}

}  // namespace formulas

namespace single_precision {

E lgamma(E x) {
  const E wide = x.to(Type::f64), a = abs(wide), small = a < kShifted;
  const Shifted s = shifted_in_single(a);
  const E log = formulas::log(where(small, s.factor.hi, a));
  const E near = s.u * fma(s.u, kSecond + rest_near_two(s.u), kFirst);
  const E of_a = where(small, where(s.divides, near - log, near + log), fma(a - 0.5, log - 1, stirling(a).hi));
  const Two sine = sine_of_half_turns(a - round(a));
  const E negative = kLogPi - formulas::log(a * (sine.hi + sine.lo)) - of_a;
  return where_finite(x, where(wide < 0, negative, of_a).to(Type::f32));
}

}  // namespace single_precision
}  // namespace tower::compiler
