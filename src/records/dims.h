// Dimensions of one example, and where they are in a value that also has a batch dimension.
#pragma once

#include <ATen/WrapDimUtils.h>

#include <vector>

#include "core/operator.h"

namespace tower::rules {

/// Where dimension `d` of an example is in a value whose batch dimension is `batch`.
inline int64_t past(int64_t d, int64_t batch) { return d >= batch ? d + 1 : d; }

/// Dimension `dim` (negative: from the end) of an example of argument `arg`, in the value as it is.
inline int64_t physical_dim(const VmapFrame& f, size_t arg, int64_t dim) {
  return past(at::maybe_wrap_dim(dim, f.logical_dim(arg)), f.in_dims[arg]);
}

/// The sizes of one example of argument `arg`.
inline std::vector<int64_t> logical_sizes(const VmapFrame& f, size_t arg) {
  const Tensor t = f.tensor(arg);
  std::vector<int64_t> sizes = t.sizes().vec();
  if (f.batched(arg)) sizes.erase(sizes.begin() + f.in_dims[arg]);
  return sizes;
}

/// The batch size followed by `sizes`.
inline std::vector<int64_t> with_batch(const VmapFrame& f, at::IntArrayRef sizes) {
  std::vector<int64_t> result{f.batch_size};
  result.insert(result.end(), sizes.begin(), sizes.end());
  return result;
}

inline int64_t product(at::IntArrayRef sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

/// `t` in another shape: a view where its layout allows one, else a copy.
Tensor in_shape(const Tensor& t, at::IntArrayRef sizes);

/// gather(), with a result that lies in memory as the index does.
Tensor gathered(const Tensor& t, int64_t dim, const Tensor& index);

/// Argument `arg` as a matrix: the batch, then the elements of one example.
Tensor batch_of_rows(VmapFrame& f, size_t arg);

/// Batch in front everywhere, logical dims in the arguments `dims` counted from `rank`.
void shift_dims(VmapFrame& f, std::initializer_list<uint8_t> dims, int64_t rank);

/// Gives zeros the place of undefined tensors, by the shapes in `sizes`.
std::vector<Tensor> filled(c10::ArrayRef<Tensor> tensors, const std::vector<std::vector<int64_t>>& sizes);

}  // namespace tower::rules
