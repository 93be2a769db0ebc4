// Tensors of ids of sets (sparse/dependence.h), and unions over them.
#pragma once

#include <ATen/core/Tensor.h>

#include "sparse/sets.h"

namespace tower::sparse {

using at::Tensor;

inline Sets::Id id_of(double number) { return static_cast<Sets::Id>(number); }

/// Of two tensors that are broadcast to `sizes`.
Tensor united(Sets& sets, const Tensor& a, const Tensor& b, at::IntArrayRef sizes);
/// Over the last `length` elements of each row of a tensor, as a vector.
Tensor united_rows(Sets& sets, const Tensor& ids, int64_t length);
/// Over dimensions, which stay as ones; all of them if empty.
Tensor united_over(Sets& sets, const Tensor& ids, std::vector<int64_t> dims);

}  // namespace tower::sparse
