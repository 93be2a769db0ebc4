#include "records/linearity.h"

#include "records/rule_table.h"

namespace tower::rules {
namespace {

RuleTable<Linearity>& linearities() {
  static auto& table = *new RuleTable<Linearity>;
  return table;
}

RuleTable<SlopeByResult>& slopes_by_results() {
  static auto& table = *new RuleTable<SlopeByResult>;
  return table;
}

}  // namespace

Linearity linearity_of(const Operator& op) {
  const Linearity* stated = linearities().find(op);
  return stated ? *stated : Linearity::unsaid;
}

void set_linearity(const Operator& op, Linearity linearity) { linearities().set(op, linearity); }

const SlopeByResult* slope_by_result(const Operator& op) { return slopes_by_results().find(op); }

void set_slope_by_result(const Operator& op, SlopeByResult rule) { slopes_by_results().set(op, rule); }

}  // namespace tower::rules
