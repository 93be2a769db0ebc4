// Fourier transforms.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void fourier() {}

}  // namespace tower::rules
