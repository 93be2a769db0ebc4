// Embedding look-ups and their backward operators.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void embedding() {}

}  // namespace tower::rules
