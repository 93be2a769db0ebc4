// Special functions: error functions, gamma and its relatives, Bessel functions, entropy-like functions.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void special_functions() {}

}  // namespace tower::rules
