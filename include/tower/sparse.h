// Sparse Jacobians and Hessians: which elements of a derivative can differ from zero, and these elements, from as few
// directional derivatives as a colouring needs.
//
//   const tower::Sparsity pattern = tower::jacobian_sparsity(residual, x);
//   const auto jacobian = tower::sparse_jacobian(residual, pattern);  // colours once
//   at::Tensor J = jacobian(x);                                       // CSR
//
// A pattern is a superset whatever the values are, as long as the function runs the same operators: branches of the
// program that depend on values are followed as they are at x. docs/solvers.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tower/transforms.h"

namespace tower {

/// Where a matrix has entries. Rows are elements of an output, columns those of an input, in the order of flatten().
class Sparsity {
 public:
  /// `columns` of all rows, one row after the other, ascending in each; row r's are from `starts[r]` to `starts[r +
  /// 1]`.
  Sparsity(int64_t num_columns, std::vector<int64_t> starts, std::vector<int64_t> columns,
           std::vector<std::string> taken_for_dense = {});
  /// Where a matrix, dense or sparse, has entries that are not zero.
  static Sparsity of(const at::Tensor& matrix);

  int64_t num_rows() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t num_columns() const { return num_columns_; }
  int64_t num_entries() const { return static_cast<int64_t>(columns_.size()); }
  const std::vector<int64_t>& starts() const { return starts_; }
  const std::vector<int64_t>& columns() const { return columns_; }
  /// The operators of which nothing better was known than that all they give depends on all they were given.
  const std::vector<std::string>& taken_for_dense() const { return taken_for_dense_; }

  /// A bool matrix: for small ones, and to look at.
  at::Tensor mask() const;
  Sparsity transposed() const;

 private:
  int64_t num_columns_;
  std::vector<int64_t> starts_, columns_;
  std::vector<std::string> taken_for_dense_;
};

struct SparseOptions {
  /// Directions computed at once; all of them when empty. Bounds peak memory.
  std::optional<int64_t> chunk_size = std::nullopt;
};

using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;

/// A function for the Jacobian of another one, whose pattern is known.
class SparseJacobian {
 public:
  SparseJacobian(TensorFunction f, Sparsity pattern, SparseOptions options = {});

  /// The Jacobian at x as a CSR matrix, with the entries of the pattern, zeros too.
  at::Tensor operator()(const at::Tensor& x) const;
  /// Its entries alone, in the pattern's order: an ordinary tensor, which transforms can carry.
  at::Tensor values(const at::Tensor& x) const;

  const Sparsity& pattern() const;
  /// Of directional derivatives that one evaluation takes: jvps, or vjps where those are fewer.
  int64_t num_colours() const;
  bool by_rows() const;

 private:
  struct Plan;
  std::shared_ptr<const Plan> plan_;
};

/// Where the Jacobian of `f` by a tensor can have entries. Throws UnsupportedError inside of a transform.
Sparsity jacobian_sparsity(const TensorFunction& f, const at::Tensor& x);
/// The same of the Jacobian of the gradient of `f`, whose result is a real scalar.
Sparsity hessian_sparsity(const TensorFunction& f, const at::Tensor& x);

inline SparseJacobian sparse_jacobian(TensorFunction f, Sparsity pattern, SparseOptions options = {}) {
  return {std::move(f), std::move(pattern), options};
}
/// Of the Hessian of `f`, as the Jacobian of its gradient.
SparseJacobian sparse_hessian(TensorFunction f, Sparsity pattern, SparseOptions options = {});

}  // namespace tower
