// x = n π/2 + r with |r| ≤ π/4 and a sum of two (Cody and Waite's reduction, with products that fma keeps exact), and
// polynomials for sin r and cos r, of which n says which one is meant, and its sign. The inverses are polynomials on
// [0, 1] (atan) and [0, ½] (asin), after atan x = π/2 − atan 1/x and asin x = π/2 − 2 asin √((1 − x)/2).
#include <limits>

#include "numbers/exponentials.h"
#include "numbers/functions.h"

namespace tower::compiler {
namespace {

constexpr double kQuarter = 0x1.921fb54442d18p+0, kQuarterRest = 0x1.1a62633145c07p-54,
                 kQuarterLast = -0x1.f1976b7ed8fbcp-110;  // of a turn: π/2
constexpr double kQuarterOfSingle = 0x1.921fb6p+0, kQuarterRestOfSingle = -0x1.777a5cp-25;
constexpr double kInverseQuarter = 0x1.45f306dc9c883p-1;

// sin and cos of r.
Two sine(Two r) {
  const E z = r.hi * r.hi;
  const E cube = r.hi * z *
                 polynomial(z, {-0x1.5555555555548p-3, 0x1.111111110f775p-7, -0x1.a01a019bf64fap-13,
                                0x1.71de3563063a5p-19, -0x1.ae5e57a5f7feap-26, 0x1.5d8f1f6623a61p-33});
  return {r.hi, fma(r.lo, fma(z, -0.5, z.like(1)), cube)};
}
Two cosine(Two r) {
  const E z = r.hi * r.hi, half = 0.5 * r.hi, most = fma(-half, r.hi, r.hi.like(1));
  const E rounded = fma(-half, r.hi, 1 - most);
  return {most, fma(z * z,
                    polynomial(z, {0x1.555555555554bp-5, -0x1.6c16c16c15046p-10, 0x1.a01a019c9697fp-16,
                                   -0x1.27e4f7f80e871p-22, 0x1.1ee9e0a72f3bcp-29, -0x1.8fa926a74b516p-37}),
                    fma(-r.hi, r.lo, rounded))};
}

E is_odd(E turns) { return (turns & whole_number(turns, 1)) != whole_number(turns, 0); }
// Minus where the bit is set that is the sign when it is shifted.
E with_sign_of(E turns, E value, int shift) {
  const E sign =
      shift_left(turns, whole_number(turns, shift)) & whole_number(turns, std::numeric_limits<int64_t>::min());
  return bits(bits(value) ^ sign);
}

// turns · π/2
Two quarters(E turns) {
  const bool wide = turns.type() == Type::f64;
  return {turns * (wide ? kQuarter : kQuarterOfSingle), turns * (wide ? kQuarterRest : kQuarterRestOfSingle)};
}

// atan of a from 0 to 1, but for its first term. `of_lo`: what a lacks.
E rest_of_atan(E a, E of_lo) {
  const E z = a * a;
  const E slope = fma(z, fma(z, 0.4, z.like(-0.9)), z.like(1));  // about 1 / (1 + z)
  if (z.type() == Type::f32)
    return fma(a * z,
               polynomial_in_order(z, {-0x1.55553cp-2, 0x1.99917ep-3, -0x1.241cd0p-3, 0x1.c069b0p-4, -0x1.57adeep-4,
                                       0x1.d90e88p-5, -0x1.fb7a72p-6, 0x1.622a08p-7, -0x1.d01b58p-10}),
               of_lo * slope);
  return fma(a * z, polynomial_in_order(z, {-0x1.555555555554cp-2,  0x1.9999999998b43p-3,  -0x1.2492492453831p-3,
                                            0x1.c71c71b56c452p-4,   -0x1.745d15c2a649ap-4, 0x1.3b139b27f4b3ap-4,
                                            -0x1.11102cbb81addp-4,  0x1.e1d43e3b82b16p-5,  -0x1.aed8f06ab5664p-5,
                                            0x1.84af263535c22p-5,   -0x1.5f15131c27296p-5, 0x1.38e1c6e214755p-5,
                                            -0x1.0c558792bc6aap-5,  0x1.abc5c237daf7ep-6,  -0x1.30326c267179fp-6,
                                            0x1.7182f485bf469p-7,   -0x1.6e0d1832e0aafp-8, 0x1.1852afe56cb56p-9,
                                            -0x1.349c25dcd71f8p-11, 0x1.b00502d58ca00p-14, -0x1.1f9e9f9a7d5cfp-17}),
             of_lo * slope);
}
E rest_of_asin(E a, E z) {
  if (z.type() == Type::f32)
    return a * z * polynomial_in_order(z, {0x1.5555cap-3, 0x1.3301acp-4, 0x1.74808cp-5, 0x1.8c2538p-6, 0x1.59652ap-5});
  return a * z *
         polynomial(z, {0x1.5555555555577p-3, 0x1.333333332e1d7p-4, 0x1.6db6db72067c3p-5, 0x1.f1c71a9a612bcp-6,
                        0x1.6e8bde357e3ffp-6, 0x1.1c49fd309612cp-6, 0x1.ca1e4bde65f16p-7, 0x1.759020e3f57fep-7,
                        0x1.60fff6c61d2aep-7, 0x1.e995b22ddb052p-9, 0x1.627f7f614f4fbp-6, -0x1.5667aabf8e00ap-6,
                        0x1.0ac7463880c2ep-5});
}

// base + (a + rest) where base is zero, or larger.
E from(Two base, E a, E rest) {
  const Two s = ordered_sum(base.hi, a);
  return s.hi + (s.lo + (base.lo + rest));
}

// asin |x| = base ± factor (a + rest)
struct ArcSine {
  E small;  // |x| < ½
  E a, rest;
};
ArcSine arc_sine(E x) {
  const E size = abs(x), small = size < 0.5, half = fma(size, -0.5, x.like(0.5));
  const E z = where(small, x * x, half);
  const Two s = root(half);
  const E a = where(small, x, s.hi + s.hi);
  const E lo = where(small | (half == 0), 0, s.lo + s.lo);
  return {small, a, rest_of_asin(a, z) + lo};
}

}  // namespace

bool is_circular(Op op) { return op == Op::sin || op == Op::cos || op == Op::tan; }

Turns turns_of(Op op, E x, bool narrow) {
  if (!narrow || op == Op::tan) {
    const E n = fma(x, kInverseQuarter, to_integer(x)), whole = n - to_integer(x);
    const E most = fma(-whole, kQuarter, x);  // exact
    if (narrow) return {bits(n), fma(-whole, kQuarterRest, most), x.like(0)};
    const Two second = product(whole, x.like(kQuarterRest));
    const Two angle = ordered_sum(most, -second.hi);
    return {bits(n), angle.hi, angle.lo - fma(whole, kQuarterLast, second.lo)};
  }
  // sin x = ± sin(x − n π), cos x = ± sin(x − (n + ½) π)
  const E quotient = op == Op::sin ? x * (kInverseQuarter / 2) : fma(x, kInverseQuarter / 2, x.like(-0.5));
  const E n = quotient + to_integer(x), whole = n - to_integer(x);
  const E turned = op == Op::sin ? whole : whole + 0.5;
  return {bits(n), fma(-turned, 2 * kQuarterRest, fma(-turned, 2 * kQuarter, x)), x.like(0)};
}

Turns turns_of(Op op, const Turns& quarters, bool narrow) {
  if (!narrow || op == Op::tan) return quarters;
  // Of an odd number of quarters, one more or one less, towards zero. cos is sin a quarter further, but for its sign.
  const E turns = quarters.turns, n = op == Op::sin ? turns : turns - whole_number(turns, 1);
  const E odd = is_odd(n), up = quarters.angle > 0;
  const E more = where(odd, where(up, whole_number(n, 1), whole_number(n, -1)), whole_number(n, 0));
  const E quarter = where(odd, where(up, quarters.angle.like(kQuarter), -kQuarter), 0);
  return {shift_right(n + more, whole_number(n, 1)), quarters.angle - quarter, quarters.remainder};
}

E circular(Op op, E x, const Turns& turned, bool narrow) {
  if (narrow && op != Op::tan) {
    const E r = turned.angle, z = r * r;
    const E s = r * fma(z, single_precision::polynomial_of_sine(z), z.like(1));
    // Of sin a minus where n is odd, of cos where it is even.
    const E n = op == Op::sin ? turned.turns : turned.turns + whole_number(turned.turns, 1);
    return with_sign_of(n, s, 63);
  }
  if (narrow) {
    const E r = turned.angle, z = r * r, odd = is_odd(turned.turns);
    const E s =
        r * fma(z, polynomial(z, {-0x1.55554531e54b6p-3, 0x1.110740b9b79a9p-7, -0x1.9945bda0aafa9p-13}), z.like(1));
    const E c =
        fma(z, fma(z, polynomial(z, {0x1.55554a550e83dp-5, -0x1.6c0c59b5ea497p-10, 0x1.99f59fcdd9343p-16}), -0.5),
            z.like(1));
    return where(odd, -c, s) / where(odd, s, c);
  }
  const E n = op == Op::cos ? turned.turns + whole_number(turned.turns, 1) : turned.turns, odd = is_odd(n);
  const Two r{turned.angle, turned.remainder};
  const Two s = sine(r), c = cosine(r);
  if (op == Op::tan) {
    const Two a = ordered_sum(s), b = ordered_sum(c);
    const Two q =
        quotient({where(odd, -b.hi, a.hi), where(odd, -b.lo, a.lo)}, {where(odd, a.hi, b.hi), where(odd, a.lo, b.lo)});
    return where(abs(x) < 0x1p-27, x, q.hi + q.lo);
  }
  const E value = with_sign_of(n, where(odd, c.hi, s.hi) + where(odd, c.lo, s.lo), 62);
  return op == Op::sin ? where(abs(x) < 0x1p-27, x, value) : value;
}

// sin r = r (1 + z (−1/6 + …)) and cos r = 1 + z (−1/2 + …) with z = r², all of it sums of two.
Two sine_of_half_turns(E v) {
  const E a = abs(v), is_cosine = a > 0.25;
  const Two r = product(where(is_cosine, 0.5 - a, a), {v.like(2 * kQuarter), v.like(2 * kQuarterRest)});
  const Two z = product(r, r);
  const E of_sine =
      polynomial(z.hi, {0x1.1111111111111p-7, -0x1.a01a01a019fc6p-13, 0x1.71de3a556279fp-19, -0x1.ae64566c3b130p-26,
                        0x1.61244d6c42787p-33, -0x1.ae69927398993p-41, 0x1.8a86fcda6c874p-49});
  const E of_cosine =
      polynomial(z.hi, {0x1.5555555555555p-5, -0x1.6c16c16c16b45p-10, 0x1.a01a01a001222p-16, -0x1.27e4fb5fc206ep-22,
                        0x1.1eed7662284dbp-29, -0x1.937c70d92604ap-37, 0x1.a165e5da8f6eap-45});
  const Two second =
      ordered_sum(where(is_cosine, v.like(-0.5), -0x1.5555555555555p-3), z.hi * where(is_cosine, of_cosine, of_sine));
  const Two times = product(z, {second.hi, second.lo + where(is_cosine, v.like(0), -0x1.5555555555555p-57)});
  const Two one = ordered_sum(v.like(1), times.hi), all{one.hi, one.lo + times.lo};
  return where(is_cosine, all, product(r, all));
}

namespace formulas {

E asin(E x) {
  const auto [small, a, rest] = arc_sine(x);
  const E large = from(quarters(x.like(1)), -a, -rest);
  return copysign(where(small, a + rest, large), x);
}

E acos(E x) {
  const auto [small, a, rest] = arc_sine(x);
  const E adds = (!small) & (x > 0);
  const E turns = where(small, 1, where(x > 0, x.like(0), 2));
  return from(quarters(turns), where(adds, a, -a), where(adds, rest, -rest));
}

E atan(E x) {
  const E a = at_most(abs(x), 0x1p100), inverted = a > 1, one = x.like(1);
  const Two q = quotient(where(inverted, one, a), where(inverted, a, one));
  const E rest = rest_of_atan(q.hi, q.lo);
  const E large = from(quarters(x.like(1)), -q.hi, -rest);
  return copysign(where(inverted, large, q.hi + rest), x);
}

E atan2(E y, E x) {
  const E infinite = maximum(abs(x), abs(y)) == kInfinity;
  const auto finite = [&](E t) { return where(infinite, where(t == kInfinity, t.like(1), 0), t); };
  const E a = finite(abs(y)), b = finite(abs(x)), steep = a > b;
  const E greater = where(steep, a, b), lesser = where(steep, b, a);
  // So that neither 1 / greater nor what the quotient lacks is denormal, unless the quotient is zero.
  const bool wide = x.type() == Type::f64;
  const E scale = where(greater > (wide ? 0x1p512 : 0x1p64), x.like(0x1p-4), wide ? 0x1p500 : 0x1p62);
  const Two q = quotient(lesser * scale, where(greater == 0, 1, greater * scale));
  const E rest = rest_of_atan(q.hi, q.lo);
  const E left = copysign(x.like(1), x) < 0;
  const E turns = where(steep, 1, where(left, x.like(2), 0)), minus = steep ^ left;
  const E angle = from(quarters(turns), where(minus, -q.hi, q.hi), where(minus, -rest, rest));
  return where(isnan(x) | isnan(y), kNaN, copysign(angle, y));
}

// √(x² + y²), both terms exact, by powers of two between which their squares are finite.
E hypot(E x, E y) {
  const E a = abs(x), b = abs(y), larger = a > b;
  const E greater = where(larger, a, b), lesser = where(larger, b, a);
  const E large = greater > 0x1p500, small = greater < 0x1p-400;
  const auto scaled = [&](E t, double down, double up) {
    return t * where(large, t.like(down), where(small, t.like(up), 1));
  };
  const E p = scaled(greater, 0x1p-600, 0x1p600), q = scaled(lesser, 0x1p-600, 0x1p600);
  const Two pp = product(p, p), qq = product(q, q), squares = ordered_sum(pp.hi, qq.hi);
  const Two r = root({squares.hi, squares.lo + (pp.lo + qq.lo)});
  const E finite = where(greater == 0, 0, scaled(r.hi + r.lo, 0x1p600, 0x1p-600));
  return where((a == kInfinity) | (b == kInfinity), kInfinity, where(isnan(x) | isnan(y), kNaN, finite));
}

}  // namespace formulas
}  // namespace tower::compiler
