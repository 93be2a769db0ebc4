// Taylor mode: derivatives of any order along a curve, for the cost of K²/2 evaluations where nested transforms take
// 2 to the power K; and Laplacians, which need no Hessian.
//
//   auto [y, ys] = tower::jet(f, x, {v1, v2, v3});          // f along x + v1 t + v2 t²/2 + v3 t³/6, and d/dt … d³/dt³
//   auto along = tower::derivatives_along(f, x, v, 8);      // f(x) and its first eight derivatives along v
//   auto [value, lap] = tower::laplacian(f)(x);             // and the sum of the second derivatives by x's elements
//
// They are transforms as the others: they nest with them and with each other, in any order, and every operator that has
// a derivative has these (docs/taylor_mode.md).
//
// Derivatives are derivatives, not coefficients, unless Scaling::coefficients is chosen: of exp along t they are 1, 1,
// 1, …, and the coefficients 1, 1/2, 1/6, ….
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "tower/transforms.h"

namespace tower {

/// What the terms of a series are, those that are given and those that come back.
enum class Scaling {
  derivatives,   ///< the k-th is the k-th derivative by t
  coefficients,  ///< the k-th is what tᵏ is multiplied by: the k-th derivative divided by k!
};

/// How `jet` speaks of series.
struct JetOptions {
  /// What the terms are, and what is carried through the function: coefficients are the faster ones where there are
  /// many, as products of them have no binomials.
  Scaling scaling = Scaling::derivatives;
};

/// Which second derivatives `laplacian` sums, and how.
struct LaplacianOptions {
  /// For each differentiated tensor in turn a tensor with directions in front, as many for all: the sum is of the
  /// second derivatives along them, Σ vᵀ H v. With the rows of a factor A of a matrix W = AᵀA it is weighted by that,
  /// and with random rows of unit variance it is an estimate. Empty: the unit vectors of all elements.
  std::vector<at::Tensor> directions = {};
  /// Directions followed at once; all of them when empty. Bounds peak memory.
  std::optional<int64_t> chunk_size = std::nullopt;
};

namespace dynamic {

/// Outputs of `f` at `primals`, and their derivatives along a curve: the second of the pair has, for each k from 1 to
/// K = series.size(), d^k/dt^k f(x(t)) at t = 0, a tensor for each output, of its shape and dtype. x(0) are the
/// `primals`, and `series[k - 1]` has the k-th derivatives of x, one for each primal (undefined: zero), of its shape
/// and dtype; it may be empty, all being zero. By `options` terms are coefficients in place of derivatives. Throws
/// ArgumentError where there is no order or something does not fit, and DerivativeError where an integer primal is
/// given a derivative.
std::pair<Tensors, std::vector<Tensors>> jet(Function f, const Tensors& primals, const std::vector<Tensors>& series,
                                             JetOptions options = {});

/// Outputs of `f` and, as the second of the pair, the Laplacian of each, of the output's shape and dtype: the sum of
/// its second derivatives by all elements of the arguments `argnums`, or those that `options` names. Throws
/// DerivativeError where one of these arguments is not real, and ArgumentError where directions do not fit.
FunctionWithAux laplacian(Function f, std::vector<int64_t> argnums, LaplacianOptions options = {});

/// The Laplacian of the Laplacian of each output of `f`, of its shape and dtype: the sum of the fourth derivatives
/// ∂⁴/∂xᵢ²∂xⱼ² over all pairs of elements of the arguments `argnums`. Throws what `laplacian` does.
Function biharmonic(Function f, std::vector<int64_t> argnums);

}  // namespace dynamic

namespace detail {

template <class Out, class... D, class T>
auto jet_call(CallOf<Out, D...> f, const std::tuple<const D&...>& primals, const std::vector<T>& series,
              std::size_t order, const JetOptions& options) {
  Flat<false, Out, D...> flat(f, primals);
  const auto arguments = select_tuple(typename TensorArguments<D...>::type{}, primals);
  std::vector<Tensors> terms;
  for (const T& term : series)
    terms.push_back(
        std::apply([&](const auto&... each) { return matching(arguments, "jet: term of argument", each...); },
                   as_arguments(term)));
  terms.resize(order);
  auto run = [&](const Tensors& tensors) { return flat(tensors).first; };
  auto [values, derivatives] = dynamic::jet(CallRef::to(run), flat.leaves(), terms, options);
  std::vector<typename Flat<false, Out, D...>::Value> typed;
  for (const Tensors& each : derivatives) typed.push_back(flat.value.arrive(each));
  return std::pair(flat.value.arrive(values), std::move(typed));
}

/// `make(f, argnums)` of the function of tensors that `f` is, at `args`; what it gives, and the travelling result.
template <class Argnums, class Out, class Make, class Arrive, class... D>
auto operator_call(const char* label, Argnums argnums, CallOf<Out, D...> f, const Make& make, const Arrive& arrive,
                   const D&... args) {
  Flat<false, Out, D...> flat(f, args...);
  const Tensors leaves = flat.leaves();
  auto chosen = flat.differentiated(label, leaves, argnums);
  auto run = [&](const Tensors& tensors) { return flat(tensors).first; };
  return arrive(flat.value, make(CallRef::to(run), std::move(chosen))(leaves));
}

inline constexpr auto arrive_alone = [](auto& value, const Tensors& result) { return value.arrive(result); };
inline constexpr auto arrive_in_pairs = [](auto& value, const std::pair<Tensors, Tensors>& results) {
  return std::pair(value.arrive(results.first), value.arrive(results.second));
};

}  // namespace detail

/// {f(x), {d/dt f(x(t)), …, d^K/dt^K f(x(t))} at t = 0} of the curve with x(0) = `x` and the derivatives `series`:
/// x'(0), x''(0), … to the K-th, trees like `x` (undefined tensors: zero). Several arguments of `f` are a tuple, and so
/// is each term (with an entry for each argument that holds tensors). By `options` the terms, those given and those
/// returned, are coefficients of t, t², … instead. Throws what dynamic::jet does.
template <class F, class P, class T>
auto jet(F f, const P& x, const std::vector<T>& series, JetOptions options = {}) {
  return detail::jet_call(detail::called_at(f, detail::as_arguments(x)), detail::as_arguments(x), series, series.size(),
                          options);
}
/// The same with the terms in braces.
template <class F, class P, class T>
auto jet(F f, const P& x, std::initializer_list<T> series, JetOptions options = {}) {
  return detail::jet_call(detail::called_at(f, detail::as_arguments(x)), detail::as_arguments(x),
                          std::vector<T>(series), series.size(), options);
}

/// {f(x), d/dt f(x + v t), …, d^K/dt^K f(x + v t)} at t = 0 for K = `order`: the value of `f` at `x` and its
/// derivatives along `v`, which is like a term of `jet`. By `options` the coefficients of the Taylor polynomial
/// instead. Throws ArgumentError where `order` is less than one, and what dynamic::jet does.
template <class F, class P, class T>
auto derivatives_along(F f, const P& x, const T& v, int64_t order, JetOptions options = {}) {
  auto [value, derivatives] =
      detail::jet_call(detail::called_at(f, detail::as_arguments(x)), detail::as_arguments(x),
                       std::vector<T>(order > 0 ? 1 : 0, v), static_cast<std::size_t>(order > 0 ? order : 0), options);
  derivatives.insert(derivatives.begin(), std::move(value));
  return derivatives;
}

/// {f(x), its Laplacian}: the sum of the second derivatives of each element of the result by all elements of the
/// arguments `I` (default: the first), a tree like the result. Value, D first derivatives and one sum are carried
/// through the function at once, in place of a Hessian. `options`: other directions, and how many at once. Throws what
/// dynamic::laplacian does.
template <std::size_t... I, class F>
auto laplacian(F f, LaplacianOptions options = {}) {
  return [f = detail::Held<F>{std::move(f)}, options = std::move(options)](const auto&... args) {
    const auto make = [&](dynamic::Function g, std::vector<int64_t> argnums) {
      return dynamic::laplacian(std::move(g), std::move(argnums), options);
    };
    return detail::operator_call("laplacian", detail::Chosen<I...>{},
                                 detail::called_with(f.function, detail::decayed(args)...), make,
                                 detail::arrive_in_pairs, detail::decayed(args)...);
  };
}

/// The Laplacian of the Laplacian of `f` by the elements of the arguments `I` (default: the first), a tree like the
/// result: what `laplacian` gives second, taken twice, but each mixed derivative is carried once: (D + 1)(D + 4) / 2
/// values for D elements. Throws what dynamic::laplacian does.
template <std::size_t... I, class F>
auto biharmonic(F f) {
  return [f = detail::Held<F>{std::move(f)}](const auto&... args) {
    const auto make = [](dynamic::Function g, std::vector<int64_t> argnums) {
      return dynamic::biharmonic(std::move(g), std::move(argnums));
    };
    return detail::operator_call("biharmonic", detail::Chosen<I...>{},
                                 detail::called_with(f.function, detail::decayed(args)...), make, detail::arrive_alone,
                                 detail::decayed(args)...);
  };
}

}  // namespace tower
