// jet and laplacian at their surface.
#include "tower/taylor.h"

#include <ATen/Functions.h>

#include "core/memory.h"
#include "frontend/substitution.h"
#include "taylor/along.h"
#include "taylor/jet.h"
#include "taylor/squared_laplacian.h"
#include "tower/errors.h"

namespace tower {

using dynamic::Function;

namespace {

// The directions of each chosen argument: those that were given, or of all elements of all of them the unit vectors.
Tensors directions_of(const Tensors& primals, const std::vector<int64_t>& argnums, const LaplacianOptions& options,
                      const char* label) {
  if (!options.directions.empty()) return taylor::check_directions(options.directions, primals, argnums, label);
  int64_t elements = 0;
  for (const int64_t a : argnums) elements += primals[static_cast<size_t>(a)].numel();
  return taylor::as_directions(at::eye(elements, primals[static_cast<size_t>(argnums[0])].options()), primals, argnums);
}

std::pair<Tensors, Tensors> value_and_laplacian(const Function& f, const std::vector<int64_t>& given_argnums,
                                                const LaplacianOptions& options, const Tensors& given) {
  constexpr char kLabel[] = "laplacian";
  const memory::InTransform here;
  const Tensors primals = frontend::stand_ins(given);
  const auto argnums = taylor::check_real_arguments(primals, given_argnums, kLabel);
  taylor::check_chunk_size(options.chunk_size, kLabel);
  taylor::Along along{2, directions_of(primals, argnums, options, kLabel)};
  along.chunk_size = options.chunk_size;
  return taylor::sum_along(f, primals, argnums, along, kLabel);
}

Tensors laplacian_of_laplacian(const Function& f, const std::vector<int64_t>& given_argnums, const Tensors& given) {
  constexpr char kLabel[] = "biharmonic";
  const memory::InTransform here;
  const Tensors primals = frontend::stand_ins(given);
  const auto argnums = taylor::check_real_arguments(primals, given_argnums, kLabel);
  const Tensors directions = directions_of(primals, argnums, {}, kLabel);
  const int64_t count = directions[0].size(0);
  std::vector<taylor::Derivatives> derivatives(primals.size());
  for (size_t k = 0; k < argnums.size() && count > 0; ++k) {
    taylor::Derivatives& of_one = derivatives[static_cast<size_t>(argnums[k])];
    of_one.resize(taylor::SquaredLaplacian::kOrders + 1);
    of_one[0] = directions[k];
  }
  const auto level = c10::make_intrusive<taylor::SquaredLaplacian>(kLabel, count);
  return taylor::follow(level, f, primals, derivatives).of_order(taylor::SquaredLaplacian::kOrders + 1);
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
  for (size_t k = 0; k < series.size(); ++k) {
    const Tensors terms = series[k].empty() ? Tensors(primals.size()) : frontend::stand_ins(series[k]);
    if (terms.size() != primals.size())
      throw ArgumentError("jet: " + std::to_string(primals.size()) + " primals, but " + std::to_string(terms.size()) +
                          " tensors in " + ordinal("term", k) +
                          " of the series. Give one for each primal (undefined: zero).");
    for (size_t i = 0; i < primals.size(); ++i) {
      if (k == 0) taylor::check_primal(primals[i], kLabel, ordinal("primal", i));
      if (terms[i].defined()) check_differentiable(primals[i], kLabel, ordinal("primal", i));
      check_direction(terms[i], Meta(primals[i]), kLabel, ordinal("term", k) + " of " + ordinal("primal", i));
      derivatives[i].push_back(terms[i]);
    }
  }
  const taylor::Followed followed =
      taylor::follow(c10::make_intrusive<taylor::Jet>(kLabel, series.size(), options.scaling), f, primals, derivatives);
  std::vector<Tensors> result;
  for (size_t k = 1; k <= series.size(); ++k) result.push_back(followed.of_order(k));
  return {followed.outs, std::move(result)};
}

FunctionWithAux laplacian(Function f, std::vector<int64_t> argnums, LaplacianOptions options) {
  return [f = std::move(f), argnums = std::move(argnums), options = std::move(options)](const Tensors& args) {
    return value_and_laplacian(f, argnums, options, args);
  };
}

Function biharmonic(Function f, std::vector<int64_t> argnums) {
  return [f = std::move(f), argnums = std::move(argnums)](const Tensors& args) {
    return laplacian_of_laplacian(f, argnums, args);
  };
}

}  // namespace dynamic
}  // namespace tower
