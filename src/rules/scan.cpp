#include "rules/scan.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>

namespace tower::rules {

using at::Tensor;

Tensor delayed(const Tensor& t, int64_t dim, double first) {
  const Tensor start = at::full_like(t.narrow(dim, 0, 1), first);
  return at::cat({start, t.narrow(dim, 0, t.size(dim) - 1)}, dim);
}

Tensor advanced(const Tensor& t, int64_t dim, double last) {
  const Tensor end = at::full_like(t.narrow(dim, 0, 1), last);
  return at::cat({t.narrow(dim, 1, t.size(dim) - 1), end}, dim);
}

// After the step of width s, (a, b)[k] describes y[k] as a function of y[k - 2s].
Tensor recurrence(Tensor a, Tensor b, int64_t dim) {
  if (b.dim() == 0) return b;
  const int64_t n = b.size(dim);
  for (int64_t s = 1; s < n; s *= 2) {
    const Tensor factor = a.narrow(dim, s, n - s);
    b = at::cat({b.narrow(dim, 0, s), b.narrow(dim, s, n - s) + factor * b.narrow(dim, 0, n - s)}, dim);
    if (2 * s < n) a = at::cat({a.narrow(dim, 0, s), factor * a.narrow(dim, 0, n - s)}, dim);
  }
  return b;
}

Tensor transposed_recurrence(const Tensor& a, const Tensor& b, int64_t dim) {
  if (b.dim() == 0 || b.size(dim) == 0) return b;
  return recurrence(advanced(a, dim, 0).flip(dim), b.flip(dim), dim).flip(dim);
}

}  // namespace tower::rules
