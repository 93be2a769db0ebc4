// Ordinary differential equations y' = f(t, y): odeint, written for one system. Under vmap each system takes steps of
// its own; every transform of it holds; compiled, an ensemble of small systems is one kernel.
//
//   auto lorenz = [=](const Tensor& t, const Tensor& y) { … };                                 // captures parameters
//   auto [ys, t, status, steps, rejected] = tower::odeint(lorenz, y0, ts, {.rtol = 1e-8, .atol = 1e-8});
//   auto ensemble = tower::compile(tower::vmap(solve_one));                                    // each its own steps
//
// How long the steps are has no derivative: derivatives are those of the solution by the steps that were made, and by
// the times `ts`, of which the last one ends the last step and the others are places in the dense output.
// docs/ensembles.md.
#pragma once

#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tower/dynamic.h"
#include "tower/loops.h"
#include "tower/tree.h"

namespace tower {

/// How `odeint` makes a step.
enum class Ode {
  tsit5,   ///< explicit, order 5(4), dense output of order 4: Tsitouras (2011). The first choice; not for stiff systems
  dopri5,  ///< explicit, order 5(4), dense output of order 4: Dormand and Prince (1980), Shampine (1986)
  rodas5p,  ///< for stiff systems of few hundred numbers, order 5(4), dense output of order 4: Steinebach (2023)
};

/// How an integration ended: the numbers in `OdeSolution::status`.
enum class OdeStatus : int64_t {
  reached = 0,          ///< the last time
  max_steps = 1,        ///< `max_steps` were made before
  step_too_small = 2,   ///< an error within the tolerances would take steps that do not move t
  not_finite = 3,       ///< f or y is nan or infinite, however small the step
  unordered_times = 4,  ///< `ts` goes neither up nor down: no step was made
};

/// How `odeint` goes.
struct OdeOptions {
  /// The method.
  Ode method = Ode::tsit5;
  /// A step is made where √(mean of (error / (atol + rtol · max(|y|, |y of the next step|)))²) is at most 1.
  double rtol = 1e-6;
  /// The other part of the tolerance.
  double atol = 1e-9;
  /// All steps are of this length, positive in both directions, and only the last one is shorter: no tolerances.
  std::optional<double> step = std::nullopt;
  /// The length of the first step to be tried, positive. Empty: as Hairer, Nørsett and Wanner, II.4, choose it.
  std::optional<double> first_step = std::nullopt;
  /// No step is longer than this.
  std::optional<double> longest_step = std::nullopt;
  /// The most steps of a system, those that were rejected among them.
  int64_t max_steps = 10'000;
  /// Of how many steps between two of `ts`, and of how many of `ts`, the state is kept for the backward pass.
  Checkpoints checkpoints = Checkpoints::all();
  /// As WhileOptions::compact.
  double compact = 0;
};

/// What `odeint` found. Under vmap each system has its own. All but `ys` and `t` have no derivatives.
template <class Y = at::Tensor>
struct OdeSolution {
  Y ys;                 ///< y at each of `ts`, along a new first dimension; nan at times that were not reached
  at::Tensor t;         ///< the time that was reached: the last of `ts`, or where it ended before
  at::Tensor status;    ///< int64: an OdeStatus
  at::Tensor steps;     ///< int64: how many steps were tried
  at::Tensor rejected;  ///< int64: how many of these were not made, because their error was too large
};
/// A solution is a tree.
template <class Y>
constexpr auto tower_fields(const OdeSolution<Y>&) {
  using S = OdeSolution<Y>;
  return std::tuple(&S::ys, &S::t, &S::status, &S::steps, &S::rejected);
}

namespace dynamic {

/// The derivative of each of y by the time t, a tensor without dimensions.
using OdeFunction = std::function<Tensors(const at::Tensor& t, const Tensors& y)>;

/// The solution of y' = f(t, y) from `y0` at ts[0] to the last of `ts`, by steps that `options` choose, and its values
/// at all of `ts`.
///
/// `f` gives tensors of the shapes and the dtype of `y0`, which are of one real floating point dtype. What it captures
/// is captured by value, and is as good as an argument. `ts` is of one dimension, goes up or down, and is rounded to
/// that dtype. That a system did not reach its last time is no exception: its status says it, and what is missing is
/// nan. Throws ArgumentError where sizes, dtypes or options are wrong.
OdeSolution<Tensors> odeint(const OdeFunction& f, const Tensors& y0, const at::Tensor& ts,
                            const OdeOptions& options = {});

}  // namespace dynamic

namespace detail {

[[noreturn]] void refuse_other_slope();

}  // namespace detail

/// dynamic::odeint for a `y0` that is a tree: `f(t, y)` takes and gives trees like it. `ts` and `options` as there.
template <class F, class Y>
OdeSolution<Y> odeint(F f, const Y& y0, const at::Tensor& ts, const OdeOptions& options = {}) {
  static_assert(TensorTree<Y>, "tower: the state of odeint is a tree that holds tensors (tower/tree.h).");
  static_assert(std::is_invocable_r_v<Y, F&, at::Tensor, Y>,
                "tower: the function of odeint takes a time and a state and returns a tree like the state.");
  auto flat = [f = std::move(f), like = detail::static_parts(y0)](const at::Tensor& t,
                                                                  const dynamic::Tensors& y) mutable {
    const Y slope = f(t, with_leaves(like, y));
    if (!detail::same_static_parts(slope, like)) detail::refuse_other_slope();
    return leaves_of(slope);
  };
  auto found = dynamic::odeint(std::move(flat), leaves_of(y0), ts, options);
  return {with_leaves(y0, found.ys), std::move(found.t), std::move(found.status), std::move(found.steps),
          std::move(found.rejected)};
}

}  // namespace tower
