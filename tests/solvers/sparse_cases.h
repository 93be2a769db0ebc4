// Functions whose Jacobians are sparse.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace sparse_cases {

using at::Tensor;

using TensorFunction = std::function<Tensor(const Tensor&)>;

struct Case {
  const char* name;
  std::vector<int64_t> shape;
  TensorFunction f;
  bool exact = true;  // else the pattern may have more than the Jacobian
};

const std::vector<Case>& cases();

/// Three points of a line, zeros beyond its ends.
Tensor laplacian(const Tensor& x);
/// Five points of a grid.
Tensor five_points(const Tensor& x);

}  // namespace sparse_cases
