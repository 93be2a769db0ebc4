// Implicit functions as higher-order operators. With r(x, θ) = 0 at the solution, r_x dx = −r_θ dθ: forward mode solves
// with r_x, reverse mode with its transposed, and both are linear systems that depend on x and θ
// (solvers/linear_system.h), so that their derivatives are, too. Forward mode is an operator of its own, for one
// linearization of r gives both of its parts.
#include "solvers/implicit.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <limits>

#include "core/level.h"
#include "core/tensor_lists.h"
#include "frontend/autocast.h"
#include "operators/differentiate.h"
#include "operators/lifting.h"
#include "solvers/captured.h"
#include "solvers/method.h"
#include "solvers/vectors.h"
#include "tower/compile.h"

namespace tower {
namespace {

using dynamic::Function;
using dynamic::Tensors;
using solvers::LinearSystem;

struct Implicit {
  std::string name;
  dynamic::Residual residual;
  Function solver;
  ImplicitOptions options;
  size_t reports = 0;     // that the solver gives behind x: solvers/implicit.h
  bool compiled = false;  // the solver is a function of operators alone, and this a call of a compiled function

  // How many tensors say whether x is a root: the first of the reports.
  size_t flags() const { return reports > 0 ? 1 : 0; }
};

Implicit with_captured(const Implicit& implicit, const Tensors& captured) {
  if (captured.empty()) return implicit;
  Implicit result = implicit;
  result.residual = [f = implicit.residual, captured](const Tensors& x, const Tensors& all) {
    return solvers::with_stand_ins(captured, all, [&](const Tensors& params) { return f(x, params); });
  };
  result.solver = [f = implicit.solver, captured](const Tensors& all) {
    return solvers::with_stand_ins(captured, all, f);
  };
  if (implicit.options.preconditioner)
    result.options.preconditioner = [f = implicit.options.preconditioner, captured](const Tensors& x,
                                                                                    const Tensors& all) -> Function {
      const Function made = solvers::with_stand_ins(captured, all, [&](const Tensors& params) { return f(x, params); });
      return [made, captured, all](const Tensors& v) {
        return solvers::with_stand_ins(captured, all, [&](const Tensors&) { return made(v); });
      };
    };
  return result;
}

// Complex tensors as pairs of real numbers, in which every derivative is linear.
Tensors as_real(Tensors list) {
  for (Tensor& t : list)
    if (t.defined() && t.is_complex()) t = at::view_as_real(t);
  return list;
}
Tensors like_these(Tensors list, const Tensors& these) {
  for (size_t k = 0; k < list.size(); ++k)
    if (these[k].is_complex()) list[k] = at::complex(list[k].select(-1, 0), list[k].select(-1, 1));
  return list;
}

std::pair<Tensors, Tensors> split(const Tensors& all, size_t count) {
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(count);
  return {Tensors(all.begin(), middle), Tensors(middle, all.end())};
}

// NOTE [Where there is no root]
// Of a solver with reports, some examples of a vmap may have found no root: derivatives there are nan, and the system,
// which may be singular or not finite, must not keep the others from theirs. Its matrix is taken to be one there, and
// its right-hand side zero. Whether x is a root is a bool behind the parameters in what the system depends on.
Tensors where_root(const Tensors& is_root, Tensors list, const Tensors& otherwise) {
  if (!is_root.empty())
    for (size_t k = 0; k < list.size(); ++k) list[k] = at::where(is_root[0], list[k], otherwise[k]);
  return list;
}
Tensors where_root(const Tensors& is_root, Tensors list, double otherwise) {
  if (!is_root.empty())
    for (Tensor& t : list)
      if (t.defined()) t = at::where(is_root[0], t, otherwise);
  return list;
}
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The residual's derivative by x, a system that depends on x and params.
LinearSystem linearization(const Implicit& implicit, size_t unknowns) {
  struct AtSolution {
    Function residual;
    Tensors x, is_root;

    Function where_root(const Function& derivative) const {
      if (is_root.empty()) return derivative;
      return [derivative, is_root = is_root](const Tensors& v) { return tower::where_root(is_root, derivative(v), v); };
    }
  };
  const auto at_solution = [implicit, unknowns](const Tensors& given) {
    const auto [x, behind] = split(given, unknowns);
    const auto [params, is_root] = split(behind, behind.size() - implicit.flags());
    const Function f = [residual = implicit.residual, like = x, params = params](const Tensors& real) {
      return as_real(residual(like_these(real, like), params));
    };
    return AtSolution{f, as_real(x), is_root};
  };
  LinearSolveOptions<Tensors> options = implicit.options.linear;
  options.iteration.start.reset();
  const auto apply = [at_solution](const Tensors& given, const Tensors&) {
    const AtSolution at = at_solution(given);
    return at.where_root(dynamic::linearize(at.residual, at.x).second);
  };
  const auto transposed = [at_solution](const Tensors& given, const Tensors&) {
    const AtSolution at = at_solution(given);
    return at.where_root(dynamic::vjp(at.residual, at.x).second);
  };
  LinearSystem system = solvers::linear_system(implicit.name, apply, transposed, options, /*users=*/false);
  if (!implicit.options.preconditioner) return system;
  for (const auto solver : {&LinearSystem::solve, &LinearSystem::solve_again, &LinearSystem::solve_transposed})
    system.*solver = [name = implicit.name, options, make = implicit.options.preconditioner, unknowns, solver,
                      flags = implicit.flags()](const Tensors& given, const Function& f, const Tensors& b) {
      const auto [x, behind] = split(given, unknowns);
      LinearSolveOptions<Tensors> own = options;
      own.iteration.preconditioner = make(x, split(behind, behind.size() - flags).first);
      return (solvers::linear_system(name, {}, {}, own, /*users=*/false).*solver)(given, f, b);
    };
  return system;
}

Tensors negated(Tensors list) {
  for (Tensor& t : list) t = -t;
  return list;
}

// Forward mode: dx = −r_x⁻¹ r_θ dθ, of x, params, whether x is a root, and the tangents of those params that `moving`
// says.
struct ForwardMode {
  Implicit implicit;
  size_t unknowns;
  std::vector<bool> moving;

