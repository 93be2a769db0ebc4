// Loops. Where examples agree on the predicate, a loop is its steps, one after the other, as ordinary code: what holds
// for transforms of steps holds for it. Where they differ, each step is a branch that idle examples do not take
// (control/cond.h), and so nothing of it gets into their values or derivatives.
#include "tower/loops.h"

#include <ATen/Functions.h>

#include "control/checkpoint.h"
#include "control/cond.h"
#include "control/kept_calls.h"
#include "control/loops.h"
#include "control/repeated_draws.h"
#include "control/revolve.h"
#include "control/speech.h"
#include "control/traced.h"
#include "control/undecided_loop.h"
#include "core/bind.h"
#include "frontend/autocast.h"
#include "frontend/effects.h"
#include "operators/lifting.h"

namespace tower {

Traced traced{};

namespace {

using detail::NameTensor;
using dynamic::Function;
using dynamic::Predicate;
using dynamic::Tensors;

// How many of the examples a condition holds for, of all processes that they are spread over: so these go through a
// loop together. One of no levels at all is one example.
struct Count {
  int64_t on, of;
  bool all_here;
};

Count count(const Tensor& condition) {
  const Tensor values = value_under_all_levels(condition);
  DispatchGuard keys;
  keys.see_every_operator(false);
  const int64_t on = values.numel() == 1 ? values.item<bool>() : values.sum().item<int64_t>();
  const auto everywhere = speech::in_all_processes(condition, {on, values.numel()});
  return {everywhere[0], everywhere[1], everywhere[1] == values.numel()};
}

// A while loop on its way.
struct Progress {
  Tensors state;
  Tensor active = {};  // examples that have not ended; undefined: all
};

struct While {
  Predicate predicate;
  Function body;
  StateLike like;
  WhileOptions options;
  bool report;
  // NOTE [Examples left out]
  // A step for those that go on alone is one in which the others cannot be heard. So where examples have a name by
  // which they may speak, the first step that some do not make is made for all, and shows whether they do.
  std::shared_ptr<std::optional<bool>> speaks = std::make_shared<std::optional<bool>>();

  Tensor holds(const Tensors& state) const {
    const Tensor t = predicate(state);
    if (!t.defined() || t.numel() != 1 || t.scalar_type() != at::kBool)
      throw ArgumentError("while_loop: the predicate must be a bool of one element, but it is " + describe(t) +
                          ". Compare, and reduce with any() or all().");
    return t.dim() == 0 ? t : t.reshape({});
  }

  Tensors step(const Tensors& state) const {
    Tensors next = body(state);
    like.check(next);
    return next;
  }

  // Idle examples are computed along with the others. Where an operator refuses, it may have been for numbers of theirs
  // (an integer divided by zero, an index out of range), and they are left out. In several processes not: the others
  // would not make the step again; nor where examples may speak to each other, since those left out cannot be heard.
  Tensors step_of_some(const Tensor& active, const Tensors& state, Tensors& captured, bool all_here) const {
    try {
      return step_of_some(active, state, captured, options.compact);
    } catch (const c10::Error&) {
      if (!all_here || tracing() || speech::differs_along_a_named_axis(active)) throw;
      return step_of_some(active, state, captured, 1.0);
    }
  }

  Tensors step_of_some(const Tensor& active, const Tensors& state, Tensors& captured, double compact) const {
    const bool may_speak = compact > 0 && speech::differs_along_a_named_axis(active);
    const Branches branches{[self = *this](const Tensors& given) { return self.step(given); },
                            [](const Tensors& given) { return given; },
                            "while_loop",
                            "the body",
                            "no step",
                            may_speak && speaks->value_or(true) ? 0 : compact};
    if (branches.compact == 0 && !may_speak && !may_be_recorded(state)) return choose(branches, active, state);
    Tensors operands{active};
    operands.insert(operands.end(), state.begin(), state.end());
    const speech::Listener listener;
    Tensors next = call_lifting(branch_rules(branches, captured), operands, branch_attributes(), captured);
    if (may_speak) *speaks = speaks->value_or(false) || listener.asked();
    return next;
  }

