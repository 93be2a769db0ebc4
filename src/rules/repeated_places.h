// What is written to one place more than once.
#pragma once

#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "rules/scan.h"

namespace tower::rules {

// NOTE [Places that are written twice]
// Of what an index writes to one place the last stays; the others have no part in the result. So where an index may
// name a place more than once, the gradient is that of the last of equals, when places are sorted: at no cost that
// grows with what is written to. Of an index that is a constant a graph does that once.
inline Tensor of_those_that_stay(const Tensor& gradient, const Tensor& place, int64_t dim, at::IntArrayRef shape) {
  const auto [sorted, order] = place.sort(/*stable=*/true, dim, /*descending=*/false);
  const Tensor is_last = sorted.ne(advanced(sorted, dim, -1));
  return at::where(at::zeros_like(is_last).scatter(dim, order, is_last).view(shape), gradient, 0);
}

}  // namespace tower::rules