  struct Parts {
    Tensors given, x, params, is_root, tangents;
  };
  Parts parts(const Tensors& operands) const {
    auto [given, tangents] = split(operands, unknowns + moving.size() + implicit.flags());
    auto [x, behind] = split(given, unknowns);
    auto [params, is_root] = split(behind, moving.size());
    return {std::move(given), std::move(x), std::move(params), std::move(is_root), std::move(tangents)};
  }

  // One linearization of the residual by both: what is evaluated where nothing differentiates it.
  Tensors at_once(const Tensors& operands) const {
    const Parts p = parts(operands);
    Tensors variables = as_real(p.x);
    for (size_t i = 0; i < moving.size(); ++i)
      if (moving[i]) variables.push_back(p.params[i]);
    const Function residual = [&](const Tensors& at) {
      Tensors params = p.params;
      for (size_t i = 0, k = unknowns; i < moving.size(); ++i)
        if (moving[i]) params[i] = at[k++];
      return as_real(implicit.residual(like_these(split(at, unknowns).first, p.x), params));
    };
    const Function push = dynamic::linearize(residual, variables).second;
    const Function apply = [&](const Tensors& v) {
      return where_root(p.is_root, push(joined(v, Tensors(p.tangents.size()))), v);
    };
    const Tensors rhs = where_root(p.is_root, negated(push(joined(Tensors(unknowns), p.tangents))), 0);
    return like_these(solvers::solve_once(linearization(implicit, unknowns), rhs, p.given, apply), p.x);
  }

  // The same by operators that have all derivatives.
  Tensors by_parts(const Tensors& operands) const {
    const Parts p = parts(operands);
    Tensors directions(moving.size());
    for (size_t i = 0, k = 0; i < moving.size(); ++i)
      if (moving[i]) directions[i] = p.tangents[k++];
    const auto by_params = [&](const Tensors& at) { return as_real(implicit.residual(p.x, at)); };
    const Tensors rhs = where_root(p.is_root, negated(dynamic::jvp(by_params, p.params, directions).second), 0);
    return like_these(solvers::solve(linearization(implicit, unknowns), rhs, p.given), p.x);
  }

  HigherOrderRules rules(const Tensors& captured) const {
    HigherOrderRules rules;
    rules.name = implicit.name;
    const auto lifted = [&](Tensors (ForwardMode::*f)(const Tensors&) const) {
      return tower::with_captured([self = *this, f](const Tensors& all) { return (self.*f)(all); }, captured);
    };
    rules.forward = [f = lifted(&ForwardMode::at_once)](const Tensors& operands, const Attributes&) {
      return f(operands);
    };
    const Function f = lifted(&ForwardMode::by_parts);
    rules.save = [](const Tensors& operands, const Tensors&, const Attributes&) { return Residuals{operands, {}}; };
    rules.jvp = [f](const Residuals& saved, const Tensors& tangents, const Attributes&) {
      return dynamic::jvp(f, saved.tensors, tangents).second;
    };
    rules.vjp = [f](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                    const Attributes&) { return pull_back_through(f, saved.tensors, cotangents, needs); };
    rules.lift = [self = *this, captured](const Tensor& another) { return self.rules(joined(captured, {another})); };
    if (implicit.options.linear.per_example) solvers::loop_over_examples(rules);
    return rules;
  }

