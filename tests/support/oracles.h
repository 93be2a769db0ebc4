// What the transforms are held against: finite differences, and LibTorch's autograd.
#pragma once

#include <functional>
#include <vector>

#include "support/compare.h"

namespace support {

using Function = std::function<Tensors(const Tensors&)>;

/// The derivative of `f` at `x` along `direction`, by central differences of fourth order.
Tensors directional_derivative(const Function& f, const Tensors& x, const Tensors& direction);

/// The cotangents of `x` for `cotangents` of the outputs of `f`, by torch::autograd; zeros where `f` does not depend on
/// an input. Outputs that LibTorch does not differentiate contribute nothing.
Tensors autograd_vjp(const Function& f, const Tensors& x, const Tensors& cotangents);

}  // namespace support
