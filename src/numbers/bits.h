// Elements as the bits that they are made of: for rules of operators that move bits, or take floats apart.
#pragma once

#include "numbers/element.h"

namespace tower::compiler {

/// A float's bits as an integer of its size, and back.
inline E bits(E x) { return x.made(Op::bits); }
/// Of integers, by 0 to one less than they have bits; to the right with the sign.
inline E shift_left(E x, E count) { return x.made(Op::shift_left, count); }
inline E shift_right(E x, E count) { return x.made(Op::shift_right, count); }

}  // namespace tower::compiler