  Tensors operator()(const Tensors& operands) const {
    Tensors captured;
    return call_lifting(rules(captured), operands, {}, captured);
  }
};

HigherOrderRules rules_of(const Implicit& implicit, const Tensors& captured) {
  const Implicit s = with_captured(implicit, captured);
  Function solve = [s](const Tensors& params) {
    const Tensors found = s.solver(params), x = split(found, found.size() - s.reports).first;
    const solvers::Unknowns like(s.name, as_real(x));
    // Here the residual shows what it captured: the solver need not have called it.
    const Tensors at_solution = s.residual(x, params);
    like.check(as_real(at_solution), "the residual");
    solvers::check_nothing_followed(s.name, "the residual", at_solution);
    return found;
  };
  // To the graph around it this is one call, which has kernels of its own.
  if (s.compiled) solve = dynamic::compile(solve);
  HigherOrderRules rules;
  rules.name = s.name;
  rules.forward = [solve](const Tensors& params, const Attributes&) { return solve(params); };
  // x and params, and where there are reports whether x is a root.
  rules.save = [s](const Tensors& params, const Tensors& found, const Attributes&) {
    const auto [x, reports] = split(found, found.size() - s.reports);
    const Tensors is_root = split(reports, s.flags()).first;
    return Residuals{joined(joined(x, params), is_root), attributes(x.size())};
  };
  const auto is_root = [s](const Residuals& saved) {
    return split(saved.tensors, saved.tensors.size() - s.flags()).second;
  };
  rules.jvp = [s, is_root](const Residuals& saved, const Tensors& tangents, const Attributes&) {
    std::vector<bool> moving;
    Tensors operands = saved.tensors;
    for (const Tensor& t : tangents) {
      moving.push_back(t.defined());
      if (t.defined()) operands.push_back(t);
    }
    const Tensors by_params = ForwardMode{s, attributes_as<size_t>(saved.other), moving}(operands);
    return joined(where_root(is_root(saved), by_params, kNan), Tensors(s.reports));
  };
  rules.vjp = [s, is_root](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                           const Attributes&) {
    const auto [x, behind] = split(saved.tensors, attributes_as<size_t>(saved.other));
    const Tensors params = split(behind, behind.size() - s.flags()).first;
    Tensors rhs = split(cotangents, x.size()).first;
    if (std::none_of(rhs.begin(), rhs.end(), [](const Tensor& t) { return t.defined(); })) return Tensors(needs.size());
    for (size_t k = 0; k < rhs.size(); ++k)
      if (!rhs[k].defined()) rhs[k] = at::zeros_like(x[k]);
    rhs = as_real(where_root(is_root(saved), std::move(rhs), 0));
    const Tensors adjoint = solvers::solve(solvers::transposed(linearization(s, x.size())), rhs, saved.tensors);
    const auto by_params = [&, &x = x](const Tensors& at) { return as_real(s.residual(x, at)); };
    return where_root(is_root(saved), pull_back_through(by_params, params, negated(adjoint), needs), kNan);
  };
  rules.lift = [=](const Tensor& another) { return rules_of(implicit, joined(captured, {another})); };
  if (implicit.options.per_example) solvers::loop_over_examples(rules);
  return rules;
}

// None of its functions may be seen to be evaluated once more.
Implicit without_effects(const Implicit& implicit, const char* residual) {
  Implicit result = implicit;
  const std::string& name = implicit.name;
  result.residual = [name, residual, f = implicit.residual](const Tensors& x, const Tensors& params) {
    return solvers::without_effects(name, residual, joined(x, params), [&] { return f(x, params); });
  };
  const bool is_own = implicit.reports > 0;  // and evaluates the user's function
  result.solver = solvers::without_effects(name, is_own ? residual : "the solver", implicit.solver);
  result.options.linear = solvers::without_effects(name, implicit.options.linear);
  if (implicit.options.preconditioner)
    result.options.preconditioner = [name, f = implicit.options.preconditioner](const Tensors& x,
                                                                                const Tensors& params) -> Function {
      const char* whose = "the preconditioner";
      return solvers::without_effects(
          name, whose, solvers::without_effects(name, whose, joined(x, params), [&] { return f(x, params); }));
    };
  return result;
}

Tensors call(const Implicit& given, const char* residual, const Tensors& params) {
  const Implicit implicit = without_effects(given, residual);
  Tensors captured;
  return call_lifting(rules_of(implicit, captured), params, {}, captured);
}

}  // namespace

Tensors dynamic::implicit_root(const Residual& residual, const Function& solver, const Tensors& params,
                               const ImplicitOptions& options) {
  return call({"implicit_root", frontend::under_this_autocast(residual), solver, options}, "the residual", params);
}

Tensors solvers::implicit_root_with_reports(std::string name, const dynamic::Residual& residual, const Function& solver,
                                            const Tensors& params, size_t reports, const ImplicitOptions& options) {
  return call(
      {std::move(name), frontend::under_this_autocast(residual), solver, options, reports, tracing() != nullptr},
      "the function", params);
}

Tensors dynamic::fixed_point(const Residual& map, const Function& solver, const Tensors& params,
                             const ImplicitOptions& options) {
  const Residual residual = [map = frontend::under_this_autocast(map)](const Tensors& x, const Tensors& given) {
    const Tensors image = map(x, given);
    solvers::Unknowns("fixed_point", as_real(x)).check(as_real(image), "the map");
    Tensors difference;
    for (size_t k = 0; k < x.size(); ++k) difference.push_back(x[k] - image[k]);
    return difference;
  };
  return call({"fixed_point", residual, solver, options}, "the map", params);
}

}  // namespace tower
