// What the derivative of layer normalization comes to in numbers, for the operators' records.
#pragma once

#include "numbers/small.h"

namespace tower::rules::small {

compiler::SmallResults layer_norm_backward(const compiler::SmallCall& c);

}  // namespace tower::rules::small
