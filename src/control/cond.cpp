// cond as a higher-order operator. Its derivatives are conds over the derivatives of the branches, so what an example
// did not take is selected away after it was computed, and never multiplied by zero.
#include "control/cond.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "control/checkpoint.h"
#include "control/kept_calls.h"
#include "control/repeated_draws.h"
#include "control/traced.h"
#include "core/bind.h"
#include "core/wrapper.h"
#include "frontend/autocast.h"
#include "frontend/effects.h"
#include "operators/differentiate.h"
#include "operators/lifting.h"
#include "tower/cond.h"
#include "tower/errors.h"

namespace tower {
namespace {

using dynamic::Dims;
using dynamic::Function;
using dynamic::Tensors;

Tensors without_first(const Tensors& all) { return {all.begin() + 1, all.end()}; }

// What one call leaves for those of its derivatives: what each branch drew, and along which axes it spoke.
struct BranchRecord {
  Draws when_true, when_false;
  SpokenInBranches spoken;
  bool compiled = false;  // in a compiled function, where each run takes the branch of its own predicate
  WaysNotTaken not_taken;
};
using SharedBranchRecord = std::shared_ptr<BranchRecord>;

Branches drawing(const Branches& branches, const SharedBranchRecord& record) {
  Branches result = branches;
  result.when_true = [f = branches.when_true, op = branches.op, record](const Tensors& operands) {
    return record->when_true.first(op, operands, [&] { return f(operands); });
  };
  result.when_false = [f = branches.when_false, op = branches.op, record](const Tensors& operands) {
    return record->when_false.first(op, operands, [&] { return f(operands); });
  };
  return result;
}

Branches drawing_again(const Branches& branches, const SharedBranchRecord& record) {
  Branches result = branches;
  result.when_true = [f = branches.when_true, record](const Tensors& operands) {
    return record->when_true.again(operands, [&] { return f(operands); });
  };
  result.when_false = [f = branches.when_false, record](const Tensors& operands) {
    return record->when_false.again(operands, [&] { return f(operands); });
  };
  return result;
}

bool libtorch_records_any(const Tensors& tensors) {
  for (const Tensor& t : tensors)
    if (t.defined() && libtorch_records(value_under_all_levels(t))) return true;
  return false;
}

// Both branches are run for all examples: what one wrote, examples that take the other would see; and LibTorch's
// autograd, which follows a captured tensor through the branches, knows of no branch not taken.
Tensors without_effects(const Branches& branches, bool which, const Tensors& operands) {
  const auto name = [&] {
    return std::string(branches.op) + ": " + (which ? branches.true_name : branches.false_name);
  };
  frontend::NoEffects guard(operands, [&]() -> frontend::NoEffects::Why {
    return {name(), "but the predicate differs between examples, and it is run for all of them."};
  });
  Tensors outs = which ? branches.when_true(operands) : branches.when_false(operands);
  guard.check_operands();
  if (c10::GradMode::is_enabled() && libtorch_records_any(outs) && !libtorch_records_any(operands))
    throw DerivativeError(name() +
                          " uses a tensor that it captured and that requires grad, but the predicate differs between "
                          "examples: LibTorch's autograd would mix in what examples did not take. Pass the tensor as "
                          "an operand, or evaluate under no_grad.");
  return outs;
}

thread_local ForAnyValue::Undecided undecided = nullptr;
thread_local ForAnyValue::AnySteps any_steps = nullptr;

}  // namespace

bool is_undecided(Tensor t) {
  if (!undecided) return false;
  while (Wrapper* w = as_wrapper(t)) {
    if (undecided(*w)) return true;
    Tensor value = w->payload().value;
    t = std::move(value);
  }
  return false;
}

ForAnyValue::ForAnyValue(Undecided which, AnySteps steps)
    : undecided_before_(std::exchange(undecided, which)), any_steps_before_(std::exchange(any_steps, steps)) {}
ForAnyValue::~ForAnyValue() {
  undecided = undecided_before_;
  any_steps = any_steps_before_;
}

Tensors any_number_of_steps(const Function& step, const Tensors& start) { return any_steps(step, start); }

bool differs_between_examples(Tensor t) {
  while (Wrapper* w = as_wrapper(t)) {
    if (w->payload().tracked() && w->level().kind() == Kind::vmap) return true;
    Tensor value = w->payload().value;
    t = std::move(value);
  }
  return false;
}

// NOTE [Branches in which examples speak]
// Where the predicate differs, both branches are run for all examples, and each example takes the results of its own.
// In reverse mode it takes the gradients of its own, whatever those of the other branch are: a zero, or 0 · ∞.
//
// But what an example says in a branch, by a collective, all others hear, also those that took the branch while it did
// not: a psum is one of all examples, in both branches. So where examples may speak to each other, a pullback is given
// cotangents that are zero for examples that did not take its branch, and where it spoke, what it found for those is
// added: the derivatives of what was heard of them. Only where nobody whom they hear took the branch are they left out.
namespace {

// Zero where the condition does not hold, whatever `t` is there.
Tensor only_where(const Tensor& condition, const Tensor& t) {
  return at::where(condition, t, at::zeros({}, t.options()));
}

void check_alike(const Branches& branches, const Tensor& predicate, const Tensors& a, const Tensors& b) {
  const char* reason = is_undecided(predicate) ? ", but a sparsity pattern holds for any value of the predicate"
                                               : ", but the predicate differs between examples";
  if (a.size() != b.size())
    throw ArgumentError(std::string(branches.op) + ": " + branches.true_name + " returned " + std::to_string(a.size()) +
                        " outputs and " + branches.false_name + " " + std::to_string(b.size()) + reason +
                        ": both must return the same.");
  for (size_t k = 0; k < a.size(); ++k)
    if (!a[k].sizes().equals(b[k].sizes()) || a[k].scalar_type() != b[k].scalar_type())
      throw ArgumentError(std::string(branches.op) + ": output " + std::to_string(k) + " of " + branches.true_name +
                          " is " + describe(a[k]) + ", that of " + branches.false_name + " " + describe(b[k]) + reason +
                          ": both must have the same shape and dtype.");
}

// Whether no example takes the branch, in all processes that they are spread over.
bool is_taken_by_none(const Tensor& predicate, bool which) {
  const Tensor values = value_under_all_levels(predicate);
  DispatchGuard keys;
  keys.see_every_operator(false);
  const int64_t on = values.sum().item<int64_t>();
  return speech::in_all_processes(predicate, {which ? on : values.numel() - on})[0] == 0;
}

// NOTE [Branches that nobody had run]
// A predicate that was the same for all examples may be a batch of equal values when it is evaluated again, for a
// derivative of second order: what an operator's image returns has a value for each example. Then both branches are run
// of which only one had been. That one knows the axes it speaks along (NOTE [Hidden axes]); the other may speak along
// an axis whose vmap has ended by now. It is nobody's, and so left out.
std::optional<Tensors> run_unless_nobodys(const Branches& branches, bool which, const Tensor& predicate,
                                          const Tensors& operands) {
  try {
    return without_effects(branches, which, operands);
  } catch (const speech::NoAxisError&) {
    if (!Draws::repeating() || !is_taken_by_none(predicate, which)) throw;
    return std::nullopt;
  }
}

}  // namespace

Tensors choose(const Branches& branches, const Tensor& predicate, const Tensors& operands, SpokenInBranches* spoken) {
  SpokenInBranches now;
  const auto run = [&](bool which) {
    const speech::Listener listener;
    auto outs = run_unless_nobodys(branches, which, predicate, operands);
    (which ? now.when_true : now.when_false) = listener.axes();
    return outs;
  };
  const auto of_true = run(true), of_false = run(false);
  if (spoken) {
    spoken->when_true.merge(speech::Axes(now.when_true));
    spoken->when_false.merge(speech::Axes(now.when_false));
  }
  if (!of_true) return *of_false;
  if (!of_false) return *of_true;
  const Tensors &a = *of_true, &b = *of_false;
  check_alike(branches, predicate, a, b);
  Tensors selected;
  if (branches.adds_what_was_heard && !(now.when_true.empty() && now.when_false.empty())) {
    const Tensor of_a = speech::holds_for_one_heard(predicate, now.when_true),
                 of_b = speech::holds_for_one_heard(at::logical_not(predicate), now.when_false);
    for (size_t k = 0; k < a.size(); ++k) selected.push_back(at::add(only_where(of_a, a[k]), only_where(of_b, b[k])));
  } else {
    for (size_t k = 0; k < a.size(); ++k) selected.push_back(at::where(predicate, a[k], b[k]));
  }
  return selected;
}

namespace {

// The rule for vmap of branches of which one is run for few examples alone, if they are few.
std::pair<Tensors, Dims> map_branches(const Branches& branches, const VmapInfo& info, const Dims& in_dims,
                                      const Tensors& all) {
  const speech::LeavingOut leaving_out;
  const auto mapped = [&](bool which, const Tensors& given) {
    const auto branch = [&](const Tensors& one) { return without_effects(branches, which, without_first(one)); };
    return dynamic::vmap(branch, in_dims, {0}, {info.randomness})(given);
  };
  const auto indices = [&]() -> Tensor {
    if (!in_dims[0] || tracing() || differs_between_examples(all[0])) return {};
    const Tensor values = value_under_all_levels(all[0]);
    DispatchGuard keys;
    keys.see_every_operator(false);
    Tensor found = at::nonzero(values).flatten();
    return static_cast<double>(found.numel()) <= branches.compact * static_cast<double>(info.batch_size) ? found
                                                                                                         : Tensor();
  }();
  if (!indices.defined()) {
    const auto both = [&](const Tensors& one) { return choose(branches, one[0], without_first(one)); };
    Tensors outs = dynamic::vmap(both, in_dims, {0}, {info.randomness})(all);
    return {std::move(outs), {0}};
  }
  Tensors outs = mapped(false, all);
  if (indices.numel() == 0) return {std::move(outs), {0}};
  Tensors few = all;
  for (size_t k = 0; k < all.size(); ++k)
    if (in_dims[k]) few[k] = at::index_select(all[k], *in_dims[k], indices);
  const Tensors some = mapped(true, few);
  for (size_t k = 0; k < outs.size(); ++k) outs[k] = at::index_copy(outs[k], 0, indices, some[k]);
  return {std::move(outs), {0}};
}

Tensors run_branches(const Branches& branches, const Tensor& choice, const Tensors& operands) {
  const DecidedByValues decided;
  if (is_undecided(choice)) return choose(branches, choice, operands);
  // A trace records the choice, which is made anew at each run.
  if (!tracing() && !differs_between_examples(choice))
    return at::is_nonzero(strip_constants(choice)) ? branches.when_true(operands) : branches.when_false(operands);
  if (tracing())
    if (auto results = traced.choice(branches, choice, operands)) return *std::move(results);
  Tensors all{choice};
  all.insert(all.end(), operands.begin(), operands.end());
  return HigherOrderOperator(branch_rules(branches))(all, branch_attributes());
}

// The same choice between other functions.
Branches instead(const Branches& branches, Function when_true, Function when_false) {
  Branches result = branches;
  result.when_true = std::move(when_true);
  result.when_false = std::move(when_false);
  return result;
}

}  // namespace

Attributes branch_attributes() {
  const auto record = std::make_shared<BranchRecord>();
  record->compiled = tracing();
  return attributes(record);
}

HigherOrderRules branch_rules(const Branches& branches, const Tensors& captured) {
  Branches all_operands = branches;
  all_operands.when_true = with_captured(branches.when_true, captured);
  all_operands.when_false = with_captured(branches.when_false, captured);
  const auto evaluated = [all_operands](const Attributes& attributes) {
    return drawing(all_operands, attributes_as<SharedBranchRecord>(attributes));
  };
  const auto evaluated_again = [all_operands](const Attributes& attributes) {
    return drawing_again(all_operands, attributes_as<SharedBranchRecord>(attributes));
  };
  HigherOrderRules rules;
  rules.name = branches.op;
  rules.forward = [evaluated, all_operands](const Tensors& all, const Attributes& attributes) {
    const auto& record = attributes_as<SharedBranchRecord>(attributes);
    const Tensors operands = without_first(all);
    const Branches branches = evaluated(attributes);
    if (differs_between_examples(all[0])) return choose(branches, all[0], operands, &record->spoken);
    const bool taken = at::is_nonzero(strip_constants(all[0]));
    const Function& other = taken ? all_operands.when_false : all_operands.when_true;
    if (record->compiled) record->not_taken.meet(evaluated_often(all_operands.op, other), operands);
    return taken ? branches.when_true(operands) : branches.when_false(operands);
  };
  rules.sparsity = [all_operands](const Tensors& all, const Attributes&) {
    const Tensors operands = without_first(all);
    if (is_undecided(all[0]) || differs_between_examples(all[0])) return choose(all_operands, all[0], operands);
    return at::is_nonzero(strip_constants(all[0])) ? all_operands.when_true(operands)
                                                   : all_operands.when_false(operands);
  };
  rules.save = [](const Tensors& all, const Tensors&, const Attributes&) { return Residuals{all, {}}; };
  rules.vjp = [evaluated_again](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                                const Attributes& attributes) {
    const Branches branches = evaluated_again(attributes);
    const Tensor& predicate = saved.tensors[0];
    // Cotangents that are zero are left out of the operands.
    Tensors operands = without_first(saved.tensors);
    const size_t count = operands.size();
    for (const Tensor& ct : cotangents)
      if (ct.defined()) operands.push_back(ct);
    const bool may_speak = speech::differs_along_a_named_axis(predicate);
    if (may_speak) operands.push_back(predicate);
    const std::vector<bool> wanted(needs.begin() + 1, needs.end());
    std::vector<bool> given;
    for (const Tensor& ct : cotangents) given.push_back(ct.defined());
    // What an example did not take has no cotangent; of a pullback it has taken what was added, too.
    const SpokenInBranches added =
        branches.adds_what_was_heard ? attributes_as<SharedBranchRecord>(attributes)->spoken : SpokenInBranches();
    auto gradients_of = [=](const Function& branch, bool which) -> Function {
      return [=](const Tensors& values) {
        Tensor taken;
        if (may_speak)
          taken = which ? speech::holds_for_one_heard(values.back(), added.when_true)
                        : speech::holds_for_one_heard(at::logical_not(values.back()), added.when_false);
        Tensors cts(given.size());
        size_t next = count;
        for (size_t k = 0; k < cts.size(); ++k)
          if (given[k]) cts[k] = may_speak ? only_where(taken, values[next++]) : values[next++];
        Tensors found = pull_back_through(branch, Tensors(values.begin(), values.begin() + static_cast<int64_t>(count)),
                                          cts, wanted);
        Tensors defined;
        for (size_t i = 0; i < count; ++i)
          if (wanted[i]) defined.push_back(found[i].defined() ? found[i] : at::zeros_like(values[i]));
        return defined;
      };
    };
    Branches pullbacks =
        instead(branches, gradients_of(branches.when_true, true), gradients_of(branches.when_false, false));
    pullbacks.adds_what_was_heard = true;
    const Tensors found = run_branches(pullbacks, predicate, operands);
    Tensors gradients(needs.size());
    size_t next = 0;
    for (size_t i = 0; i < count; ++i)
      if (wanted[i]) gradients[i + 1] = found[next++];
    return gradients;
  };
  rules.jvp = [evaluated_again](const Residuals& saved, const Tensors& tangents, const Attributes& attributes) {
    const Branches branches = evaluated_again(attributes);
    Tensors operands = without_first(saved.tensors);
    const size_t count = operands.size();
    std::vector<bool> given;
    for (size_t i = 0; i < count; ++i) {
      given.push_back(tangents[i + 1].defined());
      if (given.back()) operands.push_back(tangents[i + 1]);
    }
    auto along = [=](const Function& branch) -> Function {
      return [=](const Tensors& values) {
        Tensors directions(count);
        size_t next = count;
        for (size_t i = 0; i < count; ++i)
          if (given[i]) directions[i] = values[next++];
        return dynamic::jvp(branch, Tensors(values.begin(), values.begin() + static_cast<int64_t>(count)), directions)
            .second;
      };
    };
    return run_branches(instead(branches, along(branches.when_true), along(branches.when_false)), saved.tensors[0],
                        operands);
  };
  if (branches.compact > 0)
    rules.vmap = [evaluated](const VmapInfo& info, const Dims& in_dims, const Tensors& all,
                             const Attributes& attributes) {
      return map_branches(evaluated(attributes), info, in_dims, all);
    };
  rules.lift = [branches, captured](const Tensor& another) {
    Tensors more = captured;
    more.push_back(another);
    return branch_rules(branches, more);
  };
  return rules;
}

Tensors dynamic::cond(const Tensor& predicate, Function true_branch, Function false_branch, const Tensors& operands) {
  if (!predicate.defined() || predicate.numel() != 1)
    throw ArgumentError("cond: the predicate must be a tensor of one element, but it is " + describe(predicate) +
                        ". Reduce it with any() or all(), or use where() for a choice by element.");
  Tensor choice = predicate.dim() == 0 ? predicate : predicate.reshape({});
  // A number has a derivative, a choice has none.
  if (choice.scalar_type() != at::kBool) choice = choice.ne(0);
  return run_branches(
      {frontend::under_this_autocast(std::move(true_branch)), frontend::under_this_autocast(std::move(false_branch))},
      choice, operands);
}

}  // namespace tower
