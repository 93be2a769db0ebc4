// Complex numbers: real and imaginary part, conjugate, magnitude, phase, views between real and complex.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void complex() {}

}  // namespace tower::rules
