#include "operators/stand_in.h"

#include "operators/custom_op_rules.h"

namespace tower {

bool stand_in(const Operator& op, Stack& stack) {
  if (op.handle()) {
    const auto rule = op.custom ? sparsity_rule_of(op) : nullptr;
    if (rule) (*rule)(stack);
    return static_cast<bool>(rule);
  }
  const auto* made = dynamic_cast<const StoodInFor*>(&op);
  return made && made->stand_in(stack);
}

}  // namespace tower
