#include "sparse/ids.h"

#include <ATen/Functions.h>

namespace tower::sparse {

Tensor united(Sets& sets, const Tensor& a, const Tensor& b, at::IntArrayRef sizes) {
  const Tensor left = a.expand(sizes).contiguous(), right = b.expand(sizes).contiguous();
  Tensor result = at::empty(sizes, left.options());
  const double *from_left = left.const_data_ptr<double>(), *from_right = right.const_data_ptr<double>();
  auto* to = result.mutable_data_ptr<double>();
  for (int64_t k = 0; k < result.numel(); ++k) {
    // Neighbours often are of the same sets.
    const bool again = k > 0 && from_left[k] == from_left[k - 1] && from_right[k] == from_right[k - 1];
    to[k] = again ? to[k - 1] : static_cast<double>(sets.unite(id_of(from_left[k]), id_of(from_right[k])));
  }
  return result;
}

Tensor united_rows(Sets& sets, const Tensor& ids, int64_t length) {
  const Tensor rows = ids.contiguous();
  const int64_t count = length == 0 ? 0 : rows.numel() / length;
  Tensor result = at::zeros({count}, rows.options());
  const auto* from = rows.const_data_ptr<double>();
  auto* to = result.mutable_data_ptr<double>();
  std::vector<Sets::Id> row;
  for (int64_t r = 0; r < count; ++r) {
    row.clear();
    for (int64_t k = 0; k < length; ++k)
      if (const Sets::Id id = id_of(from[r * length + k]); row.empty() || row.back() != id) row.push_back(id);
    to[r] = static_cast<double>(sets.unite_all(row));
  }
  return result;
}

Tensor united_over(Sets& sets, const Tensor& ids, std::vector<int64_t> dims) {
  const int64_t rank = ids.dim();
  if (rank == 0) return ids;  // which a dimension may be named of all the same
  std::vector<bool> over(static_cast<size_t>(rank), dims.empty());
  for (const int64_t d : dims) over[static_cast<size_t>(d < 0 ? d + rank : d)] = true;
  std::vector<int64_t> order, sizes;
  int64_t length = 1;
  for (int64_t d = 0; d < rank; ++d) {
    sizes.push_back(over[size_t(d)] ? 1 : ids.size(d));
    if (!over[size_t(d)]) order.push_back(d);
    else length *= ids.size(d);
  }
  for (int64_t d = 0; d < rank; ++d)
    if (over[size_t(d)]) order.push_back(d);
  if (c10::multiply_integers(sizes) == 0 || length == 0) return at::zeros(sizes, ids.options());
  return united_rows(sets, ids.permute(order), length).view(sizes);
}

}  // namespace tower::sparse
