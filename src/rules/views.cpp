// Views: results that share memory with their argument, with how a write through one reaches its base.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void views() {}

}  // namespace tower::rules
