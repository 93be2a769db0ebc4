// Random number generators and where they stand.
#pragma once

#include <ATen/core/Generator.h>

#include "core/operator.h"

namespace tower {

/// The generator that a random operator would draw from, called with what is on the stack.
at::Generator generator_of(const Stack& stack);
Tensor state_of(at::Generator& generator);
void set_state(at::Generator& generator, const Tensor& state);

}  // namespace tower
