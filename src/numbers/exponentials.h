// The formulas, by their files, and what several of them need.
#pragma once

#include <limits>

#include "numbers/sums_of_two.h"

namespace tower::compiler {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLog2 = 0x1.62e42fefa39efp-1, kLog2Rest = 0x1.abc9e3b39803fp-56;
constexpr double kInverseLog2 = 0x1.71547652b82fep+0, kInverseLog2Rest = 0x1.777d0ffda0d24p-56;
constexpr double kInverseLog10 = 0x1.bcb7b1526e50ep-2, kInverseLog10Rest = 0x1.95355baaafad3p-57;

/// x, or the bound that it is beyond. NaN stays.
E within(E x, double least, double most);
/// A logarithm's value, which is −∞ where x is `zero`, and NaN below that.
E where_positive(E x, E value, double zero = 0);
/// e to the power of x, for any x.
E exponential(Two x);
/// What C says that pow is of special numbers, and `usual`, a power of |x|, for others, with its sign.
E power_or_special(E x, E y, E usual);

/// Of float64, and but for *_of_single in it.
namespace formulas {

E exp(E x);
E exp_of_single(E x);
E exp2(E x);
E expm1(E x);
E sinh(E x);
E cosh(E x);
E tanh(E x);
E erf(E x);

E log(E x);
E log_of_single(E x);
E log2(E x);
E log10(E x);
E log1p(E x);
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

/// Of float32, in float64.
namespace single_precision {

E exp2(E x);
E expm1(E x);
E sinh(E x);
E cosh(E x);
E tanh(E x);
E erf(E x);
E log2(E x);
E log10(E x);
E log1p(E x);
E pow(E x, E y);  // of |x|, a number

}  // namespace single_precision
}  // namespace tower::compiler
