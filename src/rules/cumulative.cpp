// Running sums, products, extrema along a dimension.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void cumulative() {}

}  // namespace tower::rules
