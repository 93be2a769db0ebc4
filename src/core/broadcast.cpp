#include "core/broadcast.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/sum.h>

#include <numeric>
#include <vector>

namespace tower {

at::Tensor summed_to(const at::Tensor& t, at::IntArrayRef sizes) {
  if (t.sizes().equals(sizes)) return t;
  if (t.numel() == c10::multiply_integers(sizes)) return t.view(sizes);  // what was broadcast has size one
  const auto rows = static_cast<size_t>(t.dim()) - sizes.size();
  if (rows == 0 || !t.sizes().slice(rows).equals(sizes)) return at::sum_to(t, sizes);
  std::vector<int64_t> dims(rows);
  std::iota(dims.begin(), dims.end(), 0);
  return t.sum(dims);
}

}  // namespace tower
