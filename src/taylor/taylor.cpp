// jet and laplacian at their surface.
#include "tower/taylor.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "core/memory.h"
#include "frontend/arguments.h"
#include "frontend/substitution.h"
#include "interpreters/surface.h"
#include "taylor/collapsed.h"
#include "taylor/jet.h"
#include "taylor/series.h"
#include "tower/errors.h"

namespace tower {

using dynamic::Function;

namespace {

// What a function's results carry when it has run in a level of Taylor mode.
struct Carried {
  Tensors outs;
  std::vector<taylor::Derivatives> derivatives;  // of each; empty: a constant
  std::vector<Outline> metas;
};

/// Runs `f` in `level` on `primals` with what `derivatives` has for each.
Carried run_in(const c10::intrusive_ptr<Level>& level, const Function& f, const Tensors& primals,
               const std::vector<taylor::Derivatives>& derivatives) {
  Carried carried;
  const Scope scope(level);
  const c10::AutoFwGradMode forward(true);
  Tensors args;
  for (size_t i = 0; i < primals.size(); ++i) {
    if (primals[i].defined()) check_supported(primals[i], level->label(), ordinal("argument", i));
    args.push_back(primals[i].defined() ? taylor::wrap_series(*level, primals[i], derivatives[i]) : Tensor());
  }
  const Tensors results = [&] {
    const frontend::Arguments arguments(*level, args, primals);
    return f(args);
  }();
  check_outputs(results, level->label());
  const auto take_out = [&] {
    carried = {};
    for (const Tensor& out : results) {
      Wrapper* w = as_wrapper_of(out, *level);
      carried.derivatives.push_back(w ? taylor::derivatives_of(w->payload()) : taylor::Derivatives());
      carried.outs.push_back(value_outside(out, *level, args));
      carried.metas.emplace_back(out);
    }
  };
  take_out();
  if (write_back(*level, args, primals)) take_out();
  return carried;
}

// The order-th derivative of each result, zeros materialised.
Tensors of_order(const Carried& carried, size_t order) {
  Tensors result;
  for (const auto& of_one : carried.derivatives)
    result.push_back(order <= of_one.size() ? of_one[order - 1] : Tensor());
  return with_zeros(std::move(result), carried.metas);
}

void check_primal(const Tensor& primal, const char* label, const std::string& what) {
  if (!primal.defined()) throw ArgumentError(std::string(label) + ": " + what + " is an undefined tensor.");
  check_supported(primal, label, what);
}

Tensor scaled(const Tensor& t, double factor) { return t.defined() && factor != 1 ? at::mul(t, factor) : t; }

// ---- laplacian -----------------------------------------------------------------------------------------------------

// The directions of each chosen argument: those that were given, or of all elements of all of them the unit vectors.
Tensors directions_of(const Tensors& primals, const std::vector<int64_t>& argnums, const LaplacianOptions& options) {
  const auto primal = [&](size_t k) -> const Tensor& { return primals[static_cast<size_t>(argnums[k])]; };
  if (!options.directions.empty()) {
    const Tensors given = frontend::stand_ins(options.directions);
    if (given.size() != argnums.size())
      throw ArgumentError("laplacian: " + std::to_string(given.size()) + " tensors of directions for " +
                          std::to_string(argnums.size()) + " differentiated tensors. Give one for each.");
    for (size_t k = 0; k < given.size(); ++k) {
      const std::string what = ordinal("tensor of directions", k);
      if (!given[k].defined() || given[k].dim() == 0)
        throw ArgumentError("laplacian: " + what + " has no dimension of directions in front.");
      Meta like(primal(k));
      like.sizes.insert(like.sizes.begin(), given[k].size(0));
      check_direction(given[k], like, "laplacian", what);
      if (given[k].size(0) != given[0].size(0))
        throw ArgumentError("laplacian: " + what + " has " + std::to_string(given[k].size(0)) +
                            " directions, but the first one has " + std::to_string(given[0].size(0)) + ".");
    }
    return given;
  }
  int64_t elements = 0, before = 0;
  for (size_t k = 0; k < argnums.size(); ++k) elements += primal(k).numel();
  Tensors directions;
  for (size_t k = 0; k < argnums.size(); ++k) {
    const Tensor& x = primal(k);
    Sizes sizes{elements};
    sizes.append(x.sizes().begin(), x.sizes().end());
    directions.push_back(at::eye(elements, x.options()).narrow(1, before, x.numel()).reshape(sizes));
    before += x.numel();
  }
  return directions;
}

std::pair<Tensors, Tensors> value_and_laplacian(const Function& f, const std::vector<int64_t>& given_argnums,
                                                const LaplacianOptions& options, const Tensors& given) {
  constexpr char kLabel[] = "laplacian";
  const memory::InTransform here;
  const Tensors primals = frontend::stand_ins(given);
  const auto argnums = check_argnums(given_argnums, primals.size(), kLabel);
  for (int64_t a : argnums) {
    const Tensor& x = primals[static_cast<size_t>(a)];
    const std::string what = ordinal("argument", static_cast<size_t>(a));
    check_primal(x, kLabel, what);
    check_differentiable(x, kLabel, what);
    if (x.is_complex())
      throw DerivativeError(std::string(kLabel) + ": " + what + " is " + describe(x) +
                            "; the Laplacian is that of a function of real numbers. Pass real and imaginary part.");
  }
  if (options.chunk_size && *options.chunk_size < 1)
    throw ArgumentError("laplacian: chunk_size is " + std::to_string(*options.chunk_size) + ", but must be positive.");
  const Tensors directions = directions_of(primals, argnums, options);
  const int64_t count = directions[0].size(0);
  const int64_t chunk = std::max<int64_t>(1, std::min(count, options.chunk_size.value_or(count)));
  Tensors outs, sums;
  for (int64_t from = 0; from == 0 || from < count; from += chunk) {
    const int64_t size = std::min(chunk, count - from);
    std::vector<taylor::Derivatives> derivatives(primals.size());
    for (size_t k = 0; k < argnums.size() && size > 0; ++k)
      derivatives[static_cast<size_t>(argnums[k])] = {directions[k].narrow(0, from, size), Tensor()};
    const Carried carried = run_in(c10::make_intrusive<taylor::Collapsed>(kLabel, size), f, primals, derivatives);
    Tensors part = of_order(carried, 2);
    if (from == 0) sums = std::move(part), outs = carried.outs;
    else
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = at::add(sums[i], part[i]);
  }
  return {std::move(outs), std::move(sums)};
}

}  // namespace

namespace dynamic {

std::pair<Tensors, std::vector<Tensors>> jet(Function f, const Tensors& given, const std::vector<Tensors>& series,
                                             JetOptions options) {
  constexpr char kLabel[] = "jet";
  const memory::InTransform here;
  const Tensors primals = frontend::stand_ins(given);
  if (series.empty())
    throw ArgumentError("jet: the series has no term, so there is nothing to differentiate along. Give at least one.");
  std::vector<taylor::Derivatives> derivatives(primals.size());
  double factorial = 1;
  for (size_t k = 0; k < series.size(); ++k) {
    factorial *= static_cast<double>(k + 1);
    const Tensors terms = series[k].empty() ? Tensors(primals.size()) : frontend::stand_ins(series[k]);
    if (terms.size() != primals.size())
      throw ArgumentError("jet: " + std::to_string(primals.size()) + " primals, but " + std::to_string(terms.size()) +
                          " tensors in " + ordinal("term", k) +
                          " of the series. Give one for each primal (undefined: zero).");
    for (size_t i = 0; i < primals.size(); ++i) {
      if (k == 0) check_primal(primals[i], kLabel, ordinal("primal", i));
      if (terms[i].defined()) check_differentiable(primals[i], kLabel, ordinal("primal", i));
      check_direction(terms[i], Meta(primals[i]), kLabel, ordinal("term", k) + " of " + ordinal("primal", i));
      derivatives[i].push_back(options.scaling == Scaling::coefficients ? scaled(terms[i], factorial) : terms[i]);
    }
  }
  const Carried carried = run_in(c10::make_intrusive<taylor::Jet>(kLabel, series.size()), f, primals, derivatives);
  std::vector<Tensors> result;
  factorial = 1;
  for (size_t k = 1; k <= series.size(); ++k) {
    factorial *= static_cast<double>(k);
    result.push_back(of_order(carried, k));
    if (options.scaling == Scaling::coefficients)
      for (Tensor& t : result.back())
        if (t.is_floating_point() || t.is_complex()) t = scaled(t, 1 / factorial);
  }
  return {carried.outs, std::move(result)};
}

FunctionWithAux laplacian(Function f, std::vector<int64_t> argnums, LaplacianOptions options) {
  return [f = std::move(f), argnums = std::move(argnums), options = std::move(options)](const Tensors& args) {
    return value_and_laplacian(f, argnums, options, args);
  };
}

Function biharmonic(Function f, std::vector<int64_t> argnums) {
  const auto once = [inner = laplacian(std::move(f), argnums)](const Tensors& args) { return inner(args).second; };
  return [twice = laplacian(once, argnums)](const Tensors& args) { return twice(args).second; };
}

}  // namespace dynamic
}  // namespace tower
