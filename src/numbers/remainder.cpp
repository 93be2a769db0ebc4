// fmod as steps: a multiple of the divisor is taken from what is left until that is less than the divisor. The multiple
// is the quotient, rounded, so a step takes 53 bits of it (of float32: 24), and is exact: what is left is at most half
// a unit in the quotient's last place times the divisor, and a multiple of the units of both. It may be negative, and
// the next quotient is.
#include "numbers/exponentials.h"
#include "numbers/functions.h"

namespace tower::compiler {

E fmod_step(E left, E divisor) {
  // Where a quotient would be infinite, a multiple of the divisor that is a power of two will do.
  const bool wide = left.type() == Type::f64;
  const E size = abs(left), some = divisor * (wide ? 0x1p1000 : 0x1p100), more = some * (wide ? 0x1p300 : 0x1p100);
  const E by = where(size >= more, more, where(size >= some, some, divisor));
  return fma(-trunc(left / by), by, left);
}

E fmod_goes_on(E left, E divisor) { return abs(left) >= divisor; }

E fmod_result(E x, E y, E left) {
  const E size = abs(x), divisor = abs(y);
  const E rest = where(left < 0, left + divisor, left);
  return where((divisor == kInfinity) & (size < kInfinity), x, copysign(rest, x));
}

}  // namespace tower::compiler
