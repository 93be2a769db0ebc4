// Interpolation and sampling on grids.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void resampling() {}

}  // namespace tower::rules
