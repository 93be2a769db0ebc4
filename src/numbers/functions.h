// Exponentials and their kin as formulas: what kernels compute where a rule says exp, sin or pow. They are written in
// elements (numbers/element.h) like the rules themselves, so that a kernel is complete in itself, and computes the same
// bits in the process, in a saved function and in a C library, in vectors of any width, and on any CPU.
//
//   exponentials.cpp      exp, exp2, expm1, sinh, cosh, tanh, erf, erfc
//   logarithms.cpp        log, log2, log10, log1p, asinh, acosh, atanh, pow
//   circular.cpp          sin, cos, tan, and their inverses; hypot
//   gamma.cpp             lgamma
//   remainder.cpp         fmod, whose steps the kernel repeats
//   single_precision.cpp  those of float32 that are shorter in float64
//
// In float64 all are within one unit in the last place: what is not exact is a sum of two (numbers/sums_of_two.h). In
// float32, exp and log are the same with other numbers, and log1p, which softplus and its kin are made of, has a
// formula of its own, within 0.92 units; the rest is computed in float64 and rounded, within 0.57 units.
//
// A polynomial's coefficients come from tools/minimax.py, which says what each of them fits.
#pragma once

#include "numbers/element.h"

namespace tower::compiler {

/// `op` of x, and of y where it has two operands, in their type. Of circular functions, and of fmod, see below.
E formula(Op op, E x, E y);

/// An argument of sin, cos or tan in float64 as quarter turns, and what is left. `narrow`: it was of float32; then of
/// sin and cos, half turns. Formulas reduce arguments up to kMostTurned; the kernel reduces larger ones, lane by lane,
/// to quarter turns.
struct Turns {
  E turns;      // an integer, of which the last two bits count
  E angle;      // −π/4 … π/4; of half turns, −π/2 … π/2
  E remainder;  // to be added to that
};
constexpr double kMostTurned = 0x1p30;
bool is_circular(Op op);
Turns turns_of(Op op, E x, bool narrow);
/// The same of what the kernel reduced.
Turns turns_of(Op op, const Turns& quarters, bool narrow);
E circular(Op op, E x, const Turns& turned, bool narrow);

/// fmod of x and y begins with |x| and makes steps with |y| as long as a lane goes on. Further steps change nothing.
E fmod_step(E left, E divisor);
E fmod_goes_on(E left, E divisor);
E fmod_result(E x, E y, E left);

}  // namespace tower::compiler
