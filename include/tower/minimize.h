// Minimization of what is no sum of squares (those: tower/least_squares.h): minimize, written for one problem. Under
// vmap each problem has its own steps and its own end; the derivative of a minimum by what the function captures is
// that of the implicit function, and no step is differentiated.
//
//   auto energy = [=](const Tensor& x) { return (x * at::mv(a, x)).sum() / 2 + (x.exp() * weights).sum(); };
//   auto [x, value, gradient, status, steps, products] = tower::minimize(energy, x0);
//   auto by_newton = tower::minimize(energy, x0, {.method = tower::Minimizer::newton});
//   auto many = tower::vmap(minimize_one)(data);
//
// docs/minimize.md.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "tower/dynamic.h"
#include "tower/tree.h"

namespace tower {

/// How `minimize` finds its steps.
enum class Minimizer {
  lbfgs,   ///< quasi-Newton steps from the last `memory` changes of the gradient, along each a search
  newton,  ///< Newton steps within a trust region, by conjugate gradients on products with the Hessian
};

/// How a minimization ended: the numbers in `Minimum::status`, which are those of FitStatus where both have them. Those
/// up to `small_change` are what was looked for.
enum class MinimumStatus : int64_t {
  small_gradient = 0,  ///< the gradient is zero within `gtol`
  small_change = 1,    ///< a step changed the value by less than `ftol` of it, or than rounding can tell
  max_steps = 3,       ///< `max_steps` were made before
  stuck = 4,           ///< no step, however short, leads to a smaller value
  not_finite = 5,      ///< value or derivatives are nan or infinite at the start, or wherever a step goes
};

/// How `minimize` goes.
struct MinimizeOptions {
  /// How steps are found.
  Minimizer method = Minimizer::lbfgs;
  /// The gradient at which a minimization ends: relative to the value and x, max |gᵢ| max(|xᵢ|, 1) / max(|f|, 1).
  double gtol = 1e-6;
  /// The change of the value, relative to it, below which a minimization ends.
  double ftol = 1e-12;
  /// The most steps, those that were not made because they led to a larger value among them.
  int64_t max_steps = 1000;
  /// Of lbfgs: how many changes of the gradient are remembered.
  int64_t memory = 8;
  /// Of newton: the first trust region's radius.
  double first_radius = 1;
};

/// What `minimize` found. Under vmap each problem has its own. `x` has derivatives; the others are reports.
template <class X = at::Tensor>
struct Minimum {
  X x;                  ///< like x0
  at::Tensor value;     ///< of the function there
  at::Tensor gradient;  ///< the largest magnitude in the gradient there
  at::Tensor status;    ///< int64: a MinimumStatus
  at::Tensor steps;     ///< int64: how many steps were tried: each evaluates the function and its gradient
  at::Tensor products;  ///< int64: how many products with the Hessian were made; none by lbfgs
};
/// A minimum is a tree.
template <class X>
constexpr auto tower_fields(const Minimum<X>&) {
  using M = Minimum<X>;
  return std::tuple(&M::x, &M::value, &M::gradient, &M::status, &M::steps, &M::products);
}

namespace dynamic {

/// A local minimum of `f(x)` that is reached from `x0` downhill, as `options` say.
///
/// The tensors of `x0` are of one real floating point dtype, and `f` gives one number of it, without dimensions. It
/// draws no random numbers; what it captures is captured by value, and x has derivatives by it: those of the point
/// where the gradient is zero, in both modes and to any order, by linear systems with the Hessian there. They are nan
/// where none was found. `x0` has none. Where `f` is nan or infinite, steps are made shorter. Throws ArgumentError
/// where dtypes, the value's shape or options are wrong, or `f` speaks of x to other examples.
Minimum<Tensors> minimize(const Function& f, const Tensors& x0, const MinimizeOptions& options = {});

}  // namespace dynamic

/// dynamic::minimize for an `x0` that is a tree: `f(x)` is a tensor, and `options` are as there.
template <class F, class X>
Minimum<X> minimize(F f, const X& x0, const MinimizeOptions& options = {}) {
  static_assert(TensorTree<X>, "tower: what minimize varies is a tree that holds tensors (tower/tree.h).");
  static_assert(std::is_invocable_r_v<at::Tensor, F&, X>,
                "tower: what minimize minimizes takes a tree like x0 and returns a tensor, one number.");
  auto flat = [f = std::move(f), like = detail::static_parts(x0)](const dynamic::Tensors& x) mutable {
    return dynamic::Tensors{f(with_leaves(like, x))};
  };
  auto found = dynamic::minimize(std::move(flat), leaves_of(x0), options);
  return {with_leaves(x0, found.x), std::move(found.value), std::move(found.gradient),
          std::move(found.status),  std::move(found.steps), std::move(found.products)};
}

}  // namespace tower
