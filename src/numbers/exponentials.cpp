// eˣ = 2ⁿ eʳ with |r| ≤ log(2) / 2. What is left of x after n · log 2 is a sum of two, exact to 100 bits, and eʳ − 1 is
// r + r² q(r) with a polynomial q. Others are made of eˣ − 1 as a sum of two: tanh x = (e²ˣ − 1) / (e²ˣ + 1).
#include "numbers/exponentials.h"

#include <cmath>

namespace tower::compiler {
namespace {

E polynomial_of_exp(E r) {
  return polynomial(r, {0x1.000000000000cp-1, 0x1.555555555555cp-3, 0x1.555555554fe06p-5, 0x1.111111110e9eep-7,
                        0x1.6c16c18606fabp-10, 0x1.a01a01b44bb2bp-13, 0x1.a01995bb3c12bp-16, 0x1.71ddee70b1221p-19,
                        0x1.28b0eff0726c5p-22, 0x1.af6e4beb2d173p-26});
}
// The rest of it as (eʳ − 1 − r − r²/2) / r³, with one term more, for what is to be a sum of two.
E polynomial_after_square(E r) {
  return polynomial(r, {0x1.555555555555cp-3, 0x1.5555555555558p-5, 0x1.111111110e9eep-7, 0x1.6c16c16c1500ap-10,
                        0x1.a01a01b44bb2bp-13, 0x1.a01a01ad776cep-16, 0x1.71ddee5fe03c1p-19, 0x1.27e4cc2fe188bp-22,
                        0x1.af6e9ac60f619p-26, 0x1.1f8b879764fcdp-29});
}

// x = n log 2 + r. `n`: and to_integer.
struct Reduced {
  E n;
  Two r;
};

Reduced reduced(E x) {
  const bool wide = x.type() == Type::f64;
  const E log2 = x.like(wide ? kLog2 : 0x1.62e43p-1), log2_rest = x.like(wide ? kLog2Rest : -0x1.05c61p-29);
  const E n = fma(x, kInverseLog2, to_integer(x)), whole = n - to_integer(x);
  const E most = fma(-whole, log2, x), hi = fma(-whole, log2_rest, most);
  return {n, {hi, fma(-whole, log2_rest, most - hi)}};
}

// 2ⁿ⁻¹ value, which may be infinite, zero, or rounded to a denormal number. n: −1076 to 1024 (of float32: −150 to 128).
E scaled(E n, E value) {
  const bool wide = n.type() == Type::f64;
  const double up = wide ? 128 : 64;
  const E small = n < to_integer(n) - (wide ? 1000 : 100);
  const E power = power_of_two(where(small, n + up, n), -1);
  return value * power * where(small, std::exp2(-up), n.like(1));
}
E twice_one_and(E p) { return fma(p, 2, p.like(2)); }

// eʳ − 1 = r + r²/2 + …, of which the square is kept whole.
Two series(Two r) {
  const Two square = product(r.hi, r.hi), first = ordered_sum(r.hi, 0.5 * square.hi);
  const E more = fma(square.lo, 0.5, r.lo) + r.hi * square.hi * polynomial_after_square(r.hi);
  return ordered_sum(first.hi, first.lo + more);
}

// (eˣ − 1) / 2ᵐ, for x from −45 to (1023 + m) log 2.
Two exponential_less_one(E x, int m) {
  const auto [n, r] = reduced(x);
  const Two p = series(r);
  const E power = power_of_two(n, -m);
  // 2ⁿ⁻ᵐ p + (2ⁿ⁻ᵐ − 2⁻ᵐ)
  const Two rest = sum(power, power.like(-std::exp2(-m)));
  const Two all = sum(rest.hi, power * p.hi);
  return ordered_sum(all.hi, all.lo + fma(power, p.lo, rest.lo));
}

// erf a = a + a …, for a up to 1.
E rest_of_erf(E a) {
  return polynomial(a * a, {0x1.06eba8214db69p-3, -0x1.812746b0379fdp-2, 0x1.ce2f21a04362dp-4, -0x1.b82ce312abefep-6,
                            0x1.565bcd1298e84p-8, -0x1.c02db49afb8cbp-11, 0x1.f9a335368c5f6p-14, -0x1.f4d3335ad34d6p-17,
                            0x1.b9ee92f3c5200p-20, -0x1.5f9810fc65841p-23, 0x1.fc77ba70aca01p-27,
                            -0x1.4675dacb5545cp-30, 0x1.296e97bbaacd9p-34});
}

// erfc a = e^(−a²) q((a − 4) / (a + 4)) / (1 + 2 a), for a from 0.65 to 28: q is between 1 and 1.3.
E far_erfc(E a) {
  const Two square = product(a, a);
  const auto [n, of_hi] = reduced(within(-square.hi, -746, 0));
  const Two r = ordered_sum(of_hi.hi, of_hi.lo - square.lo), p = series(r);
  const Two power = ordered_sum(a.like(1), p.hi);
  const E t = (a - 4) / (a + 4);
  const E rest = polynomial_in_order(
      t, {-0x1.ab22760851bc3p-55, -0x1.1df1ad154a28ep-3,  0x1.f7f5df66fd7cfp-7,   0x1.16ecefcfa5335p-4,
          -0x1.9ddb23c3e91b0p-4,  0x1.7fee004e137cdp-4,   -0x1.0fb06dfe4776fp-4,  0x1.3079edf64e5c2p-5,
          -0x1.096238858ff5fp-6,  0x1.49c6729a9fadcp-8,   -0x1.8d4a994999999p-11, -0x1.a1df38ea660c5p-13,
          0x1.3be02dd00d29ep-13,  -0x1.99564bd5f6ff3p-16, -0x1.7880cd536e58cp-17, 0x1.7f02db511111ap-18,
          0x1.385423432c4bap-22,  -0x1.b89fef498486cp-21, 0x1.515cc562d528ep-24,  0x1.bfdb4a9a7245dp-24,
          -0x1.66c1aa1442e76p-26, -0x1.582933886a42dp-27, 0x1.829ca0e6530c0p-29});
  const Two under = ordered_sum(2 * a, a.like(1));
  const Two all =
      product({power.hi, power.lo + p.lo}, quotient(ordered_sum(a.like(0x1.3ba5916e9fd7fp+0), rest), under));
  return scaled(n, 2 * (all.hi + all.lo));
}

}  // namespace

E within(E x, double least, double most) {
  const E not_less = where(x < least, least, x);
  return where(not_less > most, most, not_less);
}

E exponential(Two x) {
  const E hi = within(x.hi, -746, 710);
  const auto [n, of_hi] = reduced(hi);
  const Two r = ordered_sum(of_hi.hi, of_hi.lo + where(abs(x.hi) < 746, x.lo, 0));
  return scaled(n, twice_one_and(r.hi + fma(r.hi * r.hi, polynomial_of_exp(r.hi), r.lo)));
}

namespace formulas {

E exp(E x) {
  const auto [n, r] = reduced(within(x, -746, 710));
  return scaled(n, twice_one_and(r.hi + fma(r.hi * r.hi, polynomial_of_exp(r.hi), r.lo)));
}

// The same in float32. What is zero is not computed: products that are too small take some CPUs as long as ten others.
E exp_of_single(E x) {
  const E is_zero = x < -104;
  const auto [n, r] = reduced(at_most(where(is_zero, 0, x), 89));
  const E q = polynomial_in_order(r.hi, {0x1.0000004574517p-1, 0x1.55548b041becdp-3, 0x1.55547c9a4b59fp-5,
                                         0x1.123d97d367b8dp-7, 0x1.6d98695b6e87bp-10});
  return where(is_zero, 0, scaled(n, twice_one_and(r.hi + fma(r.hi * r.hi, q, r.lo))));
}

E exp2(E x) {
  const E near = within(x, -1076, 1024), n = near + to_integer(x), r = near - (n - to_integer(x));
  const Two angle = product(r, x.like(kLog2));
  const E lo = fma(r, kLog2Rest, angle.lo);
  return scaled(n, twice_one_and(angle.hi + fma(angle.hi * angle.hi, polynomial_of_exp(angle.hi), lo)));
}

// In float32: 2ʳ = 1 + r q(r).
E exp2_of_single(E x) {
  const E near = within(x, -151, 128), n = near + to_integer(x), r = near - (n - to_integer(x));
  const E twice_q = polynomial_in_order(
      r, {0x1.62e43p+0, 0x1.ebfbe0p-2, 0x1.c6af72p-4, 0x1.3b2a48p-6, 0x1.5f0dd6p-9, 0x1.4423f8p-12});
  return scaled(n, fma(r, twice_q, 2));
}

E expm1(E x) {
  const Two half = exponential_less_one(within(x, -45, 710), 1);
  return where(abs(x) < 0x1p-60, x, half.hi + half.hi);
}

E tanh(E x) {
  const Two half = exponential_less_one(2 * at_most(abs(x), 22), 1);
  const Two one_more = sum(half.hi, x.like(1));
  const Two q = quotient(half, {one_more.hi, one_more.lo + half.lo});
  return copysign(q.hi + q.lo, x);
}

// h + h / (2h + 1) for h = (eᵃ − 1) / 2, all by halves.
E sinh(E x) {
  const E a = at_most(abs(x), 710.5);
  const Two quarter = exponential_less_one(a, 2);
  const Two all = sum(4 * quarter.hi, x.like(1));
  const Two q = quotient(quarter, {all.hi, fma(quarter.lo, 4, all.lo)});
  const E large = a > 40;
  const Two s = ordered_sum(quarter.hi, where(large, 0, q.hi));
  const E half = s.hi + (s.lo + quarter.lo + where(large, 0, q.lo));
  return where(abs(x) < 0x1p-28, x, copysign(half + half, x));
}

E cosh(E x) {
  const E a = at_most(abs(x), 710.5);
  const Two less = exponential_less_one(a, 2);
  const Two more = sum(less.hi, x.like(0.25)), quarter{more.hi, more.lo + less.lo};
  const Two inverse = quotient(x.like(0.0625), quarter);
  const Two s = ordered_sum(quarter.hi, inverse.hi);
  const E half = s.hi + (s.lo + quarter.lo + inverse.lo);
  return half + half;
}

E erf(E x) {
  const E a = at_most(abs(x), 6);
  return copysign(where(a < 0.8, fma(a, rest_of_erf(a), a), 1 - far_erfc(a)), x);
}

E erfc(E x) {
  const E a = at_most(abs(x), 28);
  const Two less = ordered_sum(x.like(1), -x);
  const E far = far_erfc(a);
  return where(a < 0.65, less.hi + fma(-x, rest_of_erf(x), less.lo), where(x < 0, 2 - far, far));
}

}  // namespace formulas
}  // namespace tower::compiler
