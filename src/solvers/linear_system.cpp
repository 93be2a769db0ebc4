#include "solvers/linear_system.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "core/tensor_lists.h"
#include "operators/differentiate.h"
#include "operators/lifting.h"
#include "solvers/captured.h"
#include "solvers/vectors.h"

namespace tower::solvers {
namespace {

using dynamic::Function;
using dynamic::Tensors;

// The same system, of which the captured tensors are among what it depends on.
LinearSystem with_captured(const LinearSystem& system, const Tensors& captured) {
  if (captured.empty()) return system;
  const auto prepare = [&](const LinearSystem::Prepare& f) -> LinearSystem::Prepare {
    return [f, captured](const Tensors& all, const Tensors& like) -> Function {
      const Function prepared = with_stand_ins(captured, all, [&](const Tensors& given) { return f(given, like); });
      return [prepared, captured, all](const Tensors& v) {
        return with_stand_ins(captured, all, [&](const Tensors&) { return prepared(v); });
      };
    };
  };
  const auto solver = [&](const LinearSystem::Solver& f) -> LinearSystem::Solver {
    return [f, captured](const Tensors& all, const Function& apply, const Tensors& b) {
      return with_stand_ins(captured, all, [&](const Tensors& given) { return f(given, apply, b); });
    };
  };
  LinearSystem result = system;
  result.apply = prepare(system.apply);
  result.transposed = prepare(system.transposed);
  result.solve = solver(system.solve);
  result.solve_again = solver(system.solve_again);
  result.solve_transposed = solver(system.solve_transposed);
  return result;
}

LinearSystem of_derivatives(LinearSystem system) {
  system.solve = system.solve_again;
  system.users = false;
  return system;
}

Tensors first(const Tensors& all, size_t count) {
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)};
}
Tensors from(const Tensors& all, size_t start) { return {all.begin() + static_cast<std::ptrdiff_t>(start), all.end()}; }

// Operands: b, and what the system depends on. `unknowns`: the number of tensors of b.
HigherOrderRules rules_of(const LinearSystem& system, size_t unknowns, const Tensors& captured) {
  const LinearSystem s = with_captured(system, captured);
  HigherOrderRules rules;
  rules.name = s.name;
  rules.forward = [s, unknowns](const Tensors& operands, const Attributes&) {
    const Tensors b = first(operands, unknowns), given = from(operands, unknowns);
    return solve_once(s, b, given, s.apply(given, b));
  };
  rules.save = [unknowns](const Tensors& operands, const Tensors& outputs, const Attributes&) {
    return Residuals{joined(from(operands, unknowns), first(outputs, unknowns)), {}};
  };
  const auto parts = [unknowns](const Residuals& saved) {
    const size_t given = saved.tensors.size() - unknowns;
    return std::pair(first(saved.tensors, given), from(saved.tensors, given));
  };
  rules.jvp = [s, unknowns, parts](const Residuals& saved, const Tensors& tangents, const Attributes&) {
    const auto [given, x] = parts(saved);
    const Tensors directions = from(tangents, unknowns);
    Tensors rhs = first(tangents, unknowns);
    if (std::any_of(directions.begin(), directions.end(), [](const Tensor& t) { return t.defined(); })) {
      const Tensors change =
          dynamic::jvp([&, &x = x](const Tensors& at) { return s.apply(at, x)(x); }, given, directions).second;
      for (size_t k = 0; k < unknowns; ++k) rhs[k] = rhs[k].defined() ? rhs[k] - change[k] : -change[k];
    }
    for (size_t k = 0; k < unknowns; ++k)
      if (!rhs[k].defined()) rhs[k] = at::zeros_like(x[k]);
    Tensors found = solve(of_derivatives(s), rhs, given);
    for (size_t k = unknowns; k < found.size(); ++k) found[k] = Tensor();
    return found;
  };
  rules.vjp = [s, unknowns, parts](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                                   const Attributes&) {
    Tensors gradients(needs.size());
    Tensors rhs = first(cotangents, unknowns);
    if (std::none_of(rhs.begin(), rhs.end(), [](const Tensor& t) { return t.defined(); })) return gradients;
    const auto [given, x] = parts(saved);
    for (size_t k = 0; k < unknowns; ++k)
      if (!rhs[k].defined()) rhs[k] = at::zeros_like(x[k]);
    const Tensors found = solve(transposed(s), rhs, given);
    Tensors minus;
    for (size_t k = 0; k < unknowns; ++k) {
      if (needs[k]) gradients[k] = found[k];
      minus.push_back(-found[k]);
    }
    const std::vector<bool> of_given(needs.begin() + static_cast<std::ptrdiff_t>(unknowns), needs.end());
    if (std::none_of(of_given.begin(), of_given.end(), [](bool need) { return need; })) return gradients;
    const Tensors more =
        pull_back_through([&, &x = x](const Tensors& at) { return s.apply(at, x)(x); }, given, minus, of_given);
    for (size_t i = 0; i < more.size(); ++i) gradients[unknowns + i] = more[i];
    return gradients;
  };
  rules.lift = [=](const Tensor& another) { return rules_of(system, unknowns, joined(captured, {another})); };
  if (system.per_example) loop_over_examples(rules);
  return rules;
}

}  // namespace

Tensors solve_once(const LinearSystem& system, const Tensors& b, const Tensors& given, const Function& apply) {
  const Unknowns like(system.name, b);
  if (system.users) {
    const Tensors image = apply(b);
    like.check(image, "the function");
    check_nothing_followed(system.name, "the function", image);
  }
  Tensors found = system.solve(given, apply, b);
  if (found.size() < b.size()) like.check(found, "the solver");
  like.check(first(found, b.size()), "the solver");
  return found;
}

Tensors solve(const LinearSystem& system, const Tensors& b, const Tensors& given) {
  Tensors captured;
  return call_lifting(rules_of(system, b.size(), captured), joined(b, given), {}, captured);
}

LinearSystem transposed(LinearSystem system) {
  std::swap(system.apply, system.transposed);
  std::swap(system.solve_again, system.solve_transposed);
  return of_derivatives(std::move(system));
}

Function transposed(const Function& f, const Tensors& like) {
  Tensors zeros;
  for (const Tensor& t : like) zeros.push_back(at::zeros_like(t));
  return dynamic::vjp(f, zeros).second;
}

}  // namespace tower::solvers
