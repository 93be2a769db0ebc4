// A function's value together with its Jacobian, by the evaluation that the Jacobian takes anyway: to the Jacobian what
// value_and_grad is to the gradient.
//
//   auto [r, jacobian] = tower::value_and_jacobian(residual, tower::Mode::forward)(x);
//   x = x - at::linalg_solve(jacobian, r);
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "tower/check_grads.h"
#include "tower/transforms.h"

namespace tower {

namespace dynamic {

/// All outputs of `f` and, as the second of the pair, the Jacobians by `argnums` that `jacrev` gives or, where `mode`
/// is forward, `jacfwd`. Throws what these do.
FunctionWithAux value_and_jacobian(Function f, std::vector<int64_t> argnums, Mode mode = Mode::reverse,
                                   JacobianOptions options = {});
/// The same of an `f` with auxiliary tensors, which follow its outputs.
FunctionWithAux value_and_jacobian(FunctionWithAux f, std::vector<int64_t> argnums, Mode mode = Mode::reverse,
                                   JacobianOptions options = {});

}  // namespace dynamic

namespace detail {

/// {what `handed_out` makes of the result, Jacobian}, where `handed_out` makes {output, what is handed out} of it.
template <std::size_t... I, class F, class HandedOut, class... D>
auto value_and_jacobian_call(F& f, HandedOut handed_out, Mode mode, const JacobianOptions& options, const D&... args) {
  const auto run = [&](const auto&... each) { return handed_out(f(each...)); };
  auto [jacobian, value] = mode == Mode::forward ? jacfwd<I...>(run, has_aux, options)(args...)
                                                 : jacrev<I...>(run, has_aux, options)(args...);
  return std::pair(std::move(value), std::move(jacobian));
}

}  // namespace detail

/// {value, Jacobian} of `f`: the Jacobian with respect to the arguments `I` that `jacrev` gives or, where `mode` is
/// forward, `jacfwd`.
template <std::size_t... I, class F>
auto value_and_jacobian(F f, Mode mode = Mode::reverse, JacobianOptions options = {}) {
  return [f = detail::Held<F>{std::move(f)}, mode, options](const auto&... args) {
    return detail::value_and_jacobian_call<I...>(
        f.function, [](auto value) { return std::pair(value, value); }, mode, options, detail::decayed(args)...);
  };
}

/// The same of an `f` that returns {output, aux}: {{output, aux}, Jacobian}.
template <std::size_t... I, class F>
auto value_and_jacobian(F f, HasAux, Mode mode = Mode::reverse, JacobianOptions options = {}) {
  return [f = detail::Held<F>{std::move(f)}, mode, options](const auto&... args) {
    return detail::value_and_jacobian_call<I...>(
        f.function, [](auto result) { return std::pair(result.first, result); }, mode, options,
        detail::decayed(args)...);
  };
}

}  // namespace tower
