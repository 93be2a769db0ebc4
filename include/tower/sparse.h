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
  /// `columns`, numbers below `num_columns`, of all rows, one row after the other, ascending in each; row r's are from
  /// `starts[r]` to `starts[r + 1]`. Throws ArgumentError where they are not. For `taken_for_dense` and `is_whole` see
  /// below.
  Sparsity(int64_t num_columns, std::vector<int64_t> starts, std::vector<int64_t> columns,
           std::vector<std::string> taken_for_dense = {}, bool is_whole = false);
  /// Where a `matrix`, dense or sparse, has entries that are not zero.
  static Sparsity of(const at::Tensor& matrix);

  /// How many rows the matrix has.
  int64_t num_rows() const { return static_cast<int64_t>(starts_.size()) - 1; }
  /// How many columns the matrix has.
  int64_t num_columns() const { return num_columns_; }
  /// How many entries there are.
  int64_t num_entries() const { return static_cast<int64_t>(columns_.size()); }
  /// Where each row's entries start among those of all rows, and the end of the last.
  const std::vector<int64_t>& starts() const { return starts_; }
  /// The column of each entry.
  const std::vector<int64_t>& columns() const { return columns_; }
  /// The operators of which nothing better was known than that all they give depends on all they were given.
  const std::vector<std::string>& taken_for_dense() const { return taken_for_dense_; }
  /// Whether it has all entries whatever the values are, as one has that was found by following a function. Another may
  /// leave out columns that nobody asks for.
  bool is_whole() const { return is_whole_; }

  /// A bool matrix: for small ones, and to look at.
  at::Tensor mask() const;
  /// The pattern of the transposed matrix.
  Sparsity transposed() const;
  /// A picture, as SVG text: a black square of four units for each entry, and `title` above.
  std::string svg(const std::string& title = {}) const;

 private:
  int64_t num_columns_;
  std::vector<int64_t> starts_, columns_;
  std::vector<std::string> taken_for_dense_;
  bool is_whole_;
};

/// Writes to `out` the sizes of `pattern`, and a picture: a line for each row with * for entries. Of large ones a
/// character is a block.
std::ostream& operator<<(std::ostream& out, const Sparsity& pattern);

/// What a function may do whose pattern is looked for.
struct SparsityOptions {
  /// The function may read values that depend on x (item(), an `if` by a tensor). The pattern is then that of the way
  /// that it takes at this x, and may lack entries elsewhere.
  bool values_decide = false;
  /// A pattern of more entries is an error, with the names of the operators that were taken for dense, and not what
  /// takes all of the memory: an entry takes 8 bytes, and some copies for the colouring.
  std::int64_t most_entries = 100'000'000;
};

/// How sparse derivatives are computed, and what they are.
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
/// The same of the Jacobian of the gradient of `f`, whose first output is a real scalar: rows and columns are the
/// elements of `x`.
Sparsity hessian_sparsity(const Function& f, const Tensors& x, const SparsityOptions& options = {});

/// Which directional derivatives give the entries of a pattern, and where each is found among them: made once, for any
/// number of evaluations.
class SparsePlan {
 public:
  /// For a `pattern`, which is coloured here. `symmetric`: the matrix is, so that an entry may be found at the mirrored
  /// place. Throws ArgumentError where a symmetric one is not square, or the `options` do not fit.
  SparsePlan(Sparsity pattern, SparseOptions options, bool symmetric);

  /// The entries of the Jacobian of `f` at `x`, in the pattern's order, one dimension: a tensor that transforms can
  /// carry. Throws ArgumentError where outputs and arguments have other numbers of elements than the pattern.
  at::Tensor values(const Function& f, const Tensors& x) const;
  /// The matrix with these `values` as entries, in the layout that the options say. Throws UnsupportedError inside of a
  /// transform.
  at::Tensor matrix(const at::Tensor& values) const;

  /// Where the entries are.
  const Sparsity& pattern() const;
  /// Directional derivatives that one evaluation takes.
  int64_t num_colours() const;
  /// Those of them that are vjps, of rows.
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
  /// What sparse_jacobian(f, pattern, options) or sparse_hessian gives.
  SparseDerivative(F f, Sparsity pattern, SparseOptions options)
      : f_(std::move(f)), plan_(std::move(pattern), options, /*symmetric=*/kHessian) {}

  /// The matrix at `x`, with the entries of the pattern, zeros too. Throws UnsupportedError inside of a transform.
  template <class X>
  at::Tensor operator()(const X& x) const {
    return plan_.matrix(values(x));
  }
  /// The entries at `x` alone, in the pattern's order: an ordinary tensor of one dimension, which transforms can carry.
  template <class X>
  at::Tensor values(const X& x) const {
    return plan_.values(detail::on_lists<kHessian>(f_, x), leaves_of(x));
  }
  /// The matrix of what values() gave, `values`: outside of the transforms that carried them.
  at::Tensor matrix(const at::Tensor& values) const { return plan_.matrix(values); }

  /// Where the entries are.
  const Sparsity& pattern() const { return plan_.pattern(); }
  /// Directional derivatives that one evaluation takes.
  int64_t num_colours() const { return plan_.num_colours(); }
  /// Those of them that are vjps, of rows.
  int64_t num_row_colours() const { return plan_.num_row_colours(); }

 private:
  F f_;
  dynamic::SparsePlan plan_;
};

/// Where the Jacobian of `f` at a tree `x` can have entries, as dynamic::jacobian_sparsity says.
template <class F, class X>
Sparsity jacobian_sparsity(F f, const X& x, const SparsityOptions& options = {}) {
  return dynamic::jacobian_sparsity(detail::on_lists<false>(f, x), leaves_of(x), options);
}
/// The same of the Hessian of `f` at `x`, whose result is a real scalar.
template <class F, class X>
Sparsity hessian_sparsity(F f, const X& x, const SparsityOptions& options = {}) {
  return dynamic::hessian_sparsity(detail::on_lists<false>(f, x), leaves_of(x), options);
}

/// A function of a tree for the Jacobian of `f`, whose `pattern` is known: by jvps of groups of columns, or vjps of
/// groups of rows, or both, whatever takes fewest (docs/solvers.md has the sources). Throws ArgumentError where the
/// `options` do not fit.
template <class F>
SparseDerivative<F, false> sparse_jacobian(F f, Sparsity pattern, SparseOptions options = {}) {
  return {std::move(f), std::move(pattern), options};
}
/// A function of a tree for the Hessian of `f`, whose `pattern` is known: by Hessian-vector products; an entry is found
/// at its place or at the mirrored one.
template <class F>
SparseDerivative<F, true> sparse_hessian(F f, Sparsity pattern, SparseOptions options = {}) {
  return {std::move(f), std::move(pattern), options};
}

}  // namespace tower
