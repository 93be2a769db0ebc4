#include "taylor/along.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "frontend/arguments.h"
#include "frontend/substitution.h"
#include "taylor/collapsed.h"
#include "tower/errors.h"

namespace tower::taylor {

Followed follow(const c10::intrusive_ptr<Level>& level, const dynamic::Function& f, const Tensors& primals,
                const std::vector<Derivatives>& derivatives) {
  Followed followed;
  const Scope scope(level);
  const c10::AutoFwGradMode forward(true);
  Tensors args;
  for (size_t i = 0; i < primals.size(); ++i) {
    if (primals[i].defined()) check_supported(primals[i], level->label(), ordinal("argument", i));
    args.push_back(primals[i].defined() ? wrap_series(*level, primals[i], derivatives[i]) : Tensor());
  }
  const Tensors results = [&] {
    const frontend::Arguments arguments(*level, args, primals);
    return f(args);
  }();
  check_outputs(results, level->label());
  const auto take_out = [&] {
    followed = {};
    for (const Tensor& out : results) {
      Wrapper* w = as_wrapper_of(out, *level);
      followed.derivatives.push_back(w ? derivatives_of(w->payload()) : Derivatives());
      followed.outs.push_back(value_outside(out, *level, args));
      followed.metas.emplace_back(out);
    }
  };
  take_out();
  if (write_back(*level, args, primals)) take_out();
  return followed;
}

Tensors Followed::of_order(size_t order) const {
  Tensors result;
  for (const Derivatives& of_one : derivatives) result.push_back(order <= of_one.size() ? of_one[order - 1] : Tensor());
  return with_zeros(std::move(result), metas);
}

void check_primal(const Tensor& primal, const char* label, const std::string& what) {
  if (!primal.defined()) throw ArgumentError(std::string(label) + ": " + what + " is an undefined tensor.");
  check_supported(primal, label, what);
}

std::vector<int64_t> check_real_arguments(const Tensors& primals, std::vector<int64_t> given, const char* label) {
  auto argnums = check_argnums(std::move(given), primals.size(), label);
  for (const int64_t a : argnums) {
    const Tensor& x = primals[static_cast<size_t>(a)];
    const std::string what = ordinal("argument", static_cast<size_t>(a));
    check_primal(x, label, what);
    check_differentiable(x, label, what);
    if (x.is_complex())
      throw DerivativeError(std::string(label) + ": " + what + " is " + describe(x) +
                            "; the derivatives are those of a function of real numbers. Pass real and imaginary part.");
  }
  return argnums;
}

void check_chunk_size(std::optional<int64_t> chunk_size, const char* label) {
  if (chunk_size && *chunk_size < 1)
    throw ArgumentError(std::string(label) + ": chunk_size is " + std::to_string(*chunk_size) +
                        ", but must be positive.");
}

Tensors check_directions(const Tensors& directions, const Tensors& primals, const std::vector<int64_t>& argnums,
                         const char* label) {
  const std::string name(label);
  Tensors given = frontend::stand_ins(directions);
  if (given.size() != argnums.size())
    throw ArgumentError(name + ": " + std::to_string(given.size()) + " tensors of directions for " +
                        std::to_string(argnums.size()) + " differentiated tensors. Give one for each.");
  for (size_t k = 0; k < given.size(); ++k) {
    const std::string what = ordinal("tensor of directions", k);
    if (!given[k].defined() || given[k].dim() == 0)
      throw ArgumentError(name + ": " + what + " has no dimension of directions in front.");
    Meta like(primals[static_cast<size_t>(argnums[k])]);
    like.sizes.insert(like.sizes.begin(), given[k].size(0));
    check_direction(given[k], like, label, what);
    if (given[k].size(0) != given[0].size(0))
      throw ArgumentError(name + ": " + what + " has " + std::to_string(given[k].size(0)) +
                          " directions, but the first one has " + std::to_string(given[0].size(0)) + ".");
  }
  return given;
}

Tensors as_directions(const Tensor& rows, const Tensors& primals, const std::vector<int64_t>& argnums) {
  int64_t before = 0;
  Tensors directions;
  for (const int64_t a : argnums) {
    const Tensor& x = primals[static_cast<size_t>(a)];
    Sizes sizes{rows.size(0)};
    sizes.append(x.sizes().begin(), x.sizes().end());
    const bool fits = rows.scalar_type() == x.scalar_type() && rows.device() == x.device();
    directions.push_back((fits ? rows : rows.to(x.options())).narrow(1, before, x.numel()).reshape(sizes));
    before += x.numel();
  }
  return directions;
}

std::pair<Tensors, Tensors> sum_along(const dynamic::Function& f, const Tensors& primals,
                                      const std::vector<int64_t>& argnums, const Along& along, const char* label) {
  const int64_t count = along.directions[0].size(0);
  const int64_t chunk = std::max<int64_t>(1, std::min(count, along.chunk_size.value_or(count)));
  Tensors outs, sums;
  for (int64_t from = 0; from == 0 || from < count; from += chunk) {
    const int64_t size = std::min(chunk, count - from);
    std::vector<Derivatives> derivatives(primals.size());
    for (size_t k = 0; k < argnums.size() && size > 0; ++k) {
      Derivatives& of_one = derivatives[static_cast<size_t>(argnums[k])];
      of_one.resize(along.order);
      of_one[0] = along.directions[k].narrow(0, from, size);
      if (from == 0 && !along.drift.empty()) of_one.back() = along.drift[k];
    }
    const Summed summed{along.order, size, along.weights.defined() ? along.weights.narrow(0, from, size) : Tensor()};
    const Followed followed = follow(c10::make_intrusive<Collapsed>(label, summed), f, primals, derivatives);
    Tensors part = followed.of_order(along.order);
    if (from == 0) sums = std::move(part), outs = followed.outs;
    else
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = at::add(sums[i], part[i]);
  }
  return {std::move(outs), std::move(sums)};
}

}  // namespace tower::taylor
