// Nonlinear least squares: least_squares, written for one fit. Under vmap each fit has its own damping and its own end;
// the derivative of a fit by its data is that of the implicit function, and no step is differentiated.
//
//   auto decay = [=](const Tensor& x) { return x[0] * (-x[1] * t).exp() - seen; };             // captures its data
//   auto [x, cost, status, steps, covariance] = tower::least_squares(decay, x0, {.loss = tower::Loss::huber(0.1)});
//   auto fits = tower::vmap(fit_one)(data);
//   auto by_data = tower::jacrev(fit_one)(seen);
//
// docs/ensembles.md.
#pragma once

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tower/dynamic.h"
#include "tower/tree.h"

namespace tower {

/// What a residual r contributes to the cost: c²/2 ρ((r/c)²) for a scale c.
class Loss {
 public:
  /// The functions ρ(z).
  enum class Kind {
    squares,  ///< z
    huber,    ///< z up to 1, then 2√z − 1
    soft_l1,  ///< 2 (√(1 + z) − 1)
    cauchy,   ///< log(1 + z)
  };

  /// Half of r².
  static constexpr Loss squares() { return {Kind::squares, 1}; }
  /// Of residuals beyond `scale` the magnitude.
  static constexpr Loss huber(double scale) { return {Kind::huber, scale}; }
  /// The same, smoothly: far beyond `scale` the magnitude.
  static constexpr Loss soft_l1(double scale) { return {Kind::soft_l1, scale}; }
  /// Far beyond `scale` the logarithm.
  static constexpr Loss cauchy(double scale) { return {Kind::cauchy, scale}; }

  /// Which function it is.
  constexpr Kind kind() const { return kind_; }
  /// The scale.
  constexpr double scale() const { return scale_; }

 private:
  constexpr Loss(Kind kind, double scale) : kind_(kind), scale_(scale) {}

  Kind kind_;
  double scale_;
};

/// How a fit ended: the numbers in `LeastSquaresFit::status`. Those up to `small_step` are what was looked for.
enum class FitStatus : int64_t {
  small_gradient = 0,  ///< the residuals are at right angles to all columns of the Jacobian that no bound holds, within
                       ///< `gtol`
  small_change = 1,    ///< a step changed the cost, and would have by its linear model, by less than `ftol` of it
  small_step = 2,      ///< a step was shorter than `xtol` of x, both scaled by the columns of the Jacobian
  max_steps = 3,       ///< `max_steps` were made before
  stuck = 4,           ///< no damping, however large, leads to a smaller cost
  not_finite = 5,      ///< residuals or derivatives are nan or infinite at the start, or wherever a step goes
};

/// How `least_squares` goes.
struct LeastSquaresOptions {
  /// What residuals contribute.
  Loss loss = Loss::squares();
  /// The change of the cost, relative to it, at which a fit ends.
  double ftol = 1e-8;
  /// The length of a step, relative to x, at which a fit ends.
  double xtol = 1e-8;
  /// The cosine between residuals and a column of the Jacobian at which a fit ends.
  double gtol = 1e-8;
  /// The most steps, those that were not made because they led to a larger cost among them.
  int64_t max_steps = 200;
  /// The first damping, relative to the squared norms of the Jacobian's columns.
  double first_damping = 1e-3;
  /// The least that x may be: of all its numbers, one tensor after the other, or one number for all; −∞ where there is
  /// no bound. Undefined: there are none. What x is at a bound has the bound's derivative.
  at::Tensor lower = {};
  /// The most that x may be, given as `lower` is.
  at::Tensor upper = {};
};

/// What `least_squares` found. Under vmap each fit has its own. `x` has derivatives; the others are reports.
template <class X = at::Tensor>
struct LeastSquaresFit {
  X x;                ///< like x0
  at::Tensor cost;    ///< half of the sum of squares, or what the loss makes of it
  at::Tensor status;  ///< int64: a FitStatus
  at::Tensor steps;   ///< int64: how many steps were tried
  at::Tensor covariance;  ///< of all numbers of x: 2 cost / (m − n) (JᵀJ)⁻¹ of n numbers and m residuals; nan for m ≤
                          ///< n, or where JᵀJ is singular; zero for those that are held at a bound
};
/// A fit is a tree.
template <class X>
constexpr auto tower_fields(const LeastSquaresFit<X>&) {
  using S = LeastSquaresFit<X>;
  return std::tuple(&S::x, &S::cost, &S::status, &S::steps, &S::covariance);
}

namespace dynamic {

/// The x near `x0` for which the cost of `residuals(x)` is least, by the method of Levenberg and Marquardt with dense
/// normal equations, as `options` say. Between bounds, steps are projected: those numbers that are at one, and that the
/// gradient keeps there, are held (D. P. Bertsekas, Projected Newton methods for optimization problems with simple
/// constraints, 1982), and so they are in derivatives of x. An `x0` beyond a bound begins at it.
///
/// The tensors of `x0` and of the residuals are of one real floating point dtype; there is any number of residuals. The
/// function draws no random numbers; what it captures is captured by value, and x has derivatives by it: those of the
/// stationary point of the cost, in both modes and to any order. They are nan where the fit did not find one. `x0` has
/// none. x is nan, with the status not_finite, where a lower bound is above the upper one. Throws ArgumentError where
/// dtypes, the bounds' sizes or other options are wrong.
LeastSquaresFit<Tensors> least_squares(const Function& residuals, const Tensors& x0,
                                       const LeastSquaresOptions& options = {});

}  // namespace dynamic

/// dynamic::least_squares for an `x0` that is a tree: `residuals(x)` is another one, and `options` are as there.
template <class Residuals, class X>
LeastSquaresFit<X> least_squares(Residuals residuals, const X& x0, const LeastSquaresOptions& options = {}) {
  static_assert(TensorTree<X>, "tower: what least_squares fits is a tree that holds tensors (tower/tree.h).");
  static_assert(std::is_invocable_v<Residuals&, X>,
                "tower: the residuals of least_squares are a function of a tree like x0.");
  auto flat = [residuals = std::move(residuals), like = detail::static_parts(x0)](const dynamic::Tensors& x) mutable {
    return leaves_of(residuals(with_leaves(like, x)));
  };
  auto found = dynamic::least_squares(std::move(flat), leaves_of(x0), options);
  return {with_leaves(x0, found.x), std::move(found.cost), std::move(found.status), std::move(found.steps),
          std::move(found.covariance)};
}

}  // namespace tower
