// Pooling, by average and by maximum, and the backward operators.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void pooling() {}

}  // namespace tower::rules
