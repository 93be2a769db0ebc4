// The transforms over ordinary C++ functions of trees (tower/tree.h). Each takes a function and gives another one, so
// they nest in any order:
//
//   auto loss = [](const at::Tensor& w, const at::Tensor& x) { return at::mv(x, w).square().mean(); };
//   at::Tensor dw = tower::grad(loss)(w, x);
//   at::Tensor per_example = tower::vmap(tower::grad(loss), {.in_dims = {std::nullopt, 0}})(w, xs);
//   auto [y, pullback] = tower::vjp(loss, w, x);
//
// The rules are the same everywhere:
//   - The function is called with trees of the types it was given, and may take them by value or const reference.
//   - Static arguments (numbers, strings, …) are handed on as they are. They have no derivatives, so they have no place
//     among gradients, tangents and cotangents.
//   - Where one argument is differentiated its tree is returned, for several a tuple of trees.
//   - An undefined tensor among tangents or cotangents is a zero.
//
// These are thin templates over tower/dynamic.h, which does the work.
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tower/axes.h"
#include "tower/detail/flat.h"
#include "tower/dynamic.h"
#include "tower/mesh.h"
#include "tower/tree.h"

namespace tower {

/// How `vmap` maps.
struct Mapping {
  /// The mapped dimension of each argument: one for all, or a list with an entry for each, which may itself go into the
  /// argument's tree. std::nullopt: not mapped, the same for every example.
  Axes in_dims = 0;
  /// Where the batch dimension goes in the outputs: one for all, or a list that goes into the output's tree.
  /// std::nullopt promises that an output does not differ between examples.
  Axes out_dims = 0;
  /// What a random operator means: an error, a draw for each example, or one for all.
  Randomness randomness = Randomness::error;
  /// Examples evaluated at once; the whole batch when empty. Bounds peak memory.
  std::optional<int64_t> chunk_size = std::nullopt;
  /// The name by which collectives inside know these examples (tower/collectives.h); empty: none.
  std::string axis = {};
  /// The batch is spread over the processes of this mesh's axis of that name: each passes and gets its part of what is
  /// mapped, and the same of what is not (tower/mesh.h).
  Mesh across = {};
};

/// The function returns a pair of what is to be transformed and an auxiliary tree, which is only handed out.
struct HasAux {
  explicit HasAux() = default;
};
/// Says that: `grad(f, has_aux)`.
inline constexpr HasAux has_aux{};

/// `f` mapped over a dimension of its arguments, as `mapping` says; inside, `f` sees one example, whose tensors lack
/// that dimension. Throws what dynamic::vmap does.
template <class F>
auto vmap(F f, Mapping mapping = {}) {
  return [f = detail::Held<F>{std::move(f)}, mapping = std::move(mapping)](const auto&... args) {
    return detail::vmap_call(detail::called_with(f.function, detail::decayed(args)...), mapping.in_dims,
                             mapping.out_dims, VmapOptions{mapping.randomness, mapping.chunk_size},
                             {mapping.axis, mapping.across}, detail::decayed(args)...);
  };
}

/// The gradient of `f`, whose result is a real scalar tensor, with respect to the arguments `I` (default: the first):
/// trees like these. Throws DerivativeError where the result is no real scalar, or an argument holds integers.
template <std::size_t... I, class F>
auto grad(F f) {
  return [f = detail::Held<F>{std::move(f)}](const auto&... args) {
    return detail::grad_call<false, false>(
        detail::Chosen<I...>{}, detail::called_with(f.function, detail::decayed(args)...), detail::decayed(args)...);
  };
}

/// The same of an `f` that returns {loss, aux}: {gradients, aux}.
template <std::size_t... I, class F>
auto grad(F f, HasAux) {
  return [f = detail::Held<F>{std::move(f)}](const auto&... args) {
    return detail::grad_call<false, true>(
        detail::Chosen<I...>{}, detail::called_with(f.function, detail::decayed(args)...), detail::decayed(args)...);
  };
}

/// {value, gradients} of `f`.
template <std::size_t... I, class F>
auto value_and_grad(F f) {
  return [f = detail::Held<F>{std::move(f)}](const auto&... args) {
    return detail::grad_call<true, false>(
        detail::Chosen<I...>{}, detail::called_with(f.function, detail::decayed(args)...), detail::decayed(args)...);
  };
}

/// The same of an `f` that returns {loss, aux}: {{value, aux}, gradients}.
template <std::size_t... I, class F>
auto value_and_grad(F f, HasAux) {
  return [f = detail::Held<F>{std::move(f)}](const auto&... args) {
    return detail::grad_call<true, true>(
        detail::Chosen<I...>{}, detail::called_with(f.function, detail::decayed(args)...), detail::decayed(args)...);
  };
}

/// {f(args…), pullback}: the pullback takes a cotangent for the output to the cotangents of the arguments that hold
/// tensors. It can be called any number of times, also under other transforms.
template <class F, class... Args>
auto vjp(F f, const Args&... args) {
  return detail::vjp_call<false>(detail::called_with(f, detail::decayed(args)...), detail::decayed(args)...);
}

/// The same of an `f` that returns {output, aux}: {output, pullback, aux}.
template <class F, class... Args>
auto vjp(F f, HasAux, const Args&... args) {
  return detail::vjp_call<true>(detail::called_with(f, detail::decayed(args)...), detail::decayed(args)...);
}

/// {f(primals…), its derivative along the tangents}. Primals and tangents are tuples with an entry for each argument
/// (tangents: for each that holds tensors), or, for one argument that is no tuple, the value itself.
template <class F, class Primals, class Tangents>
auto jvp(F f, const Primals& primals, const Tangents& tangents) {
  return detail::jvp_call<false>(detail::called_at(f, detail::as_arguments(primals)), detail::as_arguments(primals),
                                 tangents);
}

/// The same of an `f` that returns {output, aux}: {output, derivative, aux}.
template <class F, class Primals, class Tangents>
auto jvp(F f, const Primals& primals, const Tangents& tangents, HasAux) {
  return detail::jvp_call<true>(detail::called_at(f, detail::as_arguments(primals)), detail::as_arguments(primals),
                                tangents);
}

/// {f(args…), pushforward}: the pushforward takes a tangent for each argument that holds tensors and gives the
/// output's. It reuses what the one evaluation of `f` recorded.
template <class F, class... Args>
auto linearize(F f, const Args&... args) {
  return detail::linearize_call(detail::called_with(f, detail::decayed(args)...), detail::decayed(args)...);
}

/// The Jacobian of `f` with respect to the arguments `I`, by rows (reverse mode): the output's tree, with each tensor
/// replaced by the tree of the arguments, whose tensors have the output's shape followed by the argument's.
template <std::size_t... I, class F>
auto jacrev(F f, JacobianOptions options = {}) {
  return [f = detail::Held<F>{std::move(f)}, options](const auto&... args) {
    return detail::jacobian_call<1, false>(detail::Chosen<I...>{}, detail::rows, options,
                                           detail::called_with(f.function, detail::decayed(args)...),
                                           detail::decayed(args)...);
  };
}

/// The same of an `f` that returns {output, aux}: {Jacobian, aux}.
template <std::size_t... I, class F>
auto jacrev(F f, HasAux, JacobianOptions options = {}) {
  return [f = detail::Held<F>{std::move(f)}, options](const auto&... args) {
    return detail::jacobian_call<1, true>(detail::Chosen<I...>{}, detail::rows, options,
                                          detail::called_with(f.function, detail::decayed(args)...),
                                          detail::decayed(args)...);
  };
}

/// The Jacobian by columns (forward mode); the same layout as that of `jacrev`. Complex arguments have LibTorch's
/// conventions in both modes, so of a holomorphic function `jacrev` gives the conjugate of what `jacfwd` gives.
template <std::size_t... I, class F>
auto jacfwd(F f, JacobianOptions options = {}) {
  return [f = detail::Held<F>{std::move(f)}, options](const auto&... args) {
    return detail::jacobian_call<1, false>(detail::Chosen<I...>{}, detail::columns, options,
                                           detail::called_with(f.function, detail::decayed(args)...),
                                           detail::decayed(args)...);
  };
}

/// The same of an `f` that returns {output, aux}: {Jacobian, aux}.
template <std::size_t... I, class F>
auto jacfwd(F f, HasAux, JacobianOptions options = {}) {
  return [f = detail::Held<F>{std::move(f)}, options](const auto&... args) {
    return detail::jacobian_call<1, true>(detail::Chosen<I...>{}, detail::columns, options,
                                          detail::called_with(f.function, detail::decayed(args)...),
                                          detail::decayed(args)...);
  };
}

/// Second derivatives of `f` (forward over reverse): the output's tree, with each tensor replaced by the arguments'
/// tree of the arguments' tree, whose tensors have the output's shape followed by those of the two arguments.
template <std::size_t... I, class F>
auto hessian(F f, JacobianOptions options = {}) {
  return [f = detail::Held<F>{std::move(f)}, options](const auto&... args) {
    return detail::jacobian_call<2, false>(detail::Chosen<I...>{}, detail::second, options,
                                           detail::called_with(f.function, detail::decayed(args)...),
                                           detail::decayed(args)...);
  };
}

/// The same of an `f` that returns {output, aux}: {Hessian, aux}.
template <std::size_t... I, class F>
auto hessian(F f, HasAux, JacobianOptions options = {}) {
  return [f = detail::Held<F>{std::move(f)}, options](const auto&... args) {
    return detail::jacobian_call<2, true>(detail::Chosen<I...>{}, detail::second, options,
                                          detail::called_with(f.function, detail::decayed(args)...),
                                          detail::decayed(args)...);
  };
}

/// {gradients, Hessian-vector products} of `f`, whose result is a real scalar tensor: the products are the derivatives
/// of the gradients along the tangents. Arguments as for `jvp`. Where the gradients are not wanted, the gradient of the
/// derivative along the tangents (`grad` of a function that returns `jvp(...).second`) is the products alone, for less.
template <class F, class Primals, class Tangents>
auto hvp(F f, const Primals& primals, const Tangents& tangents) {
  return detail::hvp_call(detail::called_at(f, detail::as_arguments(primals)), detail::as_arguments(primals), tangents);
}

}  // namespace tower
