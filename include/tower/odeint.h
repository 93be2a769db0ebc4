// Ordinary differential equations y' = f(t, y): odeint, written for one system. Under vmap each system takes steps of
// its own; every transform of it holds; compiled, an ensemble of small systems is one kernel.
//
//   auto lorenz = [=](const Tensor& t, const Tensor& y) { … };                                 // captures parameters
//   auto [ys, t, status, steps, rejected] = tower::odeint(lorenz, y0, ts, {.rtol = 1e-8, .atol = 1e-8});
//   auto ensemble = tower::compile(tower::vmap(solve_one));                                    // each its own steps
//
// How long the steps are has no derivative: derivatives are those of the solution by the steps that were made, and by
// the times `ts`, of which the last one ends the last step and the others are places in the dense output.
// `odeint_until` ends where an event is: a function of time and state that goes through zero. docs/ensembles.md.
#pragma once

#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tower/dynamic.h"
#include "tower/linear_solve.h"
#include "tower/loops.h"
#include "tower/tree.h"

namespace tower {

/// How `odeint` makes a step.
enum class Ode {
  tsit5,   ///< explicit, order 5(4), dense output of order 4: Tsitouras (2011). The first choice; not for stiff systems
  dopri5,  ///< explicit, order 5(4), dense output of order 4: Dormand and Prince (1980), Shampine (1986)
  dop853,  ///< explicit, order 8, dense output of order 7: Dormand and Prince, Hairer's DOP853 (1993). For tolerances
           ///< from about 1e-9 down
  rodas5p,  ///< for stiff systems, order 5(4), dense output of order 4: Steinebach (2023). Large ones by `linear`
};

/// How an integration ended: the numbers in `OdeSolution::status`.
enum class OdeStatus : int64_t {
  reached = 0,          ///< the last time
  max_steps = 1,        ///< `max_steps` were made before
  step_too_small = 2,   ///< an error within the tolerances would take steps that do not move t
  not_finite = 3,       ///< f or y is nan or infinite, however small the step
  unordered_times = 4,  ///< `ts` goes neither up nor down: no step was made
  event = 5,            ///< the event of `odeint_until`, before the last time
};

/// Which signs of an event's value count, in the order of the steps: from the first of `ts` to the last, also where
/// time goes backwards.
enum class OdeCrossing {
  any,      ///< both
  rising,   ///< from below zero
  falling,  ///< from above zero
};

/// How reverse mode of `odeint` goes.
enum class OdeAdjoint {
  steps,       ///< the derivative of the steps that were made, to rounding: their states are kept
  continuous,  ///< the adjoint equation is solved from the last time to the first, by the same method and tolerances:
               ///< states are kept at `ts` alone, and gradients are right to the tolerances
};

/// A tolerance of `odeint`: one number for all of the state, or a number for each of the state's.
class Tolerance {
 public:
  /// The same for all of the state.
  Tolerance(double number) : number_(number) {}  // NOLINT(google-explicit-constructor): options are written as numbers
  /// `each` is a tree like the state, of tensors that expand to the sizes of the state's; or one tensor without
  /// dimensions for all of it. What they hold has no derivatives, and may differ between the systems of a vmap. A
  /// number of the state whose tolerance is infinite is left out of the mean: its error does not count.
  template <TensorTree T>
  Tolerance(const T& each) : each_(leaves_of(each)) {}  // NOLINT(google-explicit-constructor)

  /// Whether it is one number for all.
  bool is_number() const { return each_.empty(); }
  /// That number.
  double number() const { return number_; }
  /// The tensors that were given.
  const dynamic::Tensors& each() const { return each_; }

