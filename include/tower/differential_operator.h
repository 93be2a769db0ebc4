// Any linear differential operator of a function, by Taylor mode: no Hessian, and no tensor of fourth derivatives.
//
//   const auto heat = tower::differential_operator({{1, {0}}, {-0.1, {1, 1}}, {-0.1, {2, 2}}});
//   at::Tensor residual = heat(u)(txy);  // ∂u/∂t - 0.1 (∂²u/∂x² + ∂²u/∂y²)
//
// A term is a coefficient and the elements of the argument that are differentiated by, each as often as it is named;
// none: the function itself. Terms of one order are a sum of derivatives along directions, from which mixed ones are
// interpolated, and these go through the function together with one sum of the highest (docs/taylor_mode.md). What the
// operator gives is again a function, and nests with all transforms.
//
// With random directions in place of these, where the elements are many, come estimates whose mean is right:
//
//   auto [value, lap] = tower::stochastic_laplacian(f, {v})(x);  // v: rows of unit variance
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tower/taylor.h"

namespace tower {

/// What a derivative is multiplied by: a number, or a real tensor without dimensions, which may depend on the position,
/// and is differentiated and mapped as others are.
struct Coefficient {
  /// The number `value`.
  Coefficient(double value) : number(value) {}
  /// That of `value`, a real tensor without dimensions.
  Coefficient(at::Tensor value) : tensor(std::move(value)) {}

  double number = 1;       ///< where there is no tensor
  at::Tensor tensor = {};  ///< undefined: the number
};

/// A term of a differential operator.
struct DerivativeTerm {
  /// What the derivative is multiplied by.
  Coefficient coefficient;
  /// The elements that are differentiated by, counted through all the differentiated arguments in turn, as many times
  /// as they are here: {0, 0, 2} is ∂³/∂x₀²∂x₂. None: the function itself.
  std::vector<int64_t> by;
};

/// How `differential_operator` evaluates.
struct DifferentialOptions {
  /// For each differentiated tensor in turn one with directions in front, as many for all, of independent standard
  /// normal numbers: then terms of order two and more are estimated by these, and the estimate's mean is right. Empty:
  /// exact.
  std::vector<at::Tensor> normal_directions = {};
  /// Directions followed at once; all of them when empty. Bounds peak memory.
  std::optional<int64_t> chunk_size = std::nullopt;
};

namespace dynamic {

/// The sum of `terms` of each output of `f`, of its shape and dtype: coefficients times derivatives by elements of the
/// arguments `argnums`. Mixed derivatives are interpolated from those along directions, which are polarized (Griewank,
/// Utke, Walther, "Evaluating higher derivative tensors by forward propagation of univariate Taylor series", 2000; the
/// directions are those of Kan, "From moments of sum to moments of product", 2008). With directions v among `options`
/// terms of order K are the mean of Π He(vᵢ) / K! times the K-th derivative along v, with Hermite's polynomials, each
/// of as high a degree as the term has derivatives by i. Throws ArgumentError where a term names no element, is of an
/// order above twelve, or has a coefficient that is no real number; and what `laplacian` does.
Function differential_operator(Function f, std::vector<int64_t> argnums, std::vector<DerivativeTerm> terms,
                               DifferentialOptions options = {});

/// Outputs of `f` and, as the second of the pair, an estimate of the Laplacian of each by the arguments `argnums`
/// (Hutchinson's): the mean of the second derivatives along `directions`, which has for each of these a tensor with
/// directions in front. Of random ones with unit covariance (signs, standard normal numbers) its mean is the Laplacian.
/// `chunk_size`: directions followed at once. Throws what `laplacian` does, and ArgumentError where there is no
/// direction.
FunctionWithAux stochastic_laplacian(Function f, std::vector<int64_t> argnums, std::vector<at::Tensor> directions,
                                     std::optional<int64_t> chunk_size = std::nullopt);

/// An estimate of the Laplacian's Laplacian of each output of `f` by the arguments `argnums`: a third of the mean of
/// the fourth derivatives along `directions`, which are to be standard normal, for the mean of vᵢvⱼvₖvₗ is one for each
/// way to pair its four. (Of random signs the mean is another.) `chunk_size`: directions followed at once. Throws what
/// stochastic_laplacian does.
Function stochastic_biharmonic(Function f, std::vector<int64_t> argnums, std::vector<at::Tensor> directions,
                               std::optional<int64_t> chunk_size = std::nullopt);

}  // namespace dynamic

/// The operator that takes a function to the sum of `terms` of it: coefficients times derivatives by elements of the
/// arguments `I` (default: the first). `differential_operator(terms)(f)(x)` is a tree like f(x). By `options`
/// estimated, or some directions at once. Throws, when that is evaluated, what dynamic::differential_operator does.
template <std::size_t... I>
auto differential_operator(std::vector<DerivativeTerm> terms, DifferentialOptions options = {}) {
  return [terms = std::move(terms), options = std::move(options)]<class F>(F f) {
    return [terms, options, f = detail::Held<F>{std::move(f)}](const auto&... args) {
      const auto make = [&](dynamic::Function g, std::vector<int64_t> argnums) {
        return dynamic::differential_operator(std::move(g), std::move(argnums), terms, options);
      };
      return detail::operator_call("differential_operator", detail::Chosen<I...>{},
                                   detail::called_with(f.function, detail::decayed(args)...), make,
                                   detail::arrive_alone, detail::decayed(args)...);
    };
  };
}

/// {f(x), an estimate of its Laplacian} by the elements of the arguments `I` (default: the first): the mean of the
/// second derivatives along `directions`, of which each differentiated tensor has as many in front. `chunk_size`:
/// directions followed at once. Throws what dynamic::stochastic_laplacian does.
template <std::size_t... I, class F>
auto stochastic_laplacian(F f, std::vector<at::Tensor> directions, std::optional<int64_t> chunk_size = std::nullopt) {
  return [f = detail::Held<F>{std::move(f)}, directions = std::move(directions), chunk_size](const auto&... args) {
    const auto make = [&](dynamic::Function g, std::vector<int64_t> argnums) {
      return dynamic::stochastic_laplacian(std::move(g), std::move(argnums), directions, chunk_size);
    };
    return detail::operator_call("stochastic_laplacian", detail::Chosen<I...>{},
                                 detail::called_with(f.function, detail::decayed(args)...), make,
                                 detail::arrive_in_pairs, detail::decayed(args)...);
  };
}

/// An estimate of the Laplacian of the Laplacian of `f` by the elements of the arguments `I` (default: the first), by
/// standard normal `directions`: a third of the mean of the fourth derivatives along them. `chunk_size`: directions
/// followed at once. Throws what dynamic::stochastic_biharmonic does.
template <std::size_t... I, class F>
auto stochastic_biharmonic(F f, std::vector<at::Tensor> directions, std::optional<int64_t> chunk_size = std::nullopt) {
  return [f = detail::Held<F>{std::move(f)}, directions = std::move(directions), chunk_size](const auto&... args) {
    const auto make = [&](dynamic::Function g, std::vector<int64_t> argnums) {
      return dynamic::stochastic_biharmonic(std::move(g), std::move(argnums), directions, chunk_size);
    };
    return detail::operator_call("stochastic_biharmonic", detail::Chosen<I...>{},
                                 detail::called_with(f.function, detail::decayed(args)...), make, detail::arrive_alone,
                                 detail::decayed(args)...);
  };
}

}  // namespace tower
