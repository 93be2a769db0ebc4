#include "numbers/slow_calls.h"

#include "records/rule_table.h"

namespace tower::compiler {
namespace {

struct Slow {};
rules::RuleTable<Slow>& slow_ones() {
  static auto& table = *new rules::RuleTable<Slow>;
  return table;
}

}  // namespace

bool is_slow_call(const Operator& op) { return slow_ones().find(op) != nullptr; }
void set_slow_call(const Operator& op) { slow_ones().set(op, Slow()); }

}  // namespace tower::compiler
