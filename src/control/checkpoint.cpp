// checkpoint as a higher-order operator that saves its operands, and whose derivatives are those of the function,
// evaluated again. Its values come from below every level that records, so nothing of the evaluation is kept but what a
// policy says (control/kept_calls.h).
#include "tower/checkpoint.h"

#include <c10/core/GradMode.h>

#include "control/checkpoint.h"
#include "control/kept_calls.h"
#include "control/repeated_draws.h"
#include "control/traced.h"
#include "core/level.h"
#include "frontend/autocast.h"
#include "frontend/effects.h"
#include "operators/differentiate.h"
#include "operators/lifting.h"

namespace tower {
namespace {

using dynamic::Function;
using dynamic::Tensors;

// The attributes of a call: what its first evaluation leaves for those to come.
struct Evaluation {
  Draws draws;
  KeptCalls kept;
  WaysNotTaken not_taken;  // of a compiled function
};
using SharedEvaluation = std::shared_ptr<Evaluation>;

// How a function is evaluated: the first time, once more, and for its pullback.
struct Recipe {
  std::function<Tensors(const Function& f, const Tensors& operands, Evaluation& evaluation)> first;
  std::function<Tensors(const Function& f, const Tensors& operands, Evaluation& evaluation)> again;
  /// `f` draws as it did.
  std::function<Tensors(const Function& f, const Tensors& captured, const Residuals& saved, Evaluation& evaluation,
                        const Tensors& cotangents, const std::vector<bool>& needs)>
      pull_back;
};

Recipe keeping_nothing(const PullBack& pull_back) {
  const auto evaluate = [](const Function& f, const Tensors& operands, Evaluation&) { return f(operands); };
  if (!pull_back)
    return {evaluate, evaluate,
            [](const Function& f, const Tensors&, const Residuals& saved, Evaluation&, const Tensors& cotangents,
               const std::vector<bool>& needs) { return pull_back_through(f, saved.tensors, cotangents, needs); }};
  return {evaluate, evaluate,
          [pull_back](const Function&, const Tensors& captured, const Residuals& saved, Evaluation& evaluation,
                      const Tensors& cotangents, const std::vector<bool>& needs) {
            return pull_back(evaluation.draws, captured, saved.tensors, cotangents, needs);
          }};
}

Recipe keeping(const CheckpointOptions& options) {
  return {[options](const Function& f, const Tensors& operands, Evaluation& evaluation) {
            return evaluate_and_choose(f, operands, options, evaluation.kept);
          },
          [](const Function& f, const Tensors& operands, Evaluation& evaluation) {
            return evaluate_as_chosen(f, operands, evaluation.kept);
          },
          [](const Function& f, const Tensors&, const Residuals& saved, Evaluation& evaluation,
             const Tensors& cotangents, const std::vector<bool>& needs) {
            const auto split = saved.tensors.begin() + static_cast<std::ptrdiff_t>(needs.size());
            return pull_back_with_kept(f, Tensors(saved.tensors.begin(), split), Tensors(split, saved.tensors.end()),
                                       evaluation.kept, cotangents, needs);
          }};
}

HigherOrderRules checkpoint_rules(const char* name, const CapturingFunction& f, const Recipe& recipe,
                                  const Tensors& captured) {
  const Function all_operands = evaluated_often(name, with_captured(
                                                          [f, captured](const Tensors& operands) {
                                                            Tensors known = captured;
                                                            return f(operands, known);
                                                          },
                                                          captured));
  const auto evaluated_again = [all_operands](const SharedEvaluation& first) -> Function {
    return [all_operands, first](const Tensors& operands) {
      return first->draws.again(operands, [&] { return all_operands(operands); });
    };
  };
  HigherOrderRules rules;
  rules.name = name;
  rules.forward = [name, all_operands, recipe](const Tensors& operands, const Attributes& attributes) {
    const auto& first = attributes_as<SharedEvaluation>(attributes);
    if (first->kept.compiled) first->not_taken.meet(all_operands, operands);
    return first->draws.first(name, operands, [&] { return recipe.first(all_operands, operands, *first); });
  };
  rules.sparsity = [all_operands](const Tensors& operands, const Attributes&) { return all_operands(operands); };
  rules.save = [](const Tensors& operands, const Tensors& outs, const Attributes& attributes) {
    const KeptCalls& kept = attributes_as<SharedEvaluation>(attributes)->kept;
    Residuals residuals{operands, {}};
    if (!kept.calls.empty())
      residuals.tensors.insert(residuals.tensors.end(), outs.begin() + static_cast<std::ptrdiff_t>(kept.outs),
                               outs.end());
    return residuals;
  };
  rules.vjp = [evaluated_again, recipe, captured](const Residuals& saved, const Tensors& cotangents,
                                                  const std::vector<bool>& needs, const Attributes& attributes) {
    const auto& first = attributes_as<SharedEvaluation>(attributes);
    return recipe.pull_back(evaluated_again(first), captured, saved, *first, cotangents, needs);
  };
  rules.jvp = [evaluated_again, recipe](const Residuals& saved, const Tensors& tangents, const Attributes& attributes) {
    const auto& first = attributes_as<SharedEvaluation>(attributes);
    const auto again = [&](const Tensors& operands) { return recipe.again(evaluated_again(first), operands, *first); };
    const Tensors operands(saved.tensors.begin(), saved.tensors.begin() + static_cast<std::ptrdiff_t>(tangents.size()));
    return dynamic::jvp(again, operands, tangents).second;
  };
  rules.lift = [=](const Tensor& another) {
    Tensors more = captured;
    more.push_back(another);
    return checkpoint_rules(name, f, recipe, more);
  };
  return rules;
}

Tensors evaluate(const char* name, const CapturingFunction& f, const Recipe& recipe, const Tensors& operands,
                 Tensors& captured) {
  const auto first = std::make_shared<Evaluation>();
  first->kept.compiled = tracing();
  Tensors outs = call_lifting(checkpoint_rules(name, f, recipe, captured), operands, attributes(first), captured);
  if (!first->kept.calls.empty()) outs.resize(first->kept.outs);
  return outs;
}

}  // namespace

Function evaluated_often(const char* name, Function f, const char* reason) {
  return [name, reason, f = std::move(f)](const Tensors& operands) {
    frontend::NoEffects guard(operands, [&]() -> frontend::NoEffects::Why {
      return {std::string(name) + ": the function", reason};
    });
    Tensors outs = f(operands);
    guard.check_operands();
    return outs;
  };
}

bool may_be_recorded(const Tensors& operands) {
  for (const Level* level = top(); level; level = level->below())
    if (level->kind() == Kind::vjp) return true;
  if (!c10::GradMode::is_enabled()) return false;
  for (const Tensor& t : operands)
    if (value_under_all_levels(t).requires_grad()) return true;
  return false;
}

Tensors evaluate_without_record(const char* name, const CapturingFunction& f, const Tensors& operands,
                                Tensors& captured, const PullBack& pull_back) {
  if (!may_be_recorded(operands)) {
    check_visible(name, operands);
    return f(operands, captured);
  }
  return evaluate(name, f, keeping_nothing(pull_back), operands, captured);
}

Tensors dynamic::checkpoint(Function f, const Tensors& operands, const CheckpointOptions& options) {
  check_options(options);
  if (!may_be_recorded(operands)) {
    check_visible("checkpoint", operands);
    return f(operands);
  }
  const bool keeps = !options.keep.empty() || !options.keep_names.empty() || options.policy;
  f = frontend::under_this_autocast(std::move(f));
  if (tracing() && !keeps)
    if (auto results = traced.checkpoint(f, operands)) return *std::move(results);
  Tensors captured;
  return evaluate(
      "checkpoint", [f](const Tensors& given, Tensors&) { return f(given); },
      keeps ? keeping(options) : keeping_nothing(nullptr), operands, captured);
}

}  // namespace tower
