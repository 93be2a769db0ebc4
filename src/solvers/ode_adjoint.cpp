// NOTE [The continuous adjoint]
// For y' = f(t, y, θ) and cotangents g of y at the times, λ(t) is the cotangent of y(t): λ' = −f_yᵀ λ, and each g is
// added to λ at its time; that of θ is the integral of f_θᵀ λ (L. S. Pontryagin et al., The Mathematical Theory of
// Optimal Processes, 1962; Y. Cao, S. Li, L. Petzold, R. Serban, SIAM J. Sci. Comput. 24 (2003) 1076–1089). It is
// solved from the last time to the first, together with y, which begins at each of the times with the value that odeint
// found there: nothing else of the way there is kept. That integral does not decide how long steps are (P. Kidger, R.
// T. Q. Chen, T. Lyons, "Hey, that's not an ODE": faster ODE adjoints via seminorms, 2021).
//
// It is an operator whose outputs are odeint's; f's captured tensors are operands. Forward mode goes through the steps.
#include "solvers/ode_adjoint.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <limits>

#include "core/level.h"
#include "core/tensor_lists.h"
#include "operators/lifting.h"
#include "solvers/captured.h"
#include "tower/compile.h"
#include "tower/loops.h"

namespace tower::solvers {
namespace {

using dynamic::Function;
using dynamic::Tensors;

// The operands are the tensors of y0, the times, and what f captured; the outputs those of y, t, and three reports.
struct AdjointOde {
  static constexpr size_t kReports = 3;

  dynamic::OdeFunction f;
  size_t count;  // of the state's tensors
  OdeOptions by_steps;

  Tensors state(const Tensors& list) const { return slice(list, 0, count); }
  static Tensors slice(const Tensors& list, size_t from, size_t to) {
    return {list.begin() + static_cast<std::ptrdiff_t>(from), list.begin() + static_cast<std::ptrdiff_t>(to)};
  }

  Tensors solve(const Tensors& own) const {
    const Tensors y0 = state(own);
    check_nothing_followed("odeint", "the right-hand side", f(own[count].select(0, 0), y0));
    auto found = dynamic::odeint(f, y0, own[count], by_steps);
    return joined(std::move(found.ys), {found.t, found.status, found.steps, found.rejected});
  }

  // Of y, λ and the integrals for `moving` operands: those have a tolerance without end.
  Tolerance of_adjoint(const Tolerance& given, size_t moving, const Tensor& like, double of_integrals) const {
    Tensors each = given.is_number() ? Tensors{at::full({}, given.number(), like.options())} : given.each();
    if (each.size() == 1) each.resize(count, each[0]);
    each = joined(each, each);
    each.resize(2 * count + moving, at::full({}, of_integrals, like.options()));
    return each;
  }

