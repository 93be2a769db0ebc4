// Implicit functions: what a solver finds, differentiated by the implicit function theorem. The solver itself is never
// differentiated: it runs on values that no derivative follows, may stop where it likes, and may use item(), libraries
// and plain C++.
//
//   auto solve = tower::implicit_root(residual, newton);  // residual(x, params…) = 0, newton(params…) → x
//   auto dx = tower::jacrev(solve)(params);
//   auto settle = tower::fixed_point(map, solver);        // x = map(x, params…)
//
// Tensors that the residual captures are as good as params; they are captured by value, for it is kept and run again by
// derivatives. docs/solvers.md.
#pragma once

#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tower/detail/kept_call.h"
#include "tower/dynamic.h"
#include "tower/linear_solve.h"
#include "tower/tree.h"

namespace tower {

/// How the derivatives of an implicit function are computed, and its solver called.
struct ImplicitOptions {
  /// How the linear systems of derivatives are solved, in lists of the tensors of x. Complex ones are seen as pairs of
  /// real numbers, view_as_real: no residual need be holomorphic.
  LinearSolveOptions<dynamic::Tensors> linear = LinearSolveOptions<dynamic::Tensors>();
  /// Of the solution: a preconditioner for the iterative methods, near the inverse of the residual's derivative by x.
  std::function<dynamic::Function(const dynamic::Tensors& x, const dynamic::Tensors& params)> preconditioner = {};
  /// Under vmap the solver is called for each example by itself, one after the other: for solvers that are no functions
  /// of batches. The linear systems are batches all the same, unless `linear` says it, too.
  bool per_example = false;
};

namespace dynamic {

/// A function of the unknown x and the parameters.
using Residual = std::function<Tensors(const Tensors& x, const Tensors& params)>;

/// `solver(params)`, an x for which `residual(x, params)` vanishes, with the derivatives of that x.
///
/// The residual gives a tensor for each of x, of its shape and dtype, is a function of its arguments and what it
/// captures, without random numbers, and has a regular derivative by x at the solution.
Tensors implicit_root(const Residual& residual, const Function& solver, const Tensors& params,
                      const ImplicitOptions& options = {});

/// The same for an x that is `map(x, params)`: `solver` finds it.
Tensors fixed_point(const Residual& map, const Function& solver, const Tensors& params,
                    const ImplicitOptions& options = {});

}  // namespace dynamic

namespace detail {

template <class Solve, class F, class Solver, class... Params>
auto implicit_call(const Solve& solve, const F& f, const Solver& solver, const ImplicitOptions& options,
                   const Params&... params) {
  // The solver tells the static parts of x.
  auto kept = std::make_shared<KeptCall<Solver, Params...>>(solver, params...);
  using X = std::decay_t<decltype(kept->value.static_parts())>;
  static_assert(std::is_invocable_v<F&, X, Params...>,
                "tower: the residual (or map) takes what the solver returns, then the solver's arguments.");
  dynamic::Tensors leaves;
  (append_leaves(params, leaves), ...);
  const auto flat = [f = Held<F>{f}, kept, like = static_parts(std::tuple<Params...>(params...))](
                        const dynamic::Tensors& x, const dynamic::Tensors& given) {
    return std::apply([&](const auto&... filled) { return leaves_of(f.function(kept->value.arrive(x), filled...)); },
                      with_leaves(like, given));
  };
  return kept->value.arrive(solve(
      flat, [kept](const dynamic::Tensors& given) { return (*kept)(given); }, leaves, options));
}

}  // namespace detail

/// `solver` with the derivatives of the implicit function, as dynamic::implicit_root says. x and params are trees; the
/// residual's value is any tree of as many tensors as x.
template <class Residual, class Solver>
auto implicit_root(Residual residual, Solver solver, ImplicitOptions options = {}) {
  return [residual = std::move(residual), solver = std::move(solver),
          options = std::move(options)](const auto&... params) {
    return detail::implicit_call<decltype(dynamic::implicit_root), Residual, Solver, std::decay_t<decltype(params)>...>(
        dynamic::implicit_root, residual, solver, options, params...);
  };
}

/// The same for an x that is `map(x, params…)`: `solver` finds it.
template <class Map, class Solver>
auto fixed_point(Map map, Solver solver, ImplicitOptions options = {}) {
  return [map = std::move(map), solver = std::move(solver), options = std::move(options)](const auto&... params) {
    return detail::implicit_call<decltype(dynamic::fixed_point), Map, Solver, std::decay_t<decltype(params)>...>(
        dynamic::fixed_point, map, solver, options, params...);
  };
}

}  // namespace tower
