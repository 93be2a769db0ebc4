#include "taylor/growth.h"

#include <bit>

#include "interpreters/derivatives.h"
#include "records/linearity.h"

namespace tower::taylor {
namespace {

// NOTE [Linear rules]
// `linear<i>` and `jointly_linear` (records/op.h) keep all arguments but those that they serve, since the rule calls
// the operator again; no other rule keeps an argument that its operator does not have.
bool calls_the_operator(const DerivativeRule<JvpFrame>& rule) { return rule.keeps.args == ~rule.serves; }

bool is_bilinear(const Operator& op, Mask tracked) {
  if (std::popcount(tracked) != 2 || op.num_outs() != 1) return false;
  for (size_t i = 0; i < op.num_args(); ++i)
    if ((tracked >> i & 1) && op.kind(i) != ArgKind::tensor) return false;
  for (const auto& rule : op.jvp)
    if ((rule.serves & tracked) && (!calls_the_operator(rule) || std::popcount(rule.serves) != 1)) return false;
  return true;
}

}  // namespace

bool is_linear(const Operator& op, Mask tracked) {
  for (const auto& rule : op.jvp)
    if ((rule.serves & tracked) && !calls_the_operator(rule)) return false;
  return !op.jvp.empty();
}

Growth growth_of(const Operator& op, Mask tracked, Mask constant_outs) {
  if (served_jvp(op, tracked) != Served::own_rule || op.save) return Growth::by_rule;
  const Keeps keeps = keeps_for_jvp(op, tracked, Served::own_rule);
  if (!(keeps.args & tracked) && !(keeps.outs & ~constant_outs)) return Growth::termwise;
  const bool first = tracked & 1, others = tracked & ~Mask{1};
  switch (rules::linearity_of(op)) {
    case rules::Linearity::affine_in_each:
      if (std::popcount(tracked) == 1) return Growth::termwise;
      break;
    case rules::Linearity::product:
    case rules::Linearity::bilinear:
      if (first && others) return Growth::product;
      break;
    case rules::Linearity::quotient:
      if (others) return Growth::quotient;
      break;
    case rules::Linearity::first_as_factor:
      if (first && others) return Growth::factored;
      break;
    case rules::Linearity::unsaid:
      break;
  }
  return is_bilinear(op, tracked) ? Growth::product : Growth::by_rule;
}

Factors factors_of(Mask tracked) {
  return {static_cast<size_t>(std::countr_zero(tracked)), static_cast<size_t>(63 - std::countl_zero(tracked))};
}

}  // namespace tower::taylor
