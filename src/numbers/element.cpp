#include "numbers/element.h"

#include <ATen/core/TensorBase.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "numbers/promotion.h"
#include "records/rule_table.h"

namespace tower::compiler {
namespace {

rules::RuleTable<ElementRule>& element_rules() {
  static auto& table = *new rules::RuleTable<ElementRule>;
  return table;
}

rules::RuleTable<InHalves>& how_in_halves() {
  static auto& table = *new rules::RuleTable<InHalves>;
  return table;
}
InHalves in_halves(const Operator& op) {
  const InHalves* how = how_in_halves().find(op);
  return how ? *how : InHalves{Rounds::otherwise, Rounds::otherwise};
}

}  // namespace

const ElementRule* element_rule(const Operator& op) { return element_rules().find(op); }
void set_element_rule(const Operator& op, ElementRule rule) { element_rules().set(op, std::move(rule)); }
void set_in_halves(const Operator& op, InHalves how) { how_in_halves().set(op, how); }

E ElementCall::operand(size_t at) const {
  E e(graph, elements[at].id);
  if (round_operands && !(keeps_second && at == 1)) e = e.to(*round_operands);
  return e.to(computed_in);
}

E ElementCall::number(size_t at) const {
  return detail::number(graph, round_numbers.value_or(computed_in), args[at].toScalar()).to(computed_in);
}

namespace {

// Elements of half types are read as f32, whatever a rule makes of them.
std::vector<ElementArgument> without_half_types(Expressions& graph, c10::ArrayRef<ElementArgument> elements) {
  std::vector<ElementArgument> all = elements.vec();
  for (ElementArgument& e : all)
    if (e.id != kNone) e.id = graph.cast(e.id, computing_type(graph[e.id].type));
  return all;
}

// NOTE [Rounding to half types]. None where no kernel is to compute the call.
std::optional<ElementCall> call_in(Type type, ElementCall call, const Operator& op) {
  if (!is_half(type)) return call;
  const InHalves how = in_halves(op);
  const bool keeps = how.keeps_number && call.elements.size() > 1 && call.elements[1].id != kNone &&
                     (call.elements[1].number || call.elements[1].scalar);
  const Rounds rounds = keeps ? Rounds::result : type == Type::f16 ? how.f16 : how.bf16;
  if (rounds == Rounds::otherwise) return std::nullopt;
  if (rounds == Rounds::each_operation) return call;
  call.computed_in = Type::f32;
  call.round_operands = type;
  if (rounds == Rounds::numbers_and_result) call.round_numbers = type;
  call.keeps_second = keeps;
  return call;
}

}  // namespace

std::vector<Id> elements(Expressions& graph, const Operator& op, c10::ArrayRef<IValue> args,
                         c10::ArrayRef<ElementArgument> elements, c10::ArrayRef<at::ScalarType> results) {
  const ElementRule* rule = element_rule(op);
  // The type to which LibTorch's pointwise kernels promote: that of the result, or where that is a boolean, the one of
  // the arguments.
  const auto type = results[0] == at::kBool ? promoted(args, elements) : type_of(results[0]);
  if (!rule || !type) return {};
  for (const at::ScalarType dtype : results)
    if (!type_of(dtype)) return {};
  const std::vector<ElementArgument> computable = without_half_types(graph, elements);
  const auto call = call_in(*type, {graph, args, computable, *type}, op);
  if (!call) return {};
  std::vector<Id> ids = (*rule)(*call);
  // A rule that gives a boolean of operands of any type is a comparison. Other rules with boolean results compute in
  // booleans: a number among the arguments, such as the alpha of a sum, had no part in the promotion.
  const auto is_boolean = [&](Id id) { return graph[id].type == Type::b1; };
  if (results[0] == at::kBool && *type != Type::b1 && !std::all_of(ids.begin(), ids.end(), is_boolean))
    ids = (*rule)({graph, args, computable, Type::b1});
  if (ids.empty()) return {};
  TORCH_INTERNAL_ASSERT(ids.size() == results.size(), op.name(), " has other outputs than its element rule");
  for (size_t k = 0; k < ids.size(); ++k) ids[k] = graph.cast(ids[k], *type_of(results[k]));
  return ids;
}

std::pair<E, E> E::together(Operand a, Operand b) {
  TORCH_INTERNAL_ASSERT(a.graph_ || b.graph_);
  const auto resolve = [](const Operand& x, const Operand& other) {
    if (x.graph_) return E(*x.graph_, x.id_);
    return E(*other.graph_, other.id_).like(x.number_);
  };
  return {resolve(a, b), resolve(b, a)};
}

E E::of(Op op, Operand a, Operand b) {
  const auto [x, y] = together(a, b);
  return x.made(op, y);
}

E operator/(Operand a, Operand b) {
  const auto [x, y] = E::together(a, b);
  return x.made(x.floating() ? Op::div : Op::quotient, y);
}

E where(E mask, Operand a, Operand b) {
  const auto [x, y] = E::together(a, b);
  return mask.made(Op::select, x, y);
}

E fma(E a, E b, E c) { return a.floating() ? a.made(Op::fma, b, c) : a * b + c; }

E fmod(E x, E y) { return x.made(x.floating() ? Op::fmod : Op::rest, y); }

E asinh(E x) { return x.made(Op::asinh); }
E acosh(E x) { return x.made(Op::acosh); }

E at_least(E x, Operand low) {
  const auto [l, value] = E::together(low, x);
  return where(isnan(l) | (l > value), l, value);
}
E at_most(E x, Operand high) {
  const auto [h, value] = E::together(high, x);
  return where(isnan(h) | (h < value), h, value);
}

E maximum(E a, E b) {
  const E larger = where(a > b, a, b);
  return a.floating() ? where(isnan(a), a, larger) : larger;
}
E minimum(E a, E b) {
  const E smaller = where(a < b, a, b);
  return a.floating() ? where(isnan(a), a, smaller) : smaller;
}

}  // namespace tower::compiler