  // Who goes on.
  Tensor still_active(const Progress& at) const {
    if (!at.active.defined()) return holds(at.state);
    frontend::NoEffects guard(at.state, []() -> frontend::NoEffects::Why {
      return {"while_loop: the predicate", "but some examples have ended, and it is asked for all of them."};
    });
    const Tensor now = holds(at.state);
    guard.check_operands();
    return at::logical_and(at.active, now);
  }

  // One more step than those that were made. False where there is none to be made.
  bool advance(Progress& at, int64_t made, Tensors& captured) const {
    const Tensor now = still_active(at);
    if (is_undecided(now)) {
      take_any_number_of_steps(at, made, captured);
      return false;
    }
    const Count examples = count(now);
    if (examples.on == 0) return false;
    if (examples.on == examples.of) {
      at.state = step(at.state);
    } else {
      at.active = now;
      at.state = step_of_some(now, at.state, captured, examples.all_here);
    }
    return true;
  }

  void take_any_number_of_steps(Progress& at, int64_t made, Tensors& captured) const {
    While others = *this;
    if (options.max_steps) others.options.max_steps = *options.max_steps - made;
    const auto rest = [others](const Tensors& state) {
      Tensors known;
      return others.run(state, known).first;
    };
    const auto one = [self = *this](const Tensors& state) { return self.step(state); };
    const Tensors last = run_undecided(like.loop(), rest, one, at.state, captured);
    for (size_t k = 0; k < last.size(); ++k)
      at.state[k] = at.active.defined() ? at::where(at.active, last[k], at.state[k]) : last[k];
  }

  Tensors from(const Tensors& start) const {
    const DecidedByValues decided;
    if (tracing())
      return traced.loop([this](const Tensors& state) { return holds(state); },
                         [this](const Tensors& state) { return step(state); }, start, options, !report);
    Tensors captured;
    return options.checkpoints.is_all() ? run(start, captured).first : run_with(options.checkpoints, start);
  }

  // The last state, and after how many steps.
  std::pair<Tensors, int64_t> run(const Tensors& start, Tensors& captured) const {
    Progress at{start};
    int64_t steps = 0;
    for (; !options.max_steps || steps < *options.max_steps; ++steps)
      if (!advance(at, steps, captured)) return {std::move(at.state), steps};
    if (!report) check_ended(at);
    return {std::move(at.state), steps};
  }

  void check_ended(const Progress& at) const {
    const Count examples = count(still_active(at));
    if (examples.on == 0) return;
    throw MaxStepsError(
        "while_loop: after " + std::to_string(*options.max_steps) + " steps (max_steps) the predicate still holds" +
        (examples.of == 1
             ? ""
             : " for " + std::to_string(examples.on) + " of " + std::to_string(examples.of) + " examples") +
        ". Allow more, or use try_while_loop, which says of each example whether it ended.");
  }

  // The first evaluation, of values, finds out how many steps there are.
  Tensors run_with(Checkpoints checkpoints, const Tensors& start) const {
    const auto steps = std::make_shared<int64_t>(0);
    const auto evaluate = [self = *this, checkpoints, steps](const Tensors& given, Tensors& captured) {
      if (*steps > 0 && may_be_recorded(given))
        return self.run_again(*steps, checkpoints.number_for(*steps), given, captured);
      auto [state, made] = self.run(given, captured);
      *steps = std::max(*steps, made);
      return state;
    };
    Tensors captured;
    return evaluate_without_record("while_loop", evaluate, start, captured);
  }

