// Matrix and vector products.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void matmul() {}

}  // namespace tower::rules
