// vmap against a loop over the examples.
#include <ATen/ops/empty.h>
#include <ATen/ops/movedim.h>
#include <ATen/ops/zeros_like.h>

#include "matrix/matrix.h"

namespace matrix {
namespace {

// All ways to map some of the arguments; for many arguments: all, all but one, and one.
std::vector<std::vector<bool>> choices(const std::vector<bool>& mappable) {
  std::vector<size_t> places;
  for (size_t i = 0; i < mappable.size(); ++i) {
    if (mappable[i]) places.push_back(i);
  }
  std::vector<std::vector<bool>> result;
  for (uint64_t bits = (1ULL << places.size()) - 1; bits > 0; --bits) {
    const auto count = static_cast<size_t>(__builtin_popcountll(bits));
    if (places.size() > 3 && count != 1 && count + 1 < places.size()) continue;
    std::vector<bool> mapped(mappable.size());
    for (size_t j = 0; j < places.size(); ++j) mapped[places[j]] = ((bits >> j) & 1U) != 0;
    result.push_back(mapped);
  }
  return result;
}

// Variant 0 maps dimension zero, 1 the last (counted from the end), 2 a different one for each argument.
td::Dims dims_for(const Problem& problem, const std::vector<bool>& mapped, int64_t variant, const Case& c) {
  td::Dims dims = zero_dims(mapped);
  for (size_t i = 0; i < mapped.size() && !c.entry.by_address; ++i) {
    if (!mapped[i]) continue;
    const int64_t rank = problem.examples[0][i].dim() + 1;
    if (variant == 1) dims[i] = -1;
    if (variant == 2) dims[i] = (static_cast<int64_t>(i) + 1) % rank;
  }
  return dims;
}

std::string describe(const td::Dims& dims) {
  std::string text = "in_dims {";
  for (const auto& dim : dims) text += (dim ? std::to_string(*dim) : "-") + std::string(" ");
  text.back() = '}';
  return text;
}

Tensors looped(const Problem& problem, const std::vector<bool>& mapped) {
  std::vector<Tensors> results;
  for (const auto& arguments : looped_arguments(problem, mapped)) results.push_back(problem.f(arguments));
  return stacked(results);
}

void check_against_loop(const Problem& problem, const std::vector<bool>& mapped, int64_t variant, int64_t out_dim,
                        const Case& c) {
  const td::Dims dims = dims_for(problem, mapped, variant, c);
  const Tensors arguments = batched_arguments(problem, mapped, dims);
  Tensors actual = td::vmap(problem.f, dims, {out_dim})(arguments);
  if (out_dim != 0) {
    for (auto& tensor : actual) tensor = tensor.movedim(out_dim, 0);
  }
  Tensors expected = looped(problem, mapped);
  if (c.entry.unspecified) {
    for (auto* tensors : {&actual, &expected}) {
      for (auto& tensor : *tensors) tensor = at::zeros_like(tensor);
    }
  }
  c.report.expect("vmap against a loop, " + describe(dims) + " out_dim " + std::to_string(out_dim),
                  support::difference(actual, expected, support::same_arithmetic(c.dtype)));
}

void check_one_and_none(const Problem& problem, const Case& c) {
  Problem one = problem;
  one.examples.resize(1);
  check_against_loop(one, one.mappable, 0, 0, c);

  if (c.entry.by_data) return;
  const td::Dims dims = zero_dims(problem.mappable);
  Tensors none = batched_arguments(one, one.mappable, dims);
  for (size_t i = 0; i < none.size(); ++i) {
    if (problem.mappable[i]) none[i] = none[i].narrow(0, 0, 0);
  }
  const Tensors actual = td::vmap(problem.f, dims, {0})(none);
  Tensors expected = looped(one, one.mappable);
  for (auto& tensor : expected) tensor = tensor.narrow(0, 0, 0);
  c.report.expect("vmap over no examples", support::difference(actual, expected, {0, 0}));
}

}  // namespace

void check_vmap(const Case& c) {
  const Problem problem = problem_of(c);
  if (!any(problem.mappable)) return;
  for (const auto& mapped : choices(problem.mappable)) {
    for (int64_t variant = 0; variant < 3; ++variant) {
      c.report.run("vmap", [&] { check_against_loop(problem, mapped, variant, 0, c); });
    }
  }
  c.report.run("vmap", [&] { check_against_loop(problem, problem.mappable, 0, -1, c); });
  c.report.run("vmap", [&] { check_one_and_none(problem, c); });
}

void check_transform_vmap(const Problem& problem, const Case& c) {
  if (!any(problem.mappable)) return;
  check_against_loop(problem, problem.mappable, 0, 0, c);
  // The levels differ in what they map.
  if (problem.mappable.size() > 1) {
    for (const size_t alone : {size_t{0}, problem.mappable.size() - 1}) {
      std::vector<bool> mapped(problem.mappable.size());
      mapped[alone] = problem.mappable[alone];
      if (any(mapped)) check_against_loop(problem, mapped, 1, 0, c);
    }
  }
}

}  // namespace matrix
