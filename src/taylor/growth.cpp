#include "taylor/growth.h"

#include <ATen/Operators.h>

#include <bit>
#include <map>

#include "interpreters/derivatives.h"
#include "records/families.h"

namespace tower::taylor {
namespace {

// What the derivative rules do not show: that a partial derivative, as a function of the other argument, is linear.
using Facts = std::map<const Operator*, Growth>;

template <class... Op>
void say(Facts& facts, Growth growth) {
  (facts.emplace(&rules::record_of(Op::name, Op::overload_name), growth), ...);
}

const Facts& facts() {
  static const Facts all = [] {
    Facts f;
    say<at::_ops::mul_Tensor>(f, Growth::product);
    say<at::_ops::div_Tensor>(f, Growth::quotient);
    // Affine in each argument, though its one rule for all looks at them: of one that is followed alone it does not.
    say<at::_ops::linear>(f, Growth::termwise);
    // Pointwise backward operators: the cotangent times a function of the rest, which are made of simpler operators.
    say<at::_ops::tanh_backward, at::_ops::sigmoid_backward, at::_ops::silu_backward, at::_ops::gelu_backward,
        at::_ops::mish_backward, at::_ops::softplus_backward, at::_ops::elu_backward, at::_ops::logit_backward,
        at::_ops::hardswish_backward, at::_ops::log_sigmoid_backward>(f, Growth::factored);
    return f;
  }();
  return all;
}

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
  if (const auto fact = facts().find(&op); fact != facts().end()) {
    const bool first = tracked & 1, others = tracked & ~Mask{1};
    switch (fact->second) {
      case Growth::termwise:
        if (std::popcount(tracked) == 1) return Growth::termwise;
        break;
      case Growth::product:
        if (first && others) return Growth::product;
        break;
      case Growth::quotient:
        if (others) return Growth::quotient;
        break;
      case Growth::factored:
        if (first && others) return Growth::factored;
        break;
      default:
        break;
    }
  }
  return is_bilinear(op, tracked) ? Growth::product : Growth::by_rule;
}

Factors factors_of(Mask tracked) {
  return {static_cast<size_t>(std::countr_zero(tracked)), static_cast<size_t>(63 - std::countl_zero(tracked))};
}

}  // namespace tower::taylor
