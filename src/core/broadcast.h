// The transpose of broadcasting.
#pragma once

#include <ATen/core/Tensor.h>

namespace tower {

/// `t`, of the shape that a tensor of `sizes` was broadcast to, summed over what was broadcast. As at::sum_to, which
/// takes calls even where there is nothing to do, and sums over dimensions of size one.
at::Tensor summed_to(const at::Tensor& t, at::IntArrayRef sizes);

}  // namespace tower
