// checkpoint as a higher-order operator that saves its operands, and whose derivatives are those of the function,
// evaluated again. Its values come from below every level that records, so nothing of the evaluation is kept.
#include "tower/checkpoint.h"

#include <c10/core/GradMode.h>

#include "core/level.h"
#include "operators/checkpoint.h"
#include "operators/differentiate.h"
#include "operators/draws.h"
#include "operators/lifting.h"

namespace tower {
namespace {

using dynamic::Function;
using dynamic::Tensors;

// The attributes of a call are what it drew.
HigherOrderRules checkpoint_rules(const char* name, const CapturingFunction& f, const Tensors& captured) {
  const Function all_operands = with_captured(
      [f, captured](const Tensors& operands) {
        Tensors known = captured;
        return f(operands, known);
      },
      captured);
  const auto evaluated_again = [all_operands](const Attributes& attributes) -> Function {
    return [all_operands, draws = attributes_as<std::shared_ptr<Draws>>(attributes)](const Tensors& operands) {
      return draws->again(operands, [&] { return all_operands(operands); });
    };
  };
  HigherOrderRules rules;
  rules.name = name;
  rules.forward = [name, all_operands](const Tensors& operands, const Attributes& attributes) {
    return attributes_as<std::shared_ptr<Draws>>(attributes)->first(name, operands, [&] {
      return all_operands(operands);
    });
  };
  rules.save = [](const Tensors& operands, const Tensors&, const Attributes&) { return Residuals{operands, {}}; };
  rules.vjp = [evaluated_again](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                                const Attributes& attributes) {
    return pull_back_through(evaluated_again(attributes), saved.tensors, cotangents, needs);
  };
  rules.jvp = [evaluated_again](const Residuals& saved, const Tensors& tangents, const Attributes& attributes) {
    return dynamic::jvp(evaluated_again(attributes), saved.tensors, tangents).second;
  };
  rules.lift = [=](const Tensor& another) {
    Tensors more = captured;
    more.push_back(another);
    return checkpoint_rules(name, f, more);
  };
  return rules;
}

}  // namespace

bool may_be_recorded(const Tensors& operands) {
  for (const Level* level = top(); level; level = level->below())
    if (level->kind() == Kind::vjp) return true;
  if (!c10::GradMode::is_enabled()) return false;
  for (const Tensor& t : operands)
    if (value_under_all_levels(t).requires_grad()) return true;
  return false;
}

Tensors evaluate_without_record(const char* name, const CapturingFunction& f, const Tensors& operands,
                                Tensors& captured) {
  if (!may_be_recorded(operands)) return f(operands, captured);
  return call_lifting(checkpoint_rules(name, f, captured), operands, attributes(std::make_shared<Draws>()), captured);
}

Tensors dynamic::checkpoint(Function f, const Tensors& operands) {
  Tensors captured;
  return evaluate_without_record(
      "checkpoint", [f = std::move(f)](const Tensors& given, Tensors&) { return f(given); }, operands, captured);
}

}  // namespace tower
