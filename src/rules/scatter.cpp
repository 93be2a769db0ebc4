// Writing by index: scatter, index_add, index_put, slice_scatter and their relatives.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void scatter() {}

}  // namespace tower::rules
