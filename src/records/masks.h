// Derivatives that are masks. They are applied by where(), never by a product: a NaN or infinity that belongs to the
// value not chosen must not reach the result.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/where.h>

namespace tower::rules {

inline at::Tensor keep_where(const at::Tensor& mask, const at::Tensor& t) { return at::where(mask, t, at::Scalar(0)); }
inline at::Tensor zero_where(const at::Tensor& mask, const at::Tensor& t) { return at::where(mask, at::Scalar(0), t); }

}  // namespace tower::rules