 private:
  double number_ = 0;
  dynamic::Tensors each_;
};

/// How `odeint` goes.
struct OdeOptions {
  /// The method.
  Ode method = Ode::tsit5;
  /// A step is made where √(mean of (error / (atol + rtol · max(|y|, |y of the next step|)))²) is at most 1.
  /// The relative tolerance is not negative,
  Tolerance rtol = 1e-6;
  /// and the absolute one positive. A tensor that has others ends its system with OdeStatus::not_finite.
  Tolerance atol = 1e-9;
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
  /// How reverse mode goes. Of `odeint_until` it is OdeAdjoint::steps.
  OdeAdjoint adjoint = OdeAdjoint::steps;
  /// Of `odeint_until`: which way the event's value goes through zero.
  OdeCrossing crossing = OdeCrossing::any;
  /// Of rodas5p: how the eight linear systems of a step are solved, (1 / (γ h) − J) u = b, of one vector that has all
  /// numbers of the state, one tensor after the other. Empty: by LU factors of the matrix. An iterative method (gmres,
  /// where it is automatic) has products with J, and no matrix; its tolerance, where there is none, is a hundredth of
  /// `rtol`, and a step whose systems do not converge is not made. `solve` may be a library's: the systems of a step
  /// have one matrix, with entries that are equal to the last bit. With OdeAdjoint::continuous, whose systems are
  /// others, `solve`, `solve_transposed` and a preconditioner are refused.
  std::optional<LinearSolveOptions<dynamic::Tensors>> linear = std::nullopt;
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

/// What `odeint_until` found. Under vmap each system has its own. Its `status` is OdeStatus::event where the event
/// happened. All but `ys`, `t` and `y` have no derivatives.
template <class Y = at::Tensor>
struct OdeEventSolution {
  Y ys;                 ///< y at each of `ts`, along a new first dimension; nan behind the event and where not reached
  at::Tensor t;         ///< the time of the event; where it did not happen, the time that was reached
  Y y;                  ///< y at that time
  at::Tensor status;    ///< int64: an OdeStatus
  at::Tensor steps;     ///< int64: how many steps were tried
  at::Tensor rejected;  ///< int64: how many of these were not made, because their error was too large
};
/// A solution is a tree.
template <class Y>
constexpr auto tower_fields(const OdeEventSolution<Y>&) {
  using S = OdeEventSolution<Y>;
  return std::tuple(&S::ys, &S::t, &S::y, &S::status, &S::steps, &S::rejected);
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

/// One number, of the state's dtype, that is zero where the event is.
using OdeEvent = std::function<at::Tensor(const at::Tensor& t, const Tensors& y)>;

/// `odeint` that ends where `event` goes through zero, the way that `options.crossing` says: of `f`, `y0`, `ts` and
/// `options` as there.
///
/// The event's value is looked at behind each step, and where its sign has changed, its zero is found on the step's
/// dense output, to the last digit of that; an even number of zeros within one step is not seen (let
/// `options.longest_step` be shorter than what they are apart). Where the value is zero in the beginning, the sign that
/// it has from there on counts. A value that is nan or infinite behind a step ends the system with
/// OdeStatus::not_finite.
///
/// Derivatives of the event's time and state are those of the implicit function t: event(t, y(t)) = 0 on that output,
/// of orders up to seven; they are infinite or nan where the value has no slope along it. What `event` captures is
/// captured by value, and is as good as an argument. Throws ArgumentError as odeint, and where `event` gives something
/// else.
OdeEventSolution<Tensors> odeint_until(const OdeFunction& f, const OdeEvent& event, const Tensors& y0,
                                       const at::Tensor& ts, const OdeOptions& options = {});

}  // namespace dynamic

namespace detail {

[[noreturn]] void refuse_other_slope();

// The right-hand side of a tree as one of its tensors.
template <class F, class Y>
dynamic::OdeFunction flat_slope(F f, const Y& y0) {
  static_assert(TensorTree<Y>, "tower: the state of odeint is a tree that holds tensors (tower/tree.h).");
  static_assert(std::is_invocable_r_v<Y, F&, at::Tensor, Y>,
                "tower: the function of odeint takes a time and a state and returns a tree like the state.");
  return [f = std::move(f), like = static_parts(y0)](const at::Tensor& t, const dynamic::Tensors& y) mutable {
    const Y slope = f(t, with_leaves(like, y));
    if (!same_static_parts(slope, like)) refuse_other_slope();
    return leaves_of(slope);
  };
}

}  // namespace detail

/// dynamic::odeint for a `y0` that is a tree: `f(t, y)` takes and gives trees like it. `ts` and `options` as there.
template <class F, class Y>
OdeSolution<Y> odeint(F f, const Y& y0, const at::Tensor& ts, const OdeOptions& options = {}) {
  auto found = dynamic::odeint(detail::flat_slope<F, Y>(std::move(f), y0), leaves_of(y0), ts, options);
  return {with_leaves(y0, found.ys), std::move(found.t), std::move(found.status), std::move(found.steps),
          std::move(found.rejected)};
}

/// dynamic::odeint_until for a `y0` that is a tree: `f(t, y)` takes and gives trees like it, `event(t, y)` gives a
/// number. `ts` and `options` as there.
template <class F, class G, class Y>
OdeEventSolution<Y> odeint_until(F f, G event, const Y& y0, const at::Tensor& ts, const OdeOptions& options = {}) {
  static_assert(std::is_invocable_r_v<at::Tensor, G&, at::Tensor, Y>,
                "tower: the event of odeint_until takes a time and a state and returns a number, a tensor.");
  auto flat = [event = std::move(event), like = detail::static_parts(y0)](
                  const at::Tensor& t, const dynamic::Tensors& y) mutable -> at::Tensor {
    return event(t, with_leaves(like, y));
  };
  auto found =
      dynamic::odeint_until(detail::flat_slope<F, Y>(std::move(f), y0), std::move(flat), leaves_of(y0), ts, options);
  return {with_leaves(y0, found.ys), std::move(found.t),     with_leaves(y0, found.y),
          std::move(found.status),   std::move(found.steps), std::move(found.rejected)};
}

}  // namespace tower
