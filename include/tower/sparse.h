// Sparse Jacobians and Hessians: which elements of a derivative can differ from zero, and these elements, from as few
// directional derivatives as a colouring needs.
//
//   const tower::Sparsity pattern = tower::jacobian_sparsity(residual, x);
//   const auto jacobian = tower::sparse_jacobian(residual, pattern);  // colours once
//   at::Tensor J = jacobian(x);                                       // CSR, COO, CSC or BSR
//
// A pattern is a superset whatever the values are, as long as the function runs the same operators: branches of the
// program that depend on values are followed as they are at x. docs/solvers.md.
#pragma once

#include <c10/core/Layout.h>

#include <array>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
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
  /// A picture, as SVG text: a black square of four units for each entry.
  std::string svg(const std::string& title = {}) const;

 private:
  int64_t num_columns_;
  std::vector<int64_t> starts_, columns_;
  std::vector<std::string> taken_for_dense_;
};

/// Sizes, and a picture: a line for each row with * for entries. Of large ones a character is a block.
std::ostream& operator<<(std::ostream& out, const Sparsity& pattern);

struct SparsityOptions {
  /// The function may read values that depend on x (item(), an `if` by a tensor). The pattern is then that of the way
  /// that it takes at this x, and may lack entries elsewhere.
  bool values_decide = false;
};

struct SparseOptions {
  /// Directions computed at once; all of them when empty. Bounds peak memory.
  std::optional<int64_t> chunk_size = std::nullopt;
  /// Of the result: kSparseCsr, kSparseCsc, kSparse (COO), or kSparseBsr.
  at::Layout layout = at::kSparseCsr;
  /// The size of BSR's blocks.
  std::array<int64_t, 2> block = {1, 1};
};

namespace dynamic {

/// Where the Jacobian of `f` by all of `x` can have entries: rows are the elements of all outputs, one tensor after the
/// other, and columns those of x. Throws UnsupportedError inside of a transform, and where `f` reads a value that
/// depends on x.
Sparsity jacobian_sparsity(const Function& f, const Tensors& x, const SparsityOptions& options = {});
/// The same of the Jacobian of the gradient of `f`, whose first output is a real scalar.
Sparsity hessian_sparsity(const Function& f, const Tensors& x, const SparsityOptions& options = {});

/// Which directional derivatives give the entries of a pattern, and where each is found among them: made once, for any
/// number of evaluations.
class SparsePlan {
 public:
  /// `symmetric`: the matrix is, so that an entry may be found at the mirrored place.
  SparsePlan(Sparsity pattern, SparseOptions options, bool symmetric);

  /// The entries of the Jacobian of `f` at x, in the pattern's order: a tensor that transforms can carry.
  at::Tensor values(const Function& f, const Tensors& x) const;
  /// The matrix with these entries, in the layout that the options say. Throws UnsupportedError inside of a transform.
  at::Tensor matrix(const at::Tensor& values) const;

  const Sparsity& pattern() const;
  int64_t num_colours() const;
  int64_t num_row_colours() const;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

}  // namespace dynamic

namespace detail {

/// A function of a tree like `x`, or its gradient, as one of lists.
template <bool kGradient, class F, class X>
dynamic::Function on_lists(const F& f, const X& x) {
  static_assert(TensorTree<X>, "tower: the argument of a sparse derivative is a tree that holds tensors.");
  static_assert(std::is_invocable_v<F&, X>, "tower: the function of a sparse derivative takes one tree.");
  dynamic::Function flat = [held = Held<F>{f}, like = static_parts(x)](const dynamic::Tensors& leaves) {
    return leaves_of(held.function(with_leaves(like, leaves)));
  };
  if constexpr (!kGradient) {
    return flat;
  } else {
    std::vector<int64_t> all(leaves_of(x).size());
    std::iota(all.begin(), all.end(), 0);
    return dynamic::grad(std::move(flat), std::move(all));
  }
}

}  // namespace detail

/// A function for the Jacobian of another one, or for its Hessian, whose pattern is known. Arguments and results of the
/// function are trees (tower/tree.h): the elements of their tensors, one after the other, are columns and rows.
template <class F, bool kHessian>
class SparseDerivative {
 public:
  SparseDerivative(F f, Sparsity pattern, SparseOptions options)
      : f_(std::move(f)), plan_(std::move(pattern), options, /*symmetric=*/kHessian) {}

  /// The matrix at x, with the entries of the pattern, zeros too.
  template <class X>
  at::Tensor operator()(const X& x) const {
    return plan_.matrix(values(x));
  }
  /// Its entries alone, in the pattern's order: an ordinary tensor, which transforms can carry.
  template <class X>
  at::Tensor values(const X& x) const {
    return plan_.values(detail::on_lists<kHessian>(f_, x), leaves_of(x));
  }
  /// The matrix of values(): outside of the transforms that carried them.
  at::Tensor matrix(const at::Tensor& values) const { return plan_.matrix(values); }

  const Sparsity& pattern() const { return plan_.pattern(); }
  /// Directional derivatives that one evaluation takes.
  int64_t num_colours() const { return plan_.num_colours(); }
  /// Those of them that are vjps, of rows.
  int64_t num_row_colours() const { return plan_.num_row_colours(); }

 private:
  F f_;
  dynamic::SparsePlan plan_;
};

/// Where the Jacobian of `f` at a tree can have entries, as dynamic::jacobian_sparsity says.
template <class F, class X>
Sparsity jacobian_sparsity(F f, const X& x, const SparsityOptions& options = {}) {
  return dynamic::jacobian_sparsity(detail::on_lists<false>(f, x), leaves_of(x), options);
}
/// The same of the Hessian of `f`, whose result is a real scalar.
template <class F, class X>
Sparsity hessian_sparsity(F f, const X& x, const SparsityOptions& options = {}) {
  return dynamic::hessian_sparsity(detail::on_lists<false>(f, x), leaves_of(x), options);
}

/// By jvps of groups of columns, or vjps of groups of rows, or both, whatever takes fewest.
template <class F>
SparseDerivative<F, false> sparse_jacobian(F f, Sparsity pattern, SparseOptions options = {}) {
  return {std::move(f), std::move(pattern), options};
}
/// By Hessian-vector products; an entry is found at its place or at the mirrored one.
template <class F>
SparseDerivative<F, true> sparse_hessian(F f, Sparsity pattern, SparseOptions options = {}) {
  return {std::move(f), std::move(pattern), options};
}

}  // namespace tower
