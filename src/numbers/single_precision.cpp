// Functions of float32, computed in float64: what is not exact there is lost when the result is rounded, so these are
// the formulas of the other files without sums of two, and with shorter polynomials.
#include <limits>

#include "numbers/exponentials.h"

namespace tower::compiler::single_precision {
namespace {

constexpr double kLog10Of2 = 0x1.34413509f79ffp-2;

// 2ⁿ (1 + p)
struct Power {
  E power, p;
};
// Of r + n log 2. n: and to_integer.
Power power(E r, E n) {
  return {power_of_two(n),
          fma(r * r,
              polynomial_in_order(r, {0x1.0000004574517p-1, 0x1.5555557fc2e1ep-3, 0x1.55547c9a4b59fp-5,
                                      0x1.11109f94830d0p-7, 0x1.6d99188ed1fd5p-10, 0x1.a1887ffc55a7cp-13}),
              r)};
}
Power power_of_e(E x) {
  const E near = within(x, -200, 200), n = fma(near, kInverseLog2, to_integer(x));
  return power(fma(-(n - to_integer(x)), kLog2, near), n);
}
E value_of(const Power& of) { return fma(of.power, of.p, of.power); }
E less_one(const Power& of) { return fma(of.power, of.p, of.power - 1); }

struct Parts {
  E k, f;
};
// Of what is not denormal in float64.
Parts parts_of(E x) {
  const E all = bits(x), places = whole_number(all, 52);
  const E k = shift_right(all - whole_number(all, 0x3FE6A09E667F3BCD), places);  // √½
  return {bits(k + bits(to_integer(x))) - to_integer(x), bits(all - shift_left(k, places)) - 1};
}
// log(1 + f)
E series(E f) {
  const E s = f / (2 + f), z = s * s;
  return fma(
      s * z,
      polynomial_in_order(z, {0x1.555554fb9fbefp-1, 0x1.999a7d354da51p-2, 0x1.24384c4f4bc27p-2, 0x1.e3082fee31645p-3}),
      s + s);
}

}  // namespace

E exp2(E x) {
  const E near = within(x, -200, 200), n = near + to_integer(x);
  return value_of(power((near - (n - to_integer(x))) * kLog2, n));
}

E expm1(E x) { return where(x == 0, x, less_one(power_of_e(x))); }

E tanh(E x) {
  const E e = less_one(power_of_e(2 * at_most(abs(x), 10)));
  return copysign(e / (e + 2), x);
}

E sinh(E x) {
  const E e = less_one(power_of_e(abs(x)));
  return copysign(0.5 * (e + e / (e + 1)), x);
}

E cosh(E x) {
  const E e = value_of(power_of_e(abs(x)));
  return 0.5 * (e + 1 / e);
}

E log2(E x) {
  const auto [k, f] = parts_of(x);
  return where_positive(x, fma(series(f), kInverseLog2, k));
}

E log10(E x) {
  const auto [k, f] = parts_of(x);
  return where_positive(x, fma(k, kLog10Of2, series(f) * kInverseLog10));
}

E log1p(E x) {
  const auto [k, f] = parts_of(1 + x);
  return where(x == 0, x, where_positive(x, fma(k, kLog2, series(where(k == 0, x, f))), -1));
}

E pow(E x, E y) {
  const auto [k, f] = parts_of(abs(x));
  return value_of(power_of_e(y * fma(k, kLog2, series(f))));
}

// As in exponentials.cpp.
E erf(E x) {
  const E a = at_most(abs(x), 4), z = a * a;
  const E near = fma(
      a,
      polynomial_in_order(z, {0x1.06eba7f7972b3p-3, -0x1.81273ea2b37c1p-2, 0x1.ce2d184de7d89p-4, -0x1.b7fb37fbd9a71p-6,
                              0x1.5416351526366p-8, -0x1.a46b3ff4d20e6p-11, 0x1.4a9db026ad0c2p-14}),
      a);
  const E t = 1 / fma(a, 0.5, x.like(1));
  const E far = fma(-value_of(power_of_e(-z)),
                    polynomial_in_order(t, {0x1.e1303f29cd586p-10, 0x1.09d18be83c436p-2, 0x1.96b7accb66270p-2,
                                            -0x1.0ab32ae81d50cp-4, 0x1.464361dd8f5b2p-1, -0x1.d9109f5fe817cp-3}),
                    x.like(1));
  return copysign(where(a < 1, near, far), x);
}

}  // namespace tower::compiler::single_precision
