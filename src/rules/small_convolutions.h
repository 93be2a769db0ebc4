// What convolutions of small examples, and their derivatives, come to in numbers, for the operators' records.
#pragma once

#include "numbers/small.h"

namespace tower::rules::small {

compiler::SmallResults convolution(const compiler::SmallCall& c);
compiler::SmallResults convolution_backward(const compiler::SmallCall& c);

}  // namespace tower::rules::small
