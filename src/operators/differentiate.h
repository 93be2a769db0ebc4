// Derivatives of functions that have no rule for them: of their implementation, evaluated again.
#pragma once

#include "tower/dynamic.h"

namespace tower {

/// Gradients of the operands that `needs` says, the others undefined, from cotangents of the outputs of `f`.
dynamic::Tensors pull_back_through(const dynamic::Function& f, const dynamic::Tensors& operands,
                                   const dynamic::Tensors& cotangents, const std::vector<bool>& needs);

}  // namespace tower
