// Transforms of transforms. The outer one's own check is applied to the function that the inner ones make of the
// operator; and derivatives of a mapped operator are held against a loop of the operator's derivatives, so that an
// error that both levels share does not hide.
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>

#include "matrix/matrix.h"

namespace matrix {

// The checks of one transform, in the files that bear their names.
void check_transform_vmap(const Problem& problem, const Case& c);
void check_transform_vjp(const Problem& problem, const Case& c);
void check_transform_jvp(const Problem& problem, const Case& c);

namespace {

// Which arguments of a mapped derivative are mapped: all, or all but one.
std::vector<std::vector<bool>> mapped_choices(const std::vector<bool>& mappable) {
  std::vector<std::vector<bool>> result = {mappable};
  for (size_t i = 0; i < mappable.size() && mappable.size() > 1 && i < 3; ++i) {
    std::vector<bool> all_but_one = mappable;
    all_but_one[i] = false;
    if (mappable[i] && any(all_but_one)) result.push_back(all_but_one);
  }
  return result;
}

// vjp(vmap(f)) against the loop of vjp(f): a shared argument collects the sum over the examples.
void check_pullback_of_mapped(const Problem& problem, const std::vector<bool>& mapped, const Case& c) {
  const td::Dims dims = zero_dims(mapped);
  Problem whole = problem;
  whole.f = td::vmap(problem.f, dims, {0});
  const Tensors arguments = batched_arguments(problem, mapped, dims);
  const auto [outputs, pullback] =
      td::vjp(partial_function(whole, arguments), selected(arguments, problem.differentiable));
  const Tensors cotangents = support::random_like(outputs, 31);
  std::vector<Tensors> gradients;
  const auto lists = looped_arguments(problem, mapped);
  for (size_t i = 0; i < lists.size(); ++i) {
    Tensors row;
    for (const auto& cotangent : cotangents) row.push_back(cotangent.select(0, static_cast<int64_t>(i)));
    gradients.push_back(
        td::vjp(partial_function(problem, lists[i]), selected(lists[i], problem.differentiable)).second(row));
  }
  Tensors expected = stacked(gradients);
  size_t next = 0;
  for (size_t i = 0; i < mapped.size(); ++i) {
    if (!problem.differentiable[i]) continue;
    if (!mapped[i]) expected[next] = expected[next].sum(0);
    ++next;
  }
  c.report.expect("vjp(vmap) against a loop of vjp", support::difference(pullback(cotangents), expected, {1e-9, 1e-9}));
}

void check_pushforward_of_mapped(const Problem& problem, const std::vector<bool>& mapped, const Case& c) {
  const td::Dims dims = zero_dims(mapped);
  Problem whole = problem;
  whole.f = td::vmap(problem.f, dims, {0});
  const Tensors arguments = batched_arguments(problem, mapped, dims);
  const Tensors primals = selected(arguments, problem.differentiable);
  const Tensors tangents = support::random_like(primals, 37);
  const Tensors actual = td::jvp(partial_function(whole, arguments), primals, tangents).second;
  std::vector<Tensors> results;
  const auto lists = looped_arguments(problem, mapped);
  for (size_t i = 0; i < lists.size(); ++i) {
    Tensors row;
    size_t next = 0;
    for (size_t j = 0; j < mapped.size(); ++j) {
      if (!problem.differentiable[j]) continue;
      row.push_back(mapped[j] ? tangents[next].select(0, static_cast<int64_t>(i)) : tangents[next]);
      ++next;
    }
    results.push_back(
        td::jvp(partial_function(problem, lists[i]), selected(lists[i], problem.differentiable), row).second);
  }
  c.report.expect("jvp(vmap) against a loop of jvp", support::difference(actual, stacked(results), {1e-9, 1e-9}));
}

}  // namespace

void check_transform(const std::string& transform, const Problem& problem, const Case& c) {
  if (transform == "vmap") return check_transform_vmap(problem, c);
  if (transform == "vjp") return check_transform_vjp(problem, c);
  check_transform_jvp(problem, c);
}

void check_nesting(const std::vector<std::string>& outer_to_inner, const Case& c) {
  if (c.dtype == at::kFloat) return;
  std::string name;
  bool derivative = false;
  bool maps = false;
  for (const auto& transform : outer_to_inner) {
    name += (name.empty() ? "" : "(") + transform;
    derivative |= transform != "vmap";
    maps |= transform == "vmap";
  }
  name += std::string(outer_to_inner.size() - 1, ')');
  const Problem problem = derivative ? differentiable_problem_of(c) : problem_of(c);
  if (derivative && (!has_derivatives(problem) || !is_double(problem))) return;
  if (maps && !any(problem.mappable)) return;
  c.report.run(name, [&] {
    Problem inner = problem;
    for (size_t i = outer_to_inner.size(); i-- > 1;) inner = transformed(outer_to_inner[i], inner);
    check_transform(outer_to_inner[0], inner, c);
  });
  if (name != "vjp(vmap)" && name != "jvp(vmap)") return;
  for (const auto& mapped : mapped_choices(problem.mappable)) {
    c.report.run(name, [&] {
      if (name == "vjp(vmap)") check_pullback_of_mapped(problem, mapped, c);
      if (name == "jvp(vmap)") check_pushforward_of_mapped(problem, mapped, c);
    });
  }
}

}  // namespace matrix
