// Loss functions and the operators of their backward formulas.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void losses() {}

}  // namespace tower::rules
