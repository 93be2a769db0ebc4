// Implicit functions as higher-order operators. With r(x, θ) = 0 at the solution, r_x dx = −r_θ dθ: forward mode solves
// with r_x, reverse mode with its transposed, and both are linear systems that depend on x and θ
// (solvers/linear_system.h), so that their derivatives are, too.
#include "tower/implicit.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "operators/differentiate.h"
#include "operators/lifting.h"
#include "solvers/captured.h"
#include "solvers/method.h"
#include "solvers/vectors.h"

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

// The residual's derivative by x, a system that depends on x and params.
LinearSystem linearization(const Implicit& implicit, size_t unknowns) {
  const auto at_solution = [residual = implicit.residual, unknowns](const Tensors& given) {
    const auto [x, params] = split(given, unknowns);
    const Function f = [residual, like = x, params = params](const Tensors& real) {
      return as_real(residual(like_these(real, like), params));
    };
    return std::pair(f, as_real(x));
  };
  LinearSolveOptions<Tensors> options = implicit.options.linear;
  options.iteration.start.reset();
  const auto apply = [at_solution](const Tensors& given, const Tensors&) {
    const auto [f, x] = at_solution(given);
    return dynamic::linearize(f, x).second;
  };
  const auto transposed = [at_solution](const Tensors& given, const Tensors&) {
    const auto [f, x] = at_solution(given);
    return dynamic::vjp(f, x).second;
  };
  LinearSystem system = solvers::linear_system(implicit.name, apply, transposed, options, /*users=*/false);
  if (!implicit.options.preconditioner) return system;
  for (const auto solver : {&LinearSystem::solve, &LinearSystem::solve_again, &LinearSystem::solve_transposed})
    system.*solver = [name = implicit.name, options, make = implicit.options.preconditioner, unknowns, solver](
                         const Tensors& given, const Function& f, const Tensors& b) {
      const auto [x, params] = split(given, unknowns);
      LinearSolveOptions<Tensors> own = options;
      own.iteration.preconditioner = make(x, params);
      return (solvers::linear_system(name, {}, {}, own, /*users=*/false).*solver)(given, f, b);
    };
  return system;
}

HigherOrderRules rules_of(const Implicit& implicit, const Tensors& captured) {
  const Implicit s = with_captured(implicit, captured);
  HigherOrderRules rules;
  rules.name = s.name;
  rules.forward = [s](const Tensors& params, const Attributes&) {
    const Tensors x = s.solver(params);
    const solvers::Unknowns like(s.name, as_real(x));
    // Here the residual shows what it captured: the solver need not have called it.
    const Tensors at_solution = s.residual(x, params);
    like.check(as_real(at_solution), "the residual");
    solvers::check_nothing_followed(s.name, "the residual", at_solution);
    return x;
  };
  const auto parts = [](const Residuals& saved) { return split(saved.tensors, attributes_as<size_t>(saved.other)); };
  rules.save = [](const Tensors& params, const Tensors& x, const Attributes&) {
    Tensors all = x;
    all.insert(all.end(), params.begin(), params.end());
    return Residuals{std::move(all), attributes(x.size())};
  };
  rules.jvp = [s, parts](const Residuals& saved, const Tensors& tangents, const Attributes&) {
    const auto [x, params] = parts(saved);
    const auto by_params = [&, &x = x](const Tensors& at) { return as_real(s.residual(x, at)); };
    Tensors rhs = dynamic::jvp(by_params, params, tangents).second;
    for (Tensor& t : rhs) t = -t;
    return like_these(solvers::solve(linearization(s, x.size()), rhs, saved.tensors), x);
  };
  rules.vjp = [s, parts](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                         const Attributes&) {
    const auto [x, params] = parts(saved);
    if (std::none_of(cotangents.begin(), cotangents.end(), [](const Tensor& t) { return t.defined(); }))
      return Tensors(needs.size());
    Tensors rhs = cotangents;
    for (size_t k = 0; k < rhs.size(); ++k)
      if (!rhs[k].defined()) rhs[k] = at::zeros_like(x[k]);
    Tensors adjoint = solvers::solve(solvers::transposed(linearization(s, x.size())), as_real(rhs), saved.tensors);
    for (Tensor& t : adjoint) t = -t;
    const auto by_params = [&, &x = x](const Tensors& at) { return as_real(s.residual(x, at)); };
    return pull_back_through(by_params, params, adjoint, needs);
  };
  rules.lift = [=](const Tensor& another) {
    Tensors more = captured;
    more.push_back(another);
    return rules_of(implicit, more);
  };
  if (implicit.options.per_example) solvers::loop_over_examples(rules);
  return rules;
}

Tensors call(const Implicit& implicit, const Tensors& params) {
  Tensors captured;
  return call_lifting(rules_of(implicit, captured), params, {}, captured);
}

}  // namespace

Tensors dynamic::implicit_root(const Residual& residual, const Function& solver, const Tensors& params,
                               const ImplicitOptions& options) {
  return call({"implicit_root", residual, solver, options}, params);
}

Tensors dynamic::fixed_point(const Residual& map, const Function& solver, const Tensors& params,
                             const ImplicitOptions& options) {
  const Residual residual = [map](const Tensors& x, const Tensors& given) {
    const Tensors image = map(x, given);
    solvers::Unknowns("fixed_point", as_real(x)).check(as_real(image), "the map");
    Tensors difference;
    for (size_t k = 0; k < x.size(); ++k) difference.push_back(x[k] - image[k]);
    return difference;
  };
  return call({"fixed_point", residual, solver, options}, params);
}

}  // namespace tower
