// Large sparse nonlinear least squares: the residuals of one block, written once and mapped over many, each of which
// takes a few of many unknowns. Bundle adjustment, calibration, graphs of poses.
//
//   auto error = [](const Tensor& camera, const Tensor& point, const Tensor& seen) {
//     return project(camera, point) - seen;
//   };
//   const tower::BlockLeastSquares solve({{.x0 = cameras}, {.x0 = points}},  // rows are unknowns
//                                        {tower::fit_term(error, {{0, camera_of}, {1, point_of}}, seen)},
//                                        {.eliminate = 1});  // points first
//   auto [x, cost, status, steps, covariance] = solve();
//
// Jacobians of blocks are compiled, the pattern of the normal equations is found once, and one kind of unknowns may be
// eliminated first (the Schur complement). What is left is factored densely by LibTorch or sparsely by Eigen. For one
// small dense fit, and many of them under vmap: tower/least_squares.h. docs/ensembles.md.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tower/least_squares.h"

namespace tower {

/// One kind of unknowns: the rows of a tensor.
struct FitUnknowns {
  /// Where they start: {count, …}, of a real floating point dtype, on the CPU.
  at::Tensor x0;
  /// Of one of them, x, and numbers d, what lies in the direction d from x, with retract(x, 0) = x: a rotation times a
  /// small one. Empty: x + d.
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& d)> retract = {};
  /// How many numbers d has, where there is `retract`.
  int64_t freedom = 0;
  /// Bool {count}: which of them stay as they are. Undefined: none.
  at::Tensor held = {};
  /// The least that their numbers may be: of the sizes of x0, or what expands to them; infinite where there is no
  /// bound. Undefined: there are none. Not for unknowns with `retract`.
  at::Tensor lower = {};
  at::Tensor upper = {};  ///< the most
};

/// That the blocks of a term take one of some unknowns.
struct FitUse {
  /// Which kind: its place in the list of unknowns.
  std::size_t unknowns;
  /// Of each block which one: int64 {blocks}.
  at::Tensor rows;
};

/// Residuals of one form: many blocks, each of a few unknowns and data of its own.
struct FitTerm {
  /// Of one block: takes an unknown for each of `uses`, then its part of each of `data`; gives its residuals.
  dynamic::Function residual;
  /// Which unknowns the blocks take.
  std::vector<FitUse> uses;
  /// {blocks, …} each; what all blocks share is expanded.
  dynamic::Tensors data = {};
  /// What a block contributes, as a function of the sum of its squared residuals: c²/2 ρ(|r|²/c²).
  Loss loss = Loss::squares();
};

/// How a fit of blocks finds its steps.
enum class FitMethod {
  levenberg_marquardt,  ///< normal equations that are damped
  dogleg,               ///< Powell's: between the gradient and the step of Gauss and Newton, within a radius
};

/// How a fit of blocks solves the linear system of a step.
enum class FitSolver {
  cholesky,             ///< factors of the normal equations
  qr,                   ///< of the Jacobian itself, with what damps it: where the normal equations lose too many digits
  conjugate_gradients,  ///< products with the normal equations, and factors of each unknown's own block of them alone
};

/// How `BlockLeastSquares` goes.
struct BlockFitOptions {
  /// How steps are found.
  FitMethod method = FitMethod::levenberg_marquardt;
  /// Which kind of unknowns is eliminated first, by its place: no block takes two of it, and each of them is a small
  /// system by itself. Empty: none.
  std::optional<std::size_t> eliminate = std::nullopt;
  /// How the linear system of a step is solved, or what elimination leaves of it.
  FitSolver solver = FitSolver::cholesky;
  /// Conjugate gradients end at an iteration that takes less than this part of what iterations take off the quadratic
  /// model of the cost on average (S. G. Nash and A. Sofer, Assessing a search direction within a truncated-Newton
  /// method, 1990).
  double cg_tolerance = 0.1;
  /// The change of the cost, relative to it, at which a fit ends.
  double ftol = 1e-8;
  /// The length of a step, relative to x, at which a fit ends.
  double xtol = 1e-8;
  /// The cosine between residuals and a column of the Jacobian at which a fit ends.
  double gtol = 1e-8;
  /// The most steps, those that were not made because they led to a larger cost among them.
  int64_t max_steps = 200;
  /// The first damping, relative to the squared norms of the Jacobian's columns. Of dogleg its inverse's square root is
  /// the first radius, relative to the length of x, scaled by these norms, or of the residuals, whatever is longer.
  double first_damping = 1e-4;
  /// Whether to compute the covariance.
  bool covariance = false;
  /// Is told the cost at the start, of step 0, and then after each step that was tried, in the thread of the call.
  std::function<void(int64_t step, double cost)> progress = {};
};

