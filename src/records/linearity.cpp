#include "records/linearity.h"

#include "records/rule_table.h"

namespace tower::rules {
namespace {

RuleTable<Linearity>& linearities() {
  static auto& table = *new RuleTable<Linearity>;
  return table;
}

}  // namespace

Linearity linearity_of(const Operator& op) {
  const Linearity* stated = linearities().find(op);
  return stated ? *stated : Linearity::unsaid;
}

void set_linearity(const Operator& op, Linearity linearity) { linearities().set(op, linearity); }

}  // namespace tower::rules
