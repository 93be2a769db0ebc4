// A tour. The loop is an operator, for a level above the one that looks for a pattern must not see the steps that are
// made at x. Its values are the loop's, and so are those of its derivatives, computed below all levels; what stands for
// them in a pattern is:
//
//   the loop        the states after any number of steps
//   its tangents    the same of the loop of states and their tangents
//   its pullback    the same of the loop back: of cotangents and gradients of what was captured, at any of the states
//
// What stands for higher derivatives is not written down: there all depends on all.
#include "control/undecided_loop.h"

#include <ATen/Functions.h>

#include "control/cond.h"
#include "operators/differentiate.h"
#include "operators/lifting.h"

namespace tower {

namespace {

using at::Tensor;
using dynamic::Function;
using dynamic::Tensors;

bool is_number(const Tensor& t) { return t.is_floating_point() || t.is_complex(); }

Tensors part(const Tensors& all, size_t first, size_t count) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

// Which tensors of a list there are, for operators that take those alone.
struct Given {
  explicit Given(const Tensors& list) {
    for (const Tensor& t : list) there.push_back(t.defined());
  }
  explicit Given(std::vector<bool> these) : there(std::move(these)) {}

  Tensors packed(const Tensors& list) const {
    Tensors result;
    for (size_t k = 0; k < there.size(); ++k)
      if (there[k]) result.push_back(list[k]);
    return result;
  }
  // From `all`, starting at `first`.
  Tensors unpacked(const Tensors& all, size_t first) const {
    Tensors result;
    for (const bool one : there) result.push_back(one ? all[first++] : Tensor());
    return result;
  }

