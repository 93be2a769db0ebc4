// Linear systems whose matrix is a function: A x = b for a linear function A of trees. The solution is an operator
// whose derivatives, in both modes and to any order, are further linear solves; how it was found is never
// differentiated.
//
//   auto x = tower::linear_solve([=](const Tensor& v) { return at::mv(a, v) + shift * v; }, b);
//   auto [u, converged, steps, residual] = tower::cg(apply, b, {.tolerance = 1e-12});
//
// What the function captures (`a`, `shift`) gets its derivatives like b. It is captured by value: the function is kept,
// and run again by pullbacks. docs/solvers.md.
#pragma once

#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tower/dynamic.h"
#include "tower/errors.h"
#include "tower/tree.h"

namespace tower {

/// An iterative solver did not come to its tolerance.
class NoConvergenceError : public Error {
 public:
  using Error::Error;
};

/// What an iterative solver does that did not come to its tolerance.
enum class NoConvergence {
  error,   ///< NoConvergenceError
  report,  ///< `converged` says of each example whether it did
};

/// How far `cg`, `bicgstab` and `gmres` go, for unknowns that are a tree `X`.
template <class X = at::Tensor>
struct IterativeOptions {
  /// Of |b − A x| relative to |b|. Empty: 1e-10, in single precision 1e-5.
  std::optional<double> tolerance = std::nullopt;
  /// The residual may be as large as this, whatever |b| is.
  double absolute_tolerance = 0;
  /// Empty: ten for each unknown, 10,000 at most.
  std::optional<int64_t> max_steps = std::nullopt;
  /// A linear function near the inverse of A; for cg self-adjoint and positive definite.
  std::function<X(const X&)> preconditioner = {};
  /// Where the iteration starts; zero if empty. It has no derivative.
  std::optional<X> start = std::nullopt;
  /// Of gmres: the number of steps after which it starts anew, and of vectors that it keeps.
  int64_t restart = 30;
  /// What becomes of an example that does not converge.
  NoConvergence on_no_convergence = NoConvergence::error;
};

/// What an iterative solver found. Under vmap each example has its own.
template <class X = at::Tensor>
struct IterativeSolution {
  X x;                   ///< like b
  at::Tensor converged;  ///< bool: the tolerance was met
  at::Tensor steps;      ///< int64: how many there were
  at::Tensor residual;   ///< |b − A x|, computed from x; a report, without a derivative
};
/// A solution is a tree.
template <class X>
constexpr auto tower_fields(const IterativeSolution<X>&) {
  using S = IterativeSolution<X>;
  return std::tuple(&S::x, &S::converged, &S::steps, &S::residual);
}

/// How `linear_solve` solves.
enum class LinearMethod {
  automatic,  ///< dense up to `dense_up_to` unknowns, else gmres
  dense,      ///< the matrix, from the function of the unit vectors, and its LU factors
  cg,         ///< as tower::cg
  bicgstab,   ///< as tower::bicgstab
  gmres,      ///< as tower::gmres
};

/// How linear systems are solved whose unknowns are a tree `X`.
template <class X = at::Tensor>
struct LinearSolveOptions {
  /// The method, unless there is `solve`.
  LinearMethod method = LinearMethod::automatic;
  /// The most unknowns, all tensors' elements of one example together, for which `automatic` is dense.
  int64_t dense_up_to = 256;
  /// A is its own adjoint: transposed systems are solved as the others are.
  bool symmetric = false;
  // Not {}, of which GCC 12 warns, wrongly, that it may be used uninitialized.
  /// Of the iterative methods. The transposed preconditioner is had from this one; derivatives start at zero, and that
  /// they do not converge is always an error.
  IterativeOptions<X> iteration = IterativeOptions<X>();
  /// Solves A x = b instead: a library, plain C++, item(). It is called with values that no derivative follows; under
  /// vmap with batches, unless `per_example`.
  std::function<X(const std::function<X(const X&)>& apply, const X& b)> solve = {};
  /// The same for the transposed system (the adjoint, for complex numbers), whose function it is given. Without it
  /// `method` is used, or `solve` where A is symmetric: that a `solve` heeds the function that it is given is not
  /// known.
  std::function<X(const std::function<X(const X&)>& apply, const X& b)> solve_transposed = {};
  /// Under vmap each example is solved by itself, one after the other.
  bool per_example = false;
};

namespace dynamic {

/// The solution x of apply(x) = b.
///
/// `apply` is linear, for complex numbers over these, and gives tensors of the shapes and dtypes of `b`, all of one
/// floating point dtype. Tensors that it captures are as good as operands. Throws ArgumentError where a dense solution
/// shows that it is not linear.
Tensors linear_solve(Function apply, const Tensors& b, LinearSolveOptions<Tensors> options = {});

/// Conjugate gradients for apply(x) = b (Hestenes and Stiefel): `apply` is linear, self-adjoint and positive definite.
/// Where it shows not to be, it does not converge: NoConvergenceError, unless `options` say otherwise. ArgumentError
/// where the tensors of `b` are not of one floating point dtype.
IterativeSolution<Tensors> cg(Function apply, const Tensors& b, IterativeOptions<Tensors> options = {});
/// Stabilized biconjugate gradients (van der Vorst) for apply(x) = b: any regular `apply`; a step takes two products
/// with it, and eight vectors. Throws what cg does.
IterativeSolution<Tensors> bicgstab(Function apply, const Tensors& b, IterativeOptions<Tensors> options = {});
/// Generalized minimal residuals with restarts (Saad and Schultz) for apply(x) = b: any regular `apply`; a step takes
/// one product with it, and `restart` vectors are kept. Throws what cg does.
IterativeSolution<Tensors> gmres(Function apply, const Tensors& b, IterativeOptions<Tensors> options = {});

}  // namespace dynamic

namespace detail {

/// A function of trees like `like` as one of lists.
template <class X, class F>
auto on_leaves(F f, const X& like) {
  return [f = std::move(f), like](const dynamic::Tensors& leaves) mutable {
    X result = f(with_leaves(like, leaves));
    if (!same_static_parts(result, like))
      throw ArgumentError(
          "linear_solve: a function returned a tree with other numbers, keys or sizes than b has. Linear functions "
          "and solvers return trees like b.");
    return leaves_of(result);
  };
}

template <class X>
IterativeOptions<dynamic::Tensors> on_leaves(const IterativeOptions<X>& options, const X& like) {
  IterativeOptions<dynamic::Tensors> flat{options.tolerance, options.absolute_tolerance, options.max_steps};
  if (options.preconditioner) flat.preconditioner = on_leaves(options.preconditioner, like);
  if (options.start) flat.start = leaves_of(*options.start);
  flat.restart = options.restart;
  flat.on_no_convergence = options.on_no_convergence;
  return flat;
}

template <class X>
LinearSolveOptions<dynamic::Tensors> on_leaves(const LinearSolveOptions<X>& options, const X& like) {
  const auto solver = [&](const auto& solve) -> decltype(LinearSolveOptions<dynamic::Tensors>::solve) {
    if (!solve) return {};
    return [solve, like](const dynamic::Function& apply, const dynamic::Tensors& b) {
      const auto on_trees = [&](const X& v) { return with_leaves(like, apply(leaves_of(v))); };
      return leaves_of(solve(on_trees, with_leaves(like, b)));
    };
  };
  return {options.method,        options.dense_up_to,
          options.symmetric,     on_leaves(options.iteration, like),
          solver(options.solve), solver(options.solve_transposed),
          options.per_example};
}

template <class Apply, class X>
constexpr void check_linear_function() {
  static_assert(TensorTree<X>, "tower: the right-hand side of a linear system is a tree that holds tensors.");
  static_assert(std::is_invocable_r_v<X, Apply&, X>,
                "tower: the function of a linear system takes a tree like the right-hand side and returns one.");
}

template <class X, class Solve>
IterativeSolution<X> solve_iteratively(Solve solve, dynamic::Function apply, const X& b,
                                       const IterativeOptions<X>& options) {
  auto flat = solve(std::move(apply), leaves_of(b), on_leaves(options, static_parts(b)));
  return {with_leaves(b, flat.x), std::move(flat.converged), std::move(flat.steps), std::move(flat.residual)};
}

}  // namespace detail

/// dynamic::linear_solve for a `b` that is a tree, and an `apply` that takes and gives trees like it.
template <class Apply, class X>
X linear_solve(Apply apply, const X& b, const std::type_identity_t<LinearSolveOptions<X>>& options = {}) {
  detail::check_linear_function<Apply, X>();
  const X like = detail::static_parts(b);
  return with_leaves(b, dynamic::linear_solve(detail::on_leaves(std::move(apply), like), leaves_of(b),
                                              detail::on_leaves(options, like)));
}

/// dynamic::cg for a `b` that is a tree, and an `apply` that takes and gives trees like it.
template <class Apply, class X>
IterativeSolution<X> cg(Apply apply, const X& b, const std::type_identity_t<IterativeOptions<X>>& options = {}) {
  detail::check_linear_function<Apply, X>();
  return detail::solve_iteratively(dynamic::cg, detail::on_leaves(std::move(apply), detail::static_parts(b)), b,
                                   options);
}

/// dynamic::bicgstab for a `b` that is a tree, and an `apply` that takes and gives trees like it.
template <class Apply, class X>
IterativeSolution<X> bicgstab(Apply apply, const X& b, const std::type_identity_t<IterativeOptions<X>>& options = {}) {
  detail::check_linear_function<Apply, X>();
  return detail::solve_iteratively(dynamic::bicgstab, detail::on_leaves(std::move(apply), detail::static_parts(b)), b,
                                   options);
}

/// dynamic::gmres for a `b` that is a tree, and an `apply` that takes and gives trees like it.
template <class Apply, class X>
IterativeSolution<X> gmres(Apply apply, const X& b, const std::type_identity_t<IterativeOptions<X>>& options = {}) {
  detail::check_linear_function<Apply, X>();
  return detail::solve_iteratively(dynamic::gmres, detail::on_leaves(std::move(apply), detail::static_parts(b)), b,
                                   options);
}

}  // namespace tower
