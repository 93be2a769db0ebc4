#include "numbers/small.h"

#include "numbers/rule_table.h"

namespace tower::compiler {

const Small* SmallCall::tensor(size_t arg) const {
  for (size_t k = 0; k < operands.size(); ++k)
    if (places[k].arg == arg) return operands[k];
  return nullptr;
}

SmallResults SmallCall::give(Sizes sizes, const std::vector<E>& elements) const {
  Small t{std::move(sizes), {}, dtypes[0]};
  for (const E& e : elements) t.ids.push_back(e.id());
  return {t};
}

namespace {

RuleTable<SmallRule>& small_rules() {
  static auto& table = *new RuleTable<SmallRule>;
  return table;
}

}  // namespace

const SmallRule* small_rule(const Operator& op) { return small_rules().find(op); }
void set_small_rule(const Operator& op, SmallRule rule) { small_rules().set(op, std::move(rule)); }

}  // namespace tower::compiler
