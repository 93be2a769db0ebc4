// Reductions of losses, by LibTorch's codes (0 none, 1 mean, 2 sum).
#pragma once

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace tower::rules {

using at::Tensor;

/// The losses, their mean or their sum.
Tensor reduce(const Tensor& losses, int64_t reduction);
/// The same for each example along the first dimension.
Tensor reduce_examples(const Tensor& losses, int64_t reduction);
/// The transpose: `slope` times the gradient `g` of the reduced loss.
Tensor spread(const Tensor& g, const Tensor& slope, int64_t reduction);

/// An optional argument of a rule, as LibTorch's functions take it.
inline std::optional<Tensor> given(const Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; }

}  // namespace tower::rules