  // The cotangents of the operands that are asked for.
  Tensors pull_back(const Tensors& captured, const Tensors& operands, const Tensors& ys, const Tensors& cotangents,
                    const std::vector<bool>& needs) const {
    std::vector<size_t> moving;
    for (size_t k = count + 1; k < operands.size(); ++k)
      if (needs[k]) moving.push_back(k);
    const auto slope = [&](const Tensors& all, const Tensor& t, const Tensors& y) {
      return with_stand_ins(captured, all, [&](const Tensors&) { return f(t, y); });
    };
    const auto backwards = [&](const Tensor& t, const Tensors& s) {
      Tensors variables = state(s);
      for (const size_t k : moving) variables.push_back(operands[k]);
      const Function by_all = [&](const Tensors& at) {
        Tensors all = operands;
        for (size_t m = 0; m < moving.size(); ++m) all[moving[m]] = at[count + m];
        return slope(all, t, state(at));
      };
      const auto [rates, pullback] = dynamic::vjp(by_all, variables);
      Tensors result = rates;
      const Tensors pulled = pullback(slice(s, count, 2 * count));
      for (size_t k = 0; k < pulled.size(); ++k)
        result.push_back(pulled[k].defined() ? -pulled[k].to(rates[0].scalar_type()) : at::zeros_like(s[count + k]));
      return result;
    };
    OdeOptions options = by_steps;
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    options.atol = of_adjoint(by_steps.atol, moving.size(), ys[0], kInfinite);
    options.rtol = of_adjoint(by_steps.rtol, moving.size(), ys[0], 0);

    const Tensor& ts = operands[count];
    const int64_t times = ts.size(0);
    Tensors carry, inputs{ts.slice(0, 1).flip(0), ts.slice(0, 0, times - 1).flip(0)};
    for (const Tensor& y : ys) carry.push_back(at::zeros_like(y.select(0, 0)));
    for (const size_t k : moving) carry.push_back(at::zeros_like(operands[k], ys[0].options()));
    Tensors g = state(cotangents);
    for (size_t k = 0; k < count; ++k)
      if (!g[k].defined()) g[k] = at::zeros_like(ys[k]);
    for (const Tensors& list : {ys, g})
      for (const Tensor& each : list) inputs.push_back(each.slice(0, 1).flip(0));
    const auto product = [](const Tensors& a, const Tensors& b) {
      Tensor sum;
      for (size_t k = 0; k < a.size(); ++k) {
        const Tensor term = (a[k] * b[k]).sum();
        sum = sum.defined() ? sum + term : term;
      }
      return sum;
    };
    const auto step = [&](const Tensors& now, const Tensors& in) {
      const Tensors y = slice(in, 2, 2 + count), added = slice(in, 2 + count, 2 + 2 * count);
      Tensors start = joined(y, now);
      for (size_t k = 0; k < count; ++k) start[count + k] = start[count + k] + added[k];
      const Tensors found = dynamic::odeint(backwards, start, at::stack({in[0], in[1]}), options).ys;
      Tensors next;
      for (size_t k = count; k < found.size(); ++k) next.push_back(found[k].select(0, 1));
      return std::pair(next, Tensors{product(added, slope(operands, in[0], y))});
    };
    auto [last, by_times] = dynamic::scan(step, carry, inputs, {});

    Tensors result(operands.size());
    const Tensors y0 = state(operands);
    if (needs[count]) {
      const Tensor by_first = -product(state(last), slope(operands, ts.select(0, 0), y0));
      result[count] = at::cat({by_first.unsqueeze(0), by_times[0].flip(0)});
      if (const Tensor& by_end = cotangents[count]; by_end.defined())
        result[count] = result[count] + at::constant_pad_nd(by_end.unsqueeze(0), {times - 1, 0});
    }
    for (size_t k = 0; k < count; ++k)
      if (needs[k]) result[k] = last[k] + g[k].select(0, 0);
    for (size_t m = 0; m < moving.size(); ++m)
      result[moving[m]] = last[count + m].to(operands[moving[m]].scalar_type());
    return result;
  }

  HigherOrderRules rules(const Tensors& captured) const {
    HigherOrderRules rules;
    rules.name = "odeint";
    const Function forward =
        tower::with_captured([self = *this](const Tensors& own) { return self.solve(own); }, captured);
    // To the graph around it this is one call, which has kernels of its own.
    const Function run = tracing() ? Function(dynamic::compile(forward)) : forward;
    rules.forward = [run](const Tensors& operands, const Attributes&) { return run(operands); };
    rules.save = [count = count](const Tensors& operands, const Tensors& found, const Attributes&) {
      return Residuals{joined(operands, slice(found, 0, count)), {}};
    };
    rules.jvp = [self = *this, forward](const Residuals& saved, const Tensors& tangents, const Attributes&) {
      const auto values = [&](const Tensors& operands) { return slice(forward(operands), 0, self.count + 1); };
      const Tensors operands = slice(saved.tensors, 0, saved.tensors.size() - self.count);
      return joined(dynamic::jvp(values, operands, tangents).second, Tensors(kReports));
    };
    rules.vjp = [self = *this, captured](const Residuals& saved, const Tensors& cotangents,
                                         const std::vector<bool>& needs, const Attributes&) {
      const size_t operands = saved.tensors.size() - self.count;
      return self.pull_back(captured, slice(saved.tensors, 0, operands),
                            slice(saved.tensors, operands, saved.tensors.size()), cotangents, needs);
    };
    rules.lift = [self = *this, captured](const Tensor& another) { return self.rules(joined(captured, {another})); };
    return rules;
  }
};

}  // namespace

OdeSolution<Tensors> odeint_with_adjoint(const dynamic::OdeFunction& f, const Tensors& y0, const Tensor& ts,
                                         OdeOptions options) {
  options.adjoint = OdeAdjoint::steps;
  const dynamic::OdeFunction quiet = [f](const Tensor& t, const Tensors& y) {
    return without_effects("odeint", "the right-hand side", joined({t}, y), [&] { return f(t, y); });
  };
  const AdjointOde ode{quiet, y0.size(), options};
  Tensors captured;
  const Tensors found = call_lifting(ode.rules(captured), joined(y0, {ts.to(y0[0].options())}), {}, captured);
  const Tensor* reports = found.data() + y0.size();
  return {ode.state(found), reports[0], reports[1], reports[2], reports[3]};
}

}  // namespace tower::solvers
