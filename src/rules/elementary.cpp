// Elementary functions of one variable: exponentials, logarithms, trigonometric and hyperbolic functions, rounding.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void elementary() {}

}  // namespace tower::rules
