// The formulas, by their files, and what several of them need.
#pragma once

#include <limits>

#include "numbers/sums_of_two.h"

namespace tower::compiler {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLog2 = 0x1.62e42fefa39efp-1, kLog2Rest = 0x1.abc9e3b39803fp-56;
constexpr double kInverseLog2 = 0x1.71547652b82fep+0;

/// x, or the bound that it is beyond. NaN stays.
E within(E x, double least, double most);
/// A logarithm's value, which is −∞ where x is `zero`, and NaN below that.
E where_positive(E x, E value, double zero = 0);
/// e to the power of x, for any x.
E exponential(Two x);
/// log x, exact to 64 bits and more.
Two exact_logarithm(Two x);
/// |sin π v|, for v from −½ to ½.
Two sine_of_half_turns(E v);
/// What C says that pow is of special numbers, and `usual`, a power of |x|, for others, with its sign.
E power_or_special(E x, E y, E usual);

/// In the type of x, which is float64 but for *_of_single and for the inverses of circular functions.
namespace formulas {

E exp(E x);
E exp_of_single(E x);
E exp2(E x);
E exp2_of_single(E x);
E expm1(E x);
E sinh(E x);
E cosh(E x);
E tanh(E x);
E erf(E x);
E erfc(E x);
E lgamma(E x);

E log(E x);
E log2(E x);
E log10(E x);
E log1p(E x);
E log1p_of_single(E x);
E asinh(E x);
E acosh(E x);
E atanh(E x);
E pow(E x, E y);  // of |x|, a number

E asin(E x);
E acos(E x);
E atan(E x);
E atan2(E y, E x);
E hypot(E x, E y);

}  // namespace formulas

/// Of float32, computed in float64.
namespace single_precision {

/// (sin r − r) / r³ of z = r², of float64, for r from −π/2 to π/2, as exact as counts.
inline E polynomial_of_sine(E z) {
  return polynomial(z, {-0x1.55555548fb972p-3, 0x1.11110cae2d873p-7, -0x1.a017f85e4cd3bp-13, 0x1.71743545a812cp-19,
                        -0x1.9ab75e2efd9e6p-26});
}
E expm1(E x);
E sinh(E x);
E cosh(E x);
E tanh(E x);
E erf(E x);
E erfc(E x);
E lgamma(E x);
E asinh(E x);
E acosh(E x);
E atanh(E x);
E hypot(E x, E y);
E pow(E x, E y);  // of |x|, a number

}  // namespace single_precision
}  // namespace tower::compiler
