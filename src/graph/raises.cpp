#include "graph/raises.h"

#include "graph/pointwise.h"
#include "numbers/reports.h"
#include "operators/known_code.h"

namespace tower::compiler {
namespace {

bool divides_integers(const Graph& graph, const Call& call) {
  if (!element_rule(*call.op) || call.operands.empty()) return false;
  DispatchGuard keys;
  keys.see_no_operator();
  const Pointwise pointwise{graph};
  if (!pointwise.is_of_numbers(call)) return false;
  Expressions trial;
  pointwise.elements_of(trial, call, [&](size_t k) {
    const Value& v = pointwise.value(call.operands[k]);
    const Type type = *type_of(v.dtype);
    const auto number = is_float(type) ? std::nullopt : same_everywhere(v);
    return number ? trial.constant(type, number->toLong()) : trial.input(type, k);
  });
  for (const Id id : trial.ids())
    if (may_divide_by_zero(trial, id)) return true;
  return false;
}

}  // namespace

bool may_raise(const Graph& graph, const Call& call) {
  if (call.checks()) return true;
  if (const KnownCode* code = known_code(*call.op)) return code->raises;
  return divides_integers(graph, call);
}

}  // namespace tower::compiler
