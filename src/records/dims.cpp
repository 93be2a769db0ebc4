#include "records/dims.h"

#include <ATen/Functions.h>
#include <ATen/TensorUtils.h>

#include <algorithm>

#include "core/layout.h"

namespace tower::rules {

Tensor in_shape(const Tensor& t, at::IntArrayRef sizes) {
  if (t.sizes().equals(sizes)) return t;
  return at::detail::computeStride(t.sizes(), t.strides(), at::DimVector(sizes)) ? t.view(sizes) : t.reshape(sizes);
}

Tensor gathered(const Tensor& t, int64_t dim, const Tensor& index) {
  if (index.is_contiguous()) return t.gather(dim, index);
  const auto order = farthest_first(index.strides());
  std::vector<int64_t> places(order.size());
  for (size_t i = 0; i < order.size(); ++i) places[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  const int64_t place = places[static_cast<size_t>(at::maybe_wrap_dim(dim, index.dim()))];
  return t.permute(order).gather(place, index.permute(order)).permute(places);
}

Tensor batch_of_rows(VmapFrame& f, size_t arg) {
  const int64_t n = product(logical_sizes(f, arg));
  f.to_front(arg, true);
  return in_shape(f.tensor(arg), {f.batch_size, n});
}

void shift_dims(VmapFrame& f, std::initializer_list<uint8_t> dims, int64_t rank) {
  for (uint8_t i : f.op.tensor_args())
    if (f.is_tensor(i)) f.to_front(i, true);
  for (uint8_t d : dims) f.stack[d] = at::maybe_wrap_dim(f.stack[d].toInt(), rank) + 1;
}

std::vector<Tensor> filled(c10::ArrayRef<Tensor> tensors, const std::vector<std::vector<int64_t>>& sizes) {
  at::TensorOptions options;
  for (const Tensor& t : tensors)
    if (t.defined()) options = t.options();
  std::vector<Tensor> result;
  for (size_t k = 0; k < tensors.size(); ++k)
    result.push_back(tensors[k].defined() ? tensors[k] : at::zeros(sizes[k], options));
  return result;
}

}  // namespace tower::rules