/// What a fit of blocks found. `x` has derivatives by the data; the others are reports.
struct BlockFit {
  std::vector<at::Tensor> x;  ///< of each kind of unknowns, like its x0
  at::Tensor cost;            ///< half of the sum of squares, or what losses make of it
  at::Tensor status;          ///< int64: a FitStatus
  at::Tensor steps;           ///< int64: how many steps were tried
  /// If it was asked for: of each kind {count, s, s}, the covariance of the s numbers of each unknown (of d, where it
  /// is retracted), 2 cost / (m − n) times their block of (JᵀJ)⁻¹; zero for those that are held, by a bound, too; nan
  /// where m ≤ n or where JᵀJ is singular.
  std::vector<at::Tensor> covariance;
};
/// A fit is a tree.
constexpr auto tower_fields(const BlockFit&) {
  return std::tuple(&BlockFit::x, &BlockFit::cost, &BlockFit::status, &BlockFit::steps, &BlockFit::covariance);
}

/// Nonlinear least squares of blocks: the pattern, and the compiled residuals and Jacobians, which are made once, for
/// any number of fits to other data.
///
/// Steps are those of Levenberg and Marquardt, or of Powell's dogleg; the normal equations are made of the blocks'
/// Jacobians, by forward or reverse mode, whatever takes fewer directions. Where unknowns are eliminated first, these
/// are solved for in the others' equations (the Schur complement: B. Triggs and others, Bundle adjustment, a modern
/// synthesis, 2000, section 6.1). The rest is factored densely where it is small or full, else by Eigen's sparse
/// Cholesky factors, which Tower has where it was built with Eigen. `FitSolver::qr` has Eigen's rank-revealing QR of
/// the whole Jacobian instead, and eliminates nothing; `FitSolver::conjugate_gradients` never makes the Schur
/// complement, but for its diagonal blocks, which precondition it (S. Agarwal and others, Bundle adjustment in the
/// large, 2010), and is for what is too large to factor: without dogleg and covariances.
///
/// Between bounds steps are projected, and those numbers that are at one and that the gradient keeps there are held,
/// also in derivatives of x, which are zero there. An `x0` beyond a bound begins at it.
///
/// x has derivatives by the data, of any order and in both modes: those of the implicit function, whose linear systems
/// are solved by conjugate gradients with the whole Hessian, preconditioned by the normal equations. Under vmap the
/// fits are made one after the other; in a compiled function a fit is one call, of an object that was made outside.
/// Where the fit found no minimum derivatives are nan; NoConvergenceError where the Hessian is singular, as that of a
/// bundle adjustment is in which no camera is held.
class BlockLeastSquares {
 public:
  /// For these `unknowns`, `terms` and `options`. Throws ArgumentError where sizes, dtypes, rows or options do not fit.
  BlockLeastSquares(std::vector<FitUnknowns> unknowns, std::vector<FitTerm> terms, BlockFitOptions options = {});

  /// The fit to the terms' own data.
  BlockFit operator()() const;
  /// The fit to other `data`: those of all terms, one term's after the other, of the sizes and dtypes of their own.
  /// Throws UnsupportedError where residuals captured a tensor of a transform, or one that requires grad: that is data.
  BlockFit operator()(const dynamic::Tensors& data) const;

  /// How many numbers are sought, those that are held among them.
  int64_t num_unknowns() const;
  /// The size of the system that is left to factor, and the entries of its blocks on and above the diagonal; of
  /// conjugate gradients, those of blocks that no elimination brings.
  std::pair<int64_t, int64_t> factored() const;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

/// A term of blocks whose residuals are `f(unknowns…, data…)`: of one block, a tensor for each of `uses`, and its part
/// of each tree of `data`, whose tensors have the blocks as their first dimension; its value is a tree. `loss` may be
/// set in what is returned.
template <class F, std::size_t n, class... Data>
FitTerm fit_term(F f, const FitUse (&uses)[n], const Data&... data) {
  dynamic::Tensors leaves;
  (append_leaves(data, leaves), ...);
  auto flat = [f = std::move(f),
               like = detail::static_parts(std::tuple<Data...>(data...))](const dynamic::Tensors& all) mutable {
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(n);
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return std::apply([&](const auto&... given) { return leaves_of(f(all[i]..., given...)); },
                        with_leaves(like, dynamic::Tensors(middle, all.end())));
    }
    (std::make_index_sequence<n>());
  };
  return {std::move(flat), std::vector<FitUse>(uses, uses + n), std::move(leaves)};
}

}  // namespace tower
