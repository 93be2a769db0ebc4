// Terms that derivatives of several families of operators have.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/rsub.h>

#include <optional>

namespace tower::rules {

inline at::Tensor one_minus(const at::Tensor& t) { return at::rsub(t, 1); }

/// The sum of two of which either may be undefined, that is zero.
inline at::Tensor plus(const at::Tensor& a, const at::Tensor& b) { return !a.defined() ? b : !b.defined() ? a : a + b; }

/// `x` in the type that an operator was asked to compute in; as it is where none was named.
inline at::Tensor in_type(const at::Tensor& x, const std::optional<at::ScalarType>& type) {
  return type && *type != x.scalar_type() ? x.to(*type) : x;
}

}  // namespace tower::rules
