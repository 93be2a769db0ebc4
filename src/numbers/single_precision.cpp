// Functions of float32, computed in float64: what is not exact there is lost when the result is rounded, so these are
// the formulas of the other files without sums of two, and with shorter polynomials. What is the same in float32, signs
// and special numbers, is chosen there, where a vector has twice the lanes.
#include <limits>

#include "numbers/exponentials.h"

namespace tower::compiler::single_precision {
namespace {

// 2ⁿ (1 + p)
struct Power {
  E power, p;
};
// Of r + n log 2. n: and to_integer.
Power power(E r, E n) {
  return {power_of_two(n), fma(r * r,
                               polynomial(r, {0x1.0000004574517p-1, 0x1.5555557fc2e1ep-3, 0x1.55547c9a4b59fp-5,
                                              0x1.11109f94830d0p-7, 0x1.6d99188ed1fd5p-10, 0x1.a1887ffc55a7cp-13}),
                               r)};
}
Power power_of_e(E x) {
  const E near = within(x, -200, 200), n = fma(near, kInverseLog2, to_integer(x));
  return power(fma(-(n - to_integer(x)), kLog2, near), n);
}
E value_of(const Power& of) { return fma(of.power, of.p, of.power); }
E less_one(const Power& of) { return fma(of.power, of.p, of.power - 1); }

// Of x = r + n log 2.
struct Halves {
  E sum, difference;  // of 2ⁿ⁻¹ and 2⁻ⁿ⁻¹
  E cosh, sinh;       // of r
};
Halves halves(E x) {
  const E near = within(x, -200, 200), n = fma(near, kInverseLog2, to_integer(x));
  const E r = fma(-(n - to_integer(x)), kLog2, near), z = r * r;
  const E up = power_of_two(n, -1), down = power_of_two(2 * to_integer(x) - n, -1);
  const E c =
      polynomial(z, {1, 0x1.ffffffffede07p-2, 0x1.555555829545ep-5, 0x1.6c1634368ce9dp-10, 0x1.a17619d342781p-16});
  const E s = r * polynomial(z, {1, 0x1.555555742fbe5p-3, 0x1.1110b0c8e8029p-7, 0x1.a1714e3188a59p-13});
  return {up + down, up - down, c, s};
}

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
  return fma(s * z,
             polynomial(z, {0x1.555554fb9fbefp-1, 0x1.999a7d354da51p-2, 0x1.24384c4f4bc27p-2, 0x1.e3082fee31645p-3}),
             s + s);
}

// Of a positive number.
E logarithm(E x) {
  const auto [k, f] = parts_of(x);
  return fma(k, kLog2, series(f));
}

// erf a = a + a …, for a up to 1.
E rest_of_erf(E a) {
  return polynomial(a * a, {0x1.06eba7f7972b3p-3, -0x1.81273ea2b37c1p-2, 0x1.ce2d184de7d89p-4, -0x1.b7fb37fbd9a71p-6,
                            0x1.5416351526366p-8, -0x1.a46b3ff4d20e6p-11, 0x1.4a9db026ad0c2p-14});
}

// erfc a = e^(−a²) t q(t), t = 1 / (1 + a / 2), for a from 1.
E far_erfc(E a) {
  const E t = 1 / fma(a, 0.5, a.like(1));
  return value_of(power_of_e(-(a * a))) * t *
         polynomial(t, {0x1.20da583791f34p-2, 0x1.21319b34557bap-2, 0x1.f1e3c68ae8166p-3, 0x1.9ab37d7a21f6ap-3,
                        -0x1.aedf6ac69fd29p-7, 0x1.e95f2b522e220p-3, -0x1.b49ad79a62a42p-2, 0x1.e268984879a25p-3,
                        -0x1.5fea11b58983ep-5});
}

E wide(E x) { return x.to(Type::f64); }
E narrow(E x) { return x.to(Type::f32); }

}  // namespace

E expm1(E x) { return where(x == 0, x, narrow(less_one(power_of_e(wide(x))))); }

E tanh(E x) {
  const E e = less_one(power_of_e(wide(2 * at_most(abs(x), 10))));
  return copysign(narrow(e / (e + 2)), x);
}

// sinh x = sinh(r + n log 2) = ((2ⁿ − 2⁻ⁿ) cosh r + (2ⁿ + 2⁻ⁿ) sinh r) / 2, and likewise cosh x.
E sinh(E x) {
  const Halves h = halves(wide(x));
  return copysign(narrow(fma(h.difference, h.cosh, h.sum * h.sinh)), x);
}

E cosh(E x) {
  const Halves h = halves(wide(x));
  return narrow(fma(h.sum, h.cosh, h.difference * h.sinh));
}

// The sums are exact enough where they are beside 1; below, the argument is the result.
E asinh(E x) {
  const E a = abs(x), wide_a = wide(a);
  const E value = narrow(logarithm(wide_a + sqrt(fma(wide_a, wide_a, wide_a.like(1)))));
  return where((a > 0x1p-12) & (a < kInfinity), copysign(value, x), x);
}

E acosh(E x) {
  const E wide_x = wide(x);
  const E value = narrow(logarithm(wide_x + sqrt(fma(wide_x, wide_x, wide_x.like(-1)))));
  return where(x < 1, kNaN, where(x < kInfinity, value, x));
}

E atanh(E x) {
  const E a = abs(x), wide_a = wide(a);
  const E value = narrow(0.5 * logarithm((1 + wide_a) / (1 - wide_a)));
  const E inside = where(a > 0x1p-14, copysign(value, x), x);
  return where(a < 1, inside, where(a == 1, copysign(x.like(kInfinity), x), kNaN));
}

E hypot(E x, E y) {
  const E infinite = (abs(x) == kInfinity) | (abs(y) == kInfinity), wide_x = wide(x), wide_y = wide(y);
  return where(infinite, kInfinity, narrow(sqrt(fma(wide_x, wide_x, wide_y * wide_y))));
}

E pow(E x, E y) { return narrow(value_of(power_of_e(wide(y) * logarithm(wide(abs(x)))))); }

E erf(E x) {
  const E a = wide(at_most(abs(x), 4));
  return copysign(narrow(where(a < 1, fma(a, rest_of_erf(a), a), 1 - far_erfc(a))), x);
}

E erfc(E x) {
  const E a = wide(at_most(abs(x), 11)), near = wide(x), far = far_erfc(a);
  return narrow(where(a < 1, fma(-near, rest_of_erf(near), 1 - near), where(near < 0, 2 - far, far)));
}

}  // namespace tower::compiler::single_precision
