#include "rules/dims.h"

#include <ATen/Functions.h>
#include <ATen/TensorUtils.h>

namespace tower::rules {

Tensor in_shape(const Tensor& t, at::IntArrayRef sizes) {
  if (t.sizes().equals(sizes)) return t;
  return at::detail::computeStride(t.sizes(), t.strides(), at::DimVector(sizes)) ? t.view(sizes) : t.reshape(sizes);
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
