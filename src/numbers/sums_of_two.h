// Numbers as sums of two floats, the second less than half a unit in the last place of the first or so, for formulas
// that are not to lose by what they round. Dekker's and Knuth's algorithms (Handbook of Floating-Point Arithmetic,
// chapter 4), with products by fma.
#pragma once

#include <initializer_list>
#include <vector>

#include "numbers/bits.h"

namespace tower::compiler {

struct Two {
  E hi, lo;
};

/// a + b, where |a| ≥ |b| or a is zero.
inline Two ordered_sum(E a, E b) {
  const E hi = a + b;
  return {hi, (a - hi) + b};
}
inline Two ordered_sum(Two a) { return ordered_sum(a.hi, a.lo); }
/// a + b.
inline Two sum(E a, E b) {
  const E hi = a + b, part = hi - a;
  return {hi, (a - (hi - part)) + (b - part)};
}
inline Two sum(Two a, Two b) {
  const auto [hi, lo] = sum(a.hi, b.hi);
  return {hi, lo + (a.lo + b.lo)};
}
inline Two where(E mask, Two a, Two b) { return {where(mask, a.hi, b.hi), where(mask, a.lo, b.lo)}; }
/// a · b.
inline Two product(E a, E b) {
  const E hi = a * b;
  return {hi, fma(a, b, -hi)};
}
inline Two product(E a, Two b) {
  const auto [hi, lo] = product(a, b.hi);
  return ordered_sum(hi, fma(a, b.lo, lo));
}
inline Two product(Two a, Two b) {
  const auto [hi, lo] = product(a.hi, b.hi);
  return ordered_sum(hi, fma(a.hi, b.lo, fma(a.lo, b.hi, lo)));
}
/// a / b, by one division.
inline Two quotient(Two a, Two b) {
  const E inverse = 1 / b.hi, hi = a.hi * inverse;
  return {hi, (fma(-hi, b.hi, a.hi) + (a.lo - hi * b.lo)) * inverse};
}
inline Two quotient(E a, E b) {
  const E inverse = 1 / b, hi = a * inverse;
  return {hi, fma(-hi, b, a) * inverse};
}
inline Two quotient(E a, Two b) {
  const E inverse = 1 / b.hi, hi = a * inverse;
  return {hi, fma(-hi, b.lo, fma(-hi, b.hi, a)) * inverse};
}
/// √a, where that is not zero.
inline Two root(Two a) {
  const E hi = sqrt(a.hi);
  return {hi, (fma(-hi, hi, a.hi) + a.lo) / (hi + hi)};
}
inline Two root(E a) {
  const E hi = sqrt(a);
  return {hi, fma(-hi, hi, a) / (hi + hi)};
}

inline E fma(E a, E b, double c) { return fma(a, b, a.like(c)); }
inline E fma(E a, double b, E c) { return fma(a, a.like(b), c); }

/// c0 + c1 x + c2 x² + …, the even and the odd powers side by side.
inline E polynomial(E x, std::initializer_list<double> coefficients) {
  const std::vector<double> c = coefficients;
  const E square = x * x;
  const auto every_other = [&](size_t first) {
    size_t k = first + (c.size() - 1 - first) / 2 * 2;
    E value = x.like(c[k]);
    while (k > first) value = fma(value, square, c[k -= 2]);
    return value;
  };
  return fma(every_other(1), x, every_other(0));
}

/// The same one after the other: where terms change sign and are of one size, this loses less.
inline E polynomial_in_order(E x, std::initializer_list<double> coefficients) {
  E value = x.like(std::data(coefficients)[coefficients.size() - 1]);
  for (size_t k = coefficients.size() - 1; k-- > 0;) value = fma(value, x, std::data(coefficients)[k]);
  return value;
}

/// 1.5 · 2⁵² (of float32: 2²³): to add it rounds to an integer, which then stands in the last bits.
inline E to_integer(E x) { return x.like(x.type() == Type::f64 ? 0x1.8p52 : 0x1.8p23); }
inline E whole_number(E x, int64_t value) { return x.like(at::Scalar(value)); }
/// 2ⁿ⁺ᵐ from −1022 to 1023 (of float32: −126 to 127), of n + to_integer.
inline E power_of_two(E shifted, int m = 0) {
  const bool wide = shifted.type() == Type::f64;
  const E n = bits(shifted);
  return bits(shift_left(n + whole_number(n, (wide ? 1023 : 127) + m), whole_number(n, wide ? 52 : 23)));
}

}  // namespace tower::compiler
