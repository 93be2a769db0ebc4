// Making tensors: from a shape, or like another tensor.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void factories() {}

}  // namespace tower::rules
