// Compiled operators, transformed and under transforms, against the same uncompiled. The second call gets other values:
// what was taken from the first one's shows.
#include <tower/compile.h>

#include <algorithm>

#include "matrix/matrix.h"

namespace matrix {
namespace {

Problem nested(const std::vector<std::string>& outer_to_inner, Problem problem) {
  for (size_t k = outer_to_inner.size(); k-- > 0;) problem = transformed(outer_to_inner[k], problem);
  return problem;
}

}  // namespace

void check_compiled(const std::vector<std::string>& outer_to_inner, const Case& c) {
  const bool derivatives =
      std::any_of(outer_to_inner.begin(), outer_to_inner.end(), [](const auto& t) { return t != "vmap"; });
  const Problem problem = derivatives ? differentiable_problem_of(c) : problem_of(c);
  if (derivatives && !has_derivatives(problem)) return;
  std::string name;
  for (const auto& transform : outer_to_inner) name += transform + " of ";

  const Problem plain = nested(outer_to_inner, problem);
  Problem compiled = problem;
  compiled.f = td::compile(problem.f);
  const Problem outside = nested(outer_to_inner, compiled);
  const td::Function inside = td::compile(plain.f);
  for (const size_t example : {0, 1}) {
    const Tensors& x = plain.examples[example];
    const Tensors expected = plain.f(x);
    const auto compare = [&](const std::string& what, const Tensors& actual) {
      if (!c.entry.unspecified)
        c.report.expect(what, support::difference(actual, expected, support::same_arithmetic(c.dtype)));
    };
    compare("compiled " + name + "it, call " + std::to_string(example), inside(x));
    if (!outer_to_inner.empty()) compare(name + "compiled, call " + std::to_string(example), outside.f(x));
  }
}

}  // namespace matrix