  Tensors run_again(int64_t steps, int64_t checkpoints, Tensors state, Tensors& captured) const {
    const auto step = [self = *this](int64_t made, const Tensors& operands, Tensors& known) {
      Progress at{Tensors(operands.begin(), operands.end() - 1), operands.back()};
      self.advance(at, made, known);
      at.state.push_back(at.active);
      return at.state;
    };
    state.push_back(at::ones({}, state[0].options().dtype(at::kBool)));
    const KnownSteps range{"while_loop", step, state.size()};
    Tensors last = range.run(0, steps, checkpoints, state, captured);
    last.pop_back();
    return last;
  }
};

// All of the steps, of which a tape keeps as many states as it is allowed.
Tensors run_all(const KnownSteps& steps, int64_t first, int64_t count, Checkpoints checkpoints,
                const Tensors& operands) {
  if (tracing())
    if (auto results = traced.known_steps(steps, first, count, operands)) return *std::move(results);
  const bool keep_all = checkpoints.is_all() || !may_be_recorded(operands);
  Tensors captured;
  return steps.run(first, count, keep_all ? std::nullopt : std::optional(checkpoints.number_for(count)), operands,
                   captured);
}

std::string leaf(size_t index) { return "tensor " + std::to_string(index) + " of the state"; }

}  // namespace

Tensors run_while(const Predicate& predicate, const Function& step, const Tensors& start, const WhileOptions& options,
                  bool must_end) {
  return While{predicate, step, {"while_loop", start, leaf}, options, !must_end}.from(start);
}

namespace detail {

NameTensor names_of_leaves(const char* what, TreeShape shape) {
  return [what, shape = std::move(shape)](size_t index) {
    return what + name_of_tensor({shape}, index).substr(std::string_view("argument 0").size());
  };
}

Tensor as_predicate(bool value) { return at::scalar_tensor(value, at::kBool); }

void refuse_static_change(const char* loop, const char* what) {
  throw ArgumentError(std::string(loop) + ": a step changed a static part of the " + what +
                      " (a number, a string, a key, a size, whether a tensor is there). Static parts are the same in "
                      "all steps: make what changes a tensor.");
}

Tensors run_while(const Predicate& given_predicate, const Function& given_body, const Tensors& start,
                  const WhileOptions& options, bool report, const NameTensor& name) {
  if (options.max_steps && *options.max_steps < 0)
    throw ArgumentError("while_loop: max_steps is " + std::to_string(*options.max_steps) +
                        "; it must not be negative.");
  if (!(options.compact >= 0 && options.compact <= 1))
    throw ArgumentError("while_loop: compact is " + std::to_string(options.compact) +
                        "; it is a part of the batch, from 0 to 1.");
  const Predicate predicate = frontend::under_this_autocast(given_predicate);
  const Function body = frontend::under_this_autocast(given_body);
  if (!report) return While{predicate, body, {"while_loop", start, name}, options, false}.from(start);
  // The number of steps is a state like others, which idle examples keep.
  const auto without_steps = [](const Tensors& all) { return Tensors(all.begin(), all.end() - 1); };
  const Predicate holds = [predicate, without_steps](const Tensors& all) { return predicate(without_steps(all)); };
  const Function step = [body, without_steps](const Tensors& all) {
    Tensors next = body(without_steps(all));
    next.push_back(at::add(all.back(), 1));
    return next;
  };
  const NameTensor name_or_steps = [name, last = start.size()](size_t k) { return k < last ? name(k) : "steps"; };
  Tensors from = start;
  from.push_back(at::zeros({}, start.empty() ? at::TensorOptions(at::kLong) : start[0].options().dtype(at::kLong)));
  const While loop{holds, step, {"try_while_loop", from, name_or_steps}, options, true};
  Tensors last = loop.from(from);
  last.insert(last.end() - 1, at::logical_not(loop.holds(last)));
  return last;
}

Tensors run_fori(int64_t lower, int64_t upper, const dynamic::ForiStep& body, const Tensors& start,
                 const ForiOptions& options, const NameTensor& name) {
  if (lower >= upper) return start;
  const auto step = [body = frontend::under_this_autocast(body), like = StateLike("fori_loop", start, name)](
                        int64_t index, const Tensors& state, Tensors&) {
    Tensors next = body(index, state);
    like.check(next);
    return next;
  };
  const KnownSteps steps{"fori_loop", step, start.size(), /*reverse=*/false, /*by_index=*/true};
  return run_all(steps, lower, upper - lower, options.checkpoints, start);
}

namespace {

int64_t length_of(const Tensors& inputs, const ScanOptions& options) {
  std::optional<int64_t> length = options.length;
  if (length && *length < 0)
    throw ArgumentError("scan: length is " + std::to_string(*length) + "; it must not be negative.");
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k].defined() || inputs[k].dim() == 0)
      throw ArgumentError("scan: input " + std::to_string(k) + " is " + describe(inputs[k]) +
                          ", but inputs are stacked along their first dimension, with an element for each step.");
    if (!length) length = inputs[k].size(0);
    if (*length != inputs[k].size(0))
      throw ArgumentError("scan: input " + std::to_string(k) + " is " + describe(inputs[k]) + ", but there are " +
                          std::to_string(*length) + " steps. All inputs and length must say the same.");
  }
  if (!length) throw ArgumentError("scan: there are no inputs; say with length how many steps there are.");
  return *length;
}

