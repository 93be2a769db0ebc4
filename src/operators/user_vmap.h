// Between a vmap level and a user's vmap rule.
#pragma once

#include "core/operator.h"
#include "tower/vmap_info.h"

namespace tower {

/// What a rule is told of the level.
VmapInfo info_of(const VmapFrame& frame);

/// Takes over `out_dims`, one entry for each of `outs` (the outputs, flattened) or one for all. Throws ArgumentError
/// where a batch cannot be there.
void set_out_dims(VmapFrame& frame, c10::ArrayRef<Tensor> outs, const dynamic::Dims& out_dims);

}  // namespace tower
