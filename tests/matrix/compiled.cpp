// Compiled operators, transformed and under transforms, against the same uncompiled. The second call gets other values:
// what was taken from the first one's shows.
#include <tower/compile.h>
#include <tower/errors.h>

#include <algorithm>

#include "matrix/matrix.h"
#include "support/generated_once.h"

namespace matrix {
namespace {

Problem nested(const std::vector<std::string>& outer_to_inner, Problem problem) {
  for (size_t k = outer_to_inner.size(); k-- > 0;) problem = transformed(outer_to_inner[k], problem);
  return problem;
}

// The values of `expected` where shape and dtype agree.
Tensors like(const Tensors& expected, Tensors actual) {
  for (size_t k = 0; k < actual.size() && k < expected.size(); ++k)
    if (actual[k].sizes() == expected[k].sizes() && actual[k].dtype() == expected[k].dtype()) actual[k] = expected[k];
  return actual;
}

// What reads values to find a shape or to check arguments, and so is refused where those are arguments.
const std::set<std::string>& reading() {
  static const std::set<std::string> names{"_ctc_loss.Tensor",
                                           "_unique2",
                                           "argwhere",
                                           "bincount",
                                           "index.Tensor",
                                           "linalg_lstsq",
                                           "masked_select",
                                           "narrow.Tensor",
                                           "nonzero",
                                           "repeat_interleave.self_Tensor",
                                           "repeat_interleave.Tensor",
                                           "segment_reduce",
                                           "unique_consecutive",
                                           "unique_dim"};
  return names;
}

bool is_refusal(const std::string& text) {
  return text.find("reads a value") != std::string::npos || text.find("shape depends on values") != std::string::npos;
}

}  // namespace

void unless_values_are_read(const Case& c, const std::function<void()>& body) {
  try {
    body();
  } catch (const tower::UnsupportedError& error) {
    if (reading().count(c.entry.name) == 0 || !is_refusal(error.what())) throw;
    ++totals().comparisons;
    ++totals().refusals;
  }
}

namespace {

void compare_compiled(const std::vector<std::string>& outer_to_inner, const Case& c) {
  const bool derivatives =
      std::any_of(outer_to_inner.begin(), outer_to_inner.end(), [](const auto& t) { return t != "vmap"; });
  const Problem problem = derivatives ? differentiable_problem_of(c) : problem_of(c);
  if (derivatives && !has_derivatives(problem)) return;
  std::string name;
  for (const auto& transform : outer_to_inner) name += transform + " of ";

  const Problem plain = nested(outer_to_inner, problem);
  Problem compiled = problem;
  compiled.f = td::compile(problem.f, support::generated_once());
  const Problem outside = nested(outer_to_inner, compiled);
  const td::Function inside = td::compile(plain.f, support::generated_once());
  for (const size_t example : {0, 1}) {
    const Tensors& x = plain.examples[example];
    const Tensors expected = plain.f(x);
    const auto compare = [&](const std::string& what, const Tensors& actual) {
      const Tensors as_expected = c.entry.unspecified ? like(expected, actual) : actual;
      c.report.expect(
          what, support::difference(as_expected, expected, support::same_arithmetic(support::coarsest(x, c.dtype))));
    };
    compare("compiled " + name + "it, call " + std::to_string(example), inside(x));
    if (!outer_to_inner.empty()) compare(name + "compiled, call " + std::to_string(example), outside.f(x));
  }
}

}  // namespace

void check_compiled(const std::vector<std::string>& outer_to_inner, const Case& c) {
  // Where LibTorch's own formula serves, what stands for it in a graph is looped over.
  const FallbackIsError guard(false);
  unless_values_are_read(c, [&] { compare_compiled(outer_to_inner, c); });
}

}  // namespace matrix
