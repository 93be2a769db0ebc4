// Systems of linear equations that are too large to be written out (NOTE [Systems of numbers]): a function of a kernel
// that solves one for each lane of a vector, in loops over memory.
#pragma once

#include <cstdint>
#include <string>

#include "numbers/expression.h"

namespace tower::compiler {

/// LLVM's IR of `void name(ptr memory)`, and of what that calls. In memory lie vectors of `lanes` numbers: the rows of
/// the matrix, each with its right-hand side behind it. That becomes the solution; what comes last in memory, the place
/// of the first pivot that is zero, from one.
std::string print_solver(const std::string& name, Type type, int64_t lanes, int64_t size, int64_t columns);
/// How many vectors there are.
inline int64_t vectors_of_system(int64_t size, int64_t columns) { return size * (size + columns) + 1; }

}  // namespace tower::compiler