// Nothing is known of the outputs but by a step: one with zeros, which leaves no trace.
Tensors outputs_of_no_steps(const dynamic::ScanStep& step, const Tensors& start, const Tensors& inputs) {
  Tensors elements;
  for (const Tensor& t : inputs) elements.push_back(at::zeros(t.sizes().slice(1), t.options()));
  Draws draws;
  Tensors outputs = draws.first("scan", start, [&] { return step(start, elements); }).second;
  draws.take_back();
  for (Tensor& t : outputs) t = t.unsqueeze(0).narrow(0, 0, 0);
  return outputs;
}

}  // namespace

std::pair<Tensors, Tensors> run_scan(const dynamic::ScanStep& step, const Tensors& start, const Tensors& inputs,
                                     const ScanOptions& options, const NameTensor& name) {
  const int64_t steps = length_of(inputs, options);
  const StateLike like("scan", start, name);
  if (steps == 0) return {start, outputs_of_no_steps(step, start, inputs)};
  const auto outputs_like = std::make_shared<std::optional<StateLike>>();
  const auto joined = [step = frontend::under_this_autocast(step), like, outputs_like](int64_t, const Tensors& operands,
                                                                                       Tensors&) {
    const auto split = operands.begin() + static_cast<std::ptrdiff_t>(like.size());
    auto [next, outputs] = step(Tensors(operands.begin(), split), Tensors(split, operands.end()));
    like.check(next);
    if (!*outputs_like)
      *outputs_like = StateLike("scan", outputs, [](size_t k) { return "output " + std::to_string(k); });
    (*outputs_like)->check(outputs);
    next.insert(next.end(), outputs.begin(), outputs.end());
    return next;
  };
  Tensors operands = start;
  operands.insert(operands.end(), inputs.begin(), inputs.end());
  Tensors results = run_all({"scan", joined, start.size(), options.reverse}, 0, steps, options.checkpoints, operands);
  const auto split = results.begin() + static_cast<std::ptrdiff_t>(start.size());
  return {Tensors(results.begin(), split), Tensors(split, results.end())};
}

}  // namespace detail

namespace dynamic {

Tensors while_loop(const Predicate& predicate, const Function& body, const Tensors& start, WhileOptions options) {
  return detail::run_while(predicate, body, start, options, /*report=*/false, leaf);
}
Tensors try_while_loop(const Predicate& predicate, const Function& body, const Tensors& start, WhileOptions options) {
  return detail::run_while(predicate, body, start, options, /*report=*/true, leaf);
}
Tensors fori_loop(int64_t lower, int64_t upper, const ForiStep& body, const Tensors& start, ForiOptions options) {
  return detail::run_fori(lower, upper, body, start, options, leaf);
}
std::pair<Tensors, Tensors> scan(const ScanStep& step, const Tensors& start, const Tensors& inputs,
                                 ScanOptions options) {
  return detail::run_scan(step, start, inputs, options, leaf);
}

}  // namespace dynamic
}  // namespace tower
