// Exponentials and their kin as formulas: what kernels compute where a rule says exp, sin or pow. They are written in
// elements (numbers/element.h) like the rules themselves, so that a kernel is complete in itself, and computes the same
// bits in the process, in a saved function and in a C library, in vectors of any width, and on any CPU.
//
//   exponentials.cpp      exp, exp2, expm1, sinh, cosh, tanh, erf
//   logarithms.cpp        log, log2, log10, log1p, asinh, acosh, atanh, pow
//   circular.cpp          sin, cos, tan, and their inverses; hypot
//   single_precision.cpp  those of float32 that are shorter in float64
//
// In float64 all are within one unit in the last place: what is not exact is a sum of two (numbers/sums_of_two.h). In
// float32, exp and log are the same with other numbers; the rest is computed in float64 and rounded, within 0.57 units.
//
// A polynomial's coefficients come from tools/minimax.py, which says what each of them fits.
#pragma once

#include "numbers/element.h"

namespace tower::compiler {

/// Whether there is a formula for a function.
bool has_formula(Op op);
/// `op` of x, and of y where it has two operands, in their type. Of circular functions see below.
E formula(Op op, E x, E y);

/// An argument of sin, cos or tan in float64 as quarter turns, and what is left. `narrow`: it was of float32. Formulas
/// reduce arguments up to kMostTurned; the kernel reduces larger ones, lane by lane.
struct QuarterTurns {
  E turns;      // an integer, of which the last two bits count
  E angle;      // −π/4 … π/4
  E remainder;  // to be added to that
};
constexpr double kMostTurned = 0x1p30;
bool is_circular(Op op);
QuarterTurns quarter_turns(E x, bool narrow);
E circular(Op op, E x, const QuarterTurns& turned, bool narrow);

}  // namespace tower::compiler
