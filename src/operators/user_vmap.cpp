#include "operators/user_vmap.h"

#include "interpreters/vmap.h"
#include "tower/errors.h"

namespace tower {

VmapInfo info_of(const VmapFrame& frame) {
  return {frame.batch_size, static_cast<const Vmap&>(frame.level).randomness()};
}

void set_out_dims(VmapFrame& frame, c10::ArrayRef<Tensor> outs, const dynamic::Dims& out_dims) {
  const std::string who = frame.level.describe() + ": the vmap rule of " + frame.op.name();
  if (out_dims.size() != outs.size() && out_dims.size() != 1)
    throw ArgumentError(who + " returned " + std::to_string(outs.size()) + " outputs and " +
                        std::to_string(out_dims.size()) + " out_dims. Return one for each.");
  frame.out_dims.clear();
  for (size_t k = 0; k < outs.size(); ++k) {
    const std::optional<int64_t>& given = out_dims[out_dims.size() == 1 ? 0 : k];
    if (!given || !outs[k].defined()) {
      frame.out_dims.push_back(VmapFrame::kUnbatched);
      continue;
    }
    const int64_t rank = outs[k].dim();
    const int64_t dim = *given < 0 ? *given + rank : *given;
    if (dim < 0 || dim >= rank || outs[k].size(dim) != frame.batch_size)
      throw ArgumentError(who + " says that the batch of output " + std::to_string(k) + " is at dimension " +
                          std::to_string(*given) + ", but the output is " + describe(outs[k]) + " and the batch has " +
                          std::to_string(frame.batch_size) + " examples.");
    frame.out_dims.push_back(dim);
  }
}

}  // namespace tower