  std::vector<bool> there;
};

void zeros_for_undefined(Tensors& list, const Tensors& like, const std::vector<bool>& which) {
  for (size_t k = 0; k < list.size(); ++k)
    if (which[k] && !list[k].defined()) list[k] = at::zeros_like(like[k]);
}

// Functions of all operands.
struct Loop {
  const char* name;
  Function run;
  Function step = nullptr;  // of the state and what was captured, gives the state; none: higher derivatives
  size_t states = 0;
};

HigherOrderRules rules_of(const Loop& loop);

Function pulled_back(const Function& f, size_t count, const Given& cotangents, const std::vector<bool>& needs) {
  return [=](const Tensors& all) {
    const Tensors operands = part(all, 0, count);
    Tensors found = pull_back_through(f, operands, cotangents.unpacked(all, count), needs);
    zeros_for_undefined(found, operands, needs);
    return Given(needs).packed(found);
  };
}

Function pushed_forward(const Function& f, size_t count, const Given& tangents, const Given& wanted) {
  return [=](const Tensors& all) {
    auto [outs, found] = dynamic::jvp(f, part(all, 0, count), tangents.unpacked(all, count));
    zeros_for_undefined(found, outs, wanted.there);
    return wanted.packed(found);
  };
}

std::vector<bool> numbers_in(const Tensors& list) {
  std::vector<bool> result;
  for (const Tensor& t : list) result.push_back(is_number(t));
  return result;
}

// The loop back, at any of the states.
Function stand_in_for_pullback(const Loop& loop, size_t count, const Given& cotangents,
                               const std::vector<bool>& needs) {
  return [=](const Tensors& all) -> Tensors {
    const Tensors start = part(all, 0, loop.states), rest = part(all, loop.states, count - loop.states);
    const auto with_rest = [&](Tensors state) {
      state.insert(state.end(), rest.begin(), rest.end());
      return state;
    };
    const Tensors anywhere =
        any_number_of_steps([&](const Tensors& state) { return loop.step(with_rest(state)); }, start);
    if (anywhere.empty()) return {};
    const Tensors operands = with_rest(anywhere);
    std::vector<bool> carried = needs;
    for (size_t k = 0; k < loop.states; ++k) carried[k] = is_number(start[k]);
    const Given carry(carried);
    Tensors gradients = cotangents.unpacked(all, count);
    gradients.resize(count);
    zeros_for_undefined(gradients, operands, carried);
    const auto back = [&](const Tensors& given) {
      const Tensors before = carry.unpacked(given, 0);
      Tensors now = pull_back_through(loop.step, operands, part(before, 0, loop.states), carried);
      zeros_for_undefined(now, operands, carried);
      for (size_t k = loop.states; k < count; ++k)
        if (carried[k]) now[k] = at::add(now[k], before[k]);
      return carry.packed(now);
    };
    const Tensors found = any_number_of_steps(back, carry.packed(gradients));
    return found.empty() ? Tensors{} : Given(needs).packed(carry.unpacked(found, 0));
  };
}

Function stand_in_for_tangents(const Loop& loop, size_t count, const Given& tangents, const Given& wanted) {
  return [=](const Tensors& all) -> Tensors {
    const Tensors start = part(all, 0, loop.states), rest = part(all, loop.states, count - loop.states);
    const Tensors directions = tangents.unpacked(all, count);
    Tensors both = start, of_states = part(directions, 0, loop.states);
    zeros_for_undefined(of_states, start, wanted.there);
    for (const Tensor& t : wanted.packed(of_states)) both.push_back(t);
    const auto step = [&](const Tensors& given) {
      Tensors operands = part(given, 0, loop.states), along = wanted.unpacked(given, loop.states);
      operands.insert(operands.end(), rest.begin(), rest.end());
      along.insert(along.end(), directions.begin() + static_cast<std::ptrdiff_t>(loop.states), directions.end());
      auto [outs, found] = dynamic::jvp(loop.step, operands, along);
      zeros_for_undefined(found, outs, wanted.there);
      for (const Tensor& t : wanted.packed(found)) outs.push_back(t);
      return outs;
    };
    const Tensors found = any_number_of_steps(step, both);
    return found.empty() ? Tensors{} : part(found, loop.states, found.size() - loop.states);
  };
}

// Of a rule for patterns.
auto without_attributes(Function f) {
  return [f = std::move(f)](const Tensors& operands, const Attributes&) { return f(operands); };
}

HigherOrderRules rules_of(const Loop& loop) {
  HigherOrderRules rules;
  rules.name = loop.name;
  rules.forward = without_attributes(loop.run);
  rules.save = [](const Tensors& operands, const Tensors& outs, const Attributes&) {
    return Residuals{operands, attributes(numbers_in(outs))};
  };
  rules.vjp = [loop](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                     const Attributes&) {
    const size_t count = saved.tensors.size();
    const Given given(cotangents);
    HigherOrderRules pullback = rules_of({loop.name, pulled_back(loop.run, count, given, needs)});
    if (loop.step) pullback.sparsity = without_attributes(stand_in_for_pullback(loop, count, given, needs));
    Tensors operands = saved.tensors;
    for (const Tensor& ct : given.packed(cotangents)) operands.push_back(ct);
    return Given(needs).unpacked(HigherOrderOperator(std::move(pullback))(operands), 0);
  };
  rules.jvp = [loop](const Residuals& saved, const Tensors& tangents, const Attributes&) {
    const size_t count = saved.tensors.size();
    const Given given(tangents), wanted(attributes_as<std::vector<bool>>(saved.other));
    HigherOrderRules pushed = rules_of({loop.name, pushed_forward(loop.run, count, given, wanted)});
    if (loop.step) pushed.sparsity = without_attributes(stand_in_for_tangents(loop, count, given, wanted));
    Tensors operands = saved.tensors;
    for (const Tensor& t : given.packed(tangents)) operands.push_back(t);
    return wanted.unpacked(HigherOrderOperator(std::move(pushed))(operands), 0);
  };
  if (loop.step)
    rules.sparsity = [loop](const Tensors& all, const Attributes&) {
      const Tensors rest = part(all, loop.states, all.size() - loop.states);
      const auto step = [&](Tensors state) {
        state.insert(state.end(), rest.begin(), rest.end());
        return loop.step(state);
      };
      return any_number_of_steps(step, part(all, 0, loop.states));
    };
  return rules;
}

HigherOrderRules rules_with_captured(const Loop& loop, const Tensors& captured) {
  HigherOrderRules rules =
      rules_of({loop.name, with_captured(loop.run, captured), with_captured(loop.step, captured), loop.states});
  rules.lift = [loop, captured](const Tensor& another) {
    Tensors more = captured;
    more.push_back(another);
    return rules_with_captured(loop, more);
  };
  return rules;
}

}  // namespace

Tensors run_undecided(const char* name, const Function& loop, const Function& step, const Tensors& state,
                      Tensors& captured) {
  Tensors operands = state;
  operands.insert(operands.end(), captured.begin(), captured.end());
  return call_lifting(rules_with_captured({name, loop, step, state.size()}, captured), operands, {}, captured);
}

}  // namespace tower
