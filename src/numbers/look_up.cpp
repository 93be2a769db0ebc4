#include "numbers/look_up.h"

#include "records/rule_table.h"

namespace tower::compiler {
namespace {

rules::RuleTable<LookUpRule>& look_up_rules() {
  static auto& table = *new rules::RuleTable<LookUpRule>;
  return table;
}

rules::RuleTable<LookUpRule>& adding_rules() {
  static auto& table = *new rules::RuleTable<LookUpRule>;
  return table;
}

}  // namespace

const LookUpRule* look_up_rule(const Operator& op) { return look_up_rules().find(op); }
void set_look_up_rule(const Operator& op, LookUpRule rule) { look_up_rules().set(op, std::move(rule)); }

const LookUpRule* adding_rule(const Operator& op) { return adding_rules().find(op); }
void set_adding_rule(const Operator& op, LookUpRule rule) { adding_rules().set(op, std::move(rule)); }

}  // namespace tower::compiler
