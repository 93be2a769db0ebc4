// What solvers do with the functions that users give them: run them one example at a time, and look after tensors that
// they captured.
#pragma once

#include <utility>
#include <vector>

#include "frontend/effects.h"
#include "tower/higher_order.h"
#include "tower/linear_solve.h"
#include "tower/substitution.h"

namespace tower::solvers {

/// `f()` where `captured` stand for the last of `all`; `f` is given the others.
template <class F>
auto with_stand_ins(const dynamic::Tensors& captured, const dynamic::Tensors& all, F&& f) {
  const auto first = all.end() - static_cast<std::ptrdiff_t>(captured.size());
  const dynamic::Tensors others(all.begin(), first);
  if (captured.empty()) return f(others);
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  for (size_t i = 0; i < captured.size(); ++i) pairs.emplace_back(captured[i], first[static_cast<std::ptrdiff_t>(i)]);
  const Substitution stand_in(pairs);
  return f(others);
}

/// `f()`, which evaluates `whose` function of the user at `operands`, as often as the solver and its derivatives need:
/// throws MutationError where it writes to what it did not make.
template <class F>
auto without_effects(const std::string& name, const char* whose, const dynamic::Tensors& operands, F&& f) {
  frontend::NoEffects guard(operands, [&]() -> frontend::NoEffects::Why {
    return {name + ": " + whose, "but it is evaluated as often as the solver and its derivatives need."};
  });
  auto result = f();
  guard.check_operands();
  return result;
}
/// The same of a function of the user's, for as long as it is called.
dynamic::Function without_effects(const std::string& name, const char* whose, dynamic::Function f);
/// The same of all functions among the options.
IterativeOptions<dynamic::Tensors> without_effects(const std::string& name, IterativeOptions<dynamic::Tensors> options);
LinearSolveOptions<dynamic::Tensors> without_effects(const std::string& name,
                                                     LinearSolveOptions<dynamic::Tensors> options);

/// Throws UnsupportedError where LibTorch's autograd follows what a function gave of operands that it does not follow:
/// it captured a tensor whose gradient would be lost.
void check_nothing_followed(const std::string& name, const char* whose, const dynamic::Tensors& values);

/// A vmap rule that calls the operator of these rules once for each example.
void loop_over_examples(HigherOrderRules& rules);

}  // namespace tower::solvers
