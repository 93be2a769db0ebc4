#include "records/index_plan.h"

#include <ATen/Functions.h>

#include "records/dims.h"
#include "tower/errors.h"

namespace tower::rules {

OptionalTensors optional_list(const std::vector<Tensor>& tensors) {
  OptionalTensors list;
  for (const Tensor& t : tensors) list.push_back(t.defined() ? std::optional(t) : std::nullopt);
  return list;
}

IndexPlan::IndexPlan(const VmapFrame& f, int64_t logical_rank) {
  const auto& elements = f.stack[1].toListRef();
  struct Found {
    int64_t dim;
    Tensor index;
    bool batched;
  };
  std::vector<Found> found;
  const auto whole = logical_sizes(f, 0);
  int64_t dim = 0;
  for (size_t e = 0; e < elements.size(); ++e) {
    const Tensor t = elements[e].isTensor() ? elements[e].toTensor() : Tensor();
    if (!t.defined()) {
      ++dim;
      continue;
    }
    const int64_t batch = f.list_dims[1][e];
    const bool batched = batch != VmapFrame::kUnbatched;
    if (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte) {
      if (batched)
        throw UnsupportedError(f.level.describe() + ": " + f.op.name() +
                               " with a mask that differs between examples: how many elements it picks depends on the "
                               "data. Use where() or masked_fill(), whose results have one shape.");
      for (int64_t k = 0; k < t.dim() && dim + k < logical_rank; ++k)
        TORCH_CHECK_INDEX(t.size(k) == whole[static_cast<size_t>(dim + k)], "The shape of the mask ", t.sizes(),
                          " at index ", k, " does not match the shape of the indexed tensor ", whole, " at index ",
                          dim + k);
      for (const Tensor& place : at::nonzero(t).unbind(1)) found.push_back({dim++, place, false});
      if (t.dim() == 0) found.push_back({dim++, at::nonzero(t.unsqueeze(0)).select(1, 0), false});
      continue;
    }
    found.push_back({dim++, batch > 0 ? t.movedim(batch, 0) : t, batched});
  }
  TORCH_CHECK_INDEX(dim <= logical_rank, "too many indices for tensor of dimension ", logical_rank, " (got ", dim, ")");
  adjacent = true;
  for (const Found& i : found) {
    any_batched = any_batched || i.batched;
    rank = std::max(rank, i.index.dim() - i.batched);
    adjacent = adjacent && (dims.empty() || i.dim == dims.back() + 1);
    dims.push_back(i.dim);
  }
  for (Found& i : found) {
    if (i.batched)
      while (i.index.dim() < rank + 1) i.index = i.index.unsqueeze(1);
    indices.push_back(std::move(i.index));
  }
}

}  // namespace tower::rules
