// Comparisons, logic and bits: results without derivatives.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void comparison() {}

}  // namespace tower::rules
