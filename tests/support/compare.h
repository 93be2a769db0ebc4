// Comparing what a transform gave with what it should have given.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace support {

using Tensors = std::vector<at::Tensor>;

struct Tolerance {
  double relative;  // to the largest magnitude of the expected tensor
  double absolute;
};

/// Values that went through the same kernels, perhaps in another order.
Tolerance same_arithmetic(at::ScalarType dtype);

/// The least precise real dtype among these and `type`: that of the arithmetic, where sums are made before a cast.
at::ScalarType coarsest(const Tensors& tensors, at::ScalarType type = at::kDouble);

/// Empty when `actual` has the dtype, shape and (within the tolerance; NaN equals NaN) values of `expected`; else a
/// sentence that says what differs and by how much.
std::string difference(const at::Tensor& actual, const at::Tensor& expected, Tolerance tolerance);

/// The first difference, with the index of the tensor, or that the numbers of tensors differ.
std::string difference(const Tensors& actual, const Tensors& expected, Tolerance tolerance);

/// The real inner product Re Σ conj(a) b over all tensors, in double; undefined tensors are zeros.
double inner(const Tensors& a, const Tensors& b);

/// The largest magnitude among all elements, zero for none.
double magnitude(const Tensors& tensors);

/// Tensors like `model` filled with reproducible numbers in (-1, 1).
Tensors random_like(const Tensors& model, uint64_t seed);

/// Σ of tensors, elementwise; undefined tensors are zeros.
Tensors plus(const Tensors& a, const Tensors& b);

/// a + scale × b.
Tensors moved(const Tensors& a, const Tensors& b, double scale);

}  // namespace support
