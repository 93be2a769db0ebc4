// Batch, layer and group normalization and their backward operators.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void normalization() {}

}  // namespace tower::rules
