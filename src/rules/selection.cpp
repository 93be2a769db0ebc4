// Choosing between values element by element: where, clamp, maximum, masked_fill, lerp and their relatives.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void selection() {}

}  // namespace tower::rules
