// Padding by constants, reflection and replication.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void padding() {}

}  // namespace tower::rules
