// What stands at LibTorch's Autograd key for an operator with rules of Tower's: one kernel for all of them, which looks
// up the rules when it is called. So a formula may be registered after the operator, and be replaced.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

namespace tower {

/// Where something requires grad, records the operator's rules in LibTorch's graph; without a formula that is a node
/// whose backward is an error. Then, and otherwise, runs the operator's kernels below autograd.
c10::KernelFunction autograd_kernel();

}  // namespace tower
