// What the negative log likelihood of numbered classes and its derivative come to in numbers, for the operators'
// records.
#pragma once

#include "numbers/small.h"

namespace tower::rules::small {

compiler::SmallResults nll_forward(const compiler::SmallCall& c);
compiler::SmallResults nll_backward(const compiler::SmallCall& c);

}  // namespace tower::rules::small
