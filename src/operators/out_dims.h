// What a user's vmap rule says of where its results' batch dimensions are.
#pragma once

#include "core/operator.h"
#include "tower/dynamic.h"

namespace tower {

/// Takes over `out_dims`, one entry for each of `outs` (the outputs, flattened) or one for all. Throws ArgumentError
/// where a batch cannot be there.
void set_out_dims(VmapFrame& frame, c10::ArrayRef<Tensor> outs, const dynamic::Dims& out_dims);

}  // namespace tower
