// The largest eigenvalues of a symmetric matrix that exists only as a function: v ↦ Hv.
//
//   const Spectrum top = largest_eigenvalues(apply_hessian, n, count, steps);
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/diag.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace laplace_digits {

struct Spectrum {
  at::Tensor values;   // count, the largest first
  at::Tensor vectors;  // count × n
};

/// Lanczos' method: after `steps` products with the matrix, the eigenvalues of a small tridiagonal matrix are the
/// matrix's own, the largest first to be accurate. Each new direction is made orthogonal to all earlier ones, twice;
/// rounding would otherwise let them drift together, and eigenvalues would be found again and again.
inline Spectrum largest_eigenvalues(const std::function<at::Tensor(const at::Tensor&)>& apply, int64_t n, int64_t count,
                                    int64_t steps) {
  std::vector<double> diagonal, beside;
  std::vector<at::Tensor> directions;
  at::Tensor next = at::randn({n}, at::kDouble);
  for (int64_t step = 0; step < steps; ++step) {
    directions.push_back(next / next.norm());
    next = apply(directions.back());
    diagonal.push_back(next.dot(directions.back()).item<double>());
    const at::Tensor basis = at::stack(directions);
    for (int pass = 0; pass < 2; ++pass) next = next - at::mv(basis.t(), at::mv(basis, next));
    beside.push_back(next.norm().item<double>());
  }
  beside.pop_back();  // it leads to a direction that was not taken

  const at::Tensor off_diagonal = at::diag(at::tensor(beside, at::kDouble), 1);
  const at::Tensor tridiagonal = at::diag(at::tensor(diagonal, at::kDouble)) + off_diagonal + off_diagonal.t();
  const auto [values, vectors] = at::linalg_eigh(tridiagonal);  // ascending
  const auto largest = [&](const at::Tensor& t, int64_t dim) { return t.narrow(dim, steps - count, count).flip(dim); };
  return {largest(values, 0), largest(vectors, 1).t().matmul(at::stack(directions))};
}

}  // namespace laplace_digits
