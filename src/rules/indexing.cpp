// Reading by index: index, index_select, gather, take, masked_select.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {

void indexing() {}

}  // namespace tower::rules
