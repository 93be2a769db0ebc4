// Linear recurrences along a dimension, in a logarithmic number of steps whose shapes do not depend on the data. They
// are sums of products, so unlike quotients they are exact where elements are zero, and so are all their derivatives.
#pragma once

#include <ATen/core/Tensor.h>

namespace tower::rules {

/// y[k] = a[k] y[k-1] + b[k] along `dim`, with y before the first element zero.
at::Tensor recurrence(at::Tensor a, at::Tensor b, int64_t dim);
/// y[k] = a[k+1] y[k+1] + b[k]: its transpose as a function of b.
at::Tensor transposed_recurrence(const at::Tensor& a, const at::Tensor& b, int64_t dim);
/// The elements moved up by one along `dim`, `first` before them.
at::Tensor delayed(const at::Tensor& t, int64_t dim, double first);
/// The elements moved down by one along `dim`, `last` after them.
at::Tensor advanced(const at::Tensor& t, int64_t dim, double last);

}  // namespace tower::rules
