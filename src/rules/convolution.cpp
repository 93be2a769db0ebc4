// Convolution and its backward operator.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void convolution() {}

}  // namespace tower::rules
