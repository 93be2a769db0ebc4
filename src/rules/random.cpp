// Random operators, and what they mean for a batch.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void random() {}

}  // namespace tower::rules
