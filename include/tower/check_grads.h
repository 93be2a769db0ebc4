// Whether the derivatives of a function are right: its jvp and vjp against finite differences. For tests of your own
// rules, operators and functions.
//
//   tower::check_grads([](const at::Tensor& a, const at::Tensor& b) { return my_operator(a, b); }, std::tuple(a, b));
//   tower::check_grads(f, x, /*order=*/2, {tower::Mode::reverse});
#pragma once

#include <functional>
#include <tuple>
#include <vector>

#include "tower/detail/flat.h"
#include "tower/dynamic.h"

namespace tower {

/// A direction of differentiation.
enum class Mode {
  forward,  ///< jvp
  reverse,  ///< vjp
};

/// What `check_grads` accepts. Finite differences are central, over steps of `step` in each element.
struct GradTolerance {
  double step = 6e-6;      ///< the cube root of float64's precision balances their two errors
  double relative = 1e-6;  ///< of the largest element of a derivative
  double absolute = 1e-7;  ///< of the largest element of the output, or 1
};

namespace dynamic {

/// Checks the derivatives of `f` at `args` along random directions, argument by argument and output by output: in
/// forward mode jvp against finite differences, in reverse mode that the pullback is the adjoint of the finite
/// differences. For `order` 2 and more, the derivatives are checked in the same ways as functions themselves. `modes`
/// says which of the two, and `tolerance` how near is near enough. Throws DerivativeError that says which derivative is
/// wrong, ArgumentError where an argument or output is not of dtype float64 or complex128, in which alone finite
/// differences are exact enough, where `order` is below 1, and where there are no modes.
void check_grads(Function f, const Tensors& args, int order = 1,
                 const std::vector<Mode>& modes = {Mode::forward, Mode::reverse}, const GradTolerance& tolerance = {});

}  // namespace dynamic

/// dynamic::check_grads of a function `f` of trees. `args` is a tuple with an entry for each argument or, for one
/// argument that is no tuple, the value itself; "argument i" and "output i" in messages count the tensors in their
/// trees.
template <class F, class Args>
void check_grads(F f, const Args& args, int order = 1, const std::vector<Mode>& modes = {Mode::forward, Mode::reverse},
                 const GradTolerance& tolerance = {}) {
  std::apply(
      [&](const auto&... arg) {
        auto flat = detail::flat_call(f, arg...);
        auto run = [&](const dynamic::Tensors& tensors) { return flat(tensors).first; };
        dynamic::check_grads(detail::CallRef::to(run), flat.leaves(), order, modes, tolerance);
      },
      detail::as_arguments(args));
}

}  // namespace tower
