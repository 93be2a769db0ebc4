#include "numbers/small.h"

#include "records/rule_table.h"

namespace tower::compiler {

std::vector<size_t> broadcast(const Sizes& from, const Sizes& sizes) {
  std::vector<size_t> result{0};
  size_t stride = 1;
  // From the last dimension on: what is there already is repeated for each place in the next one.
  for (size_t d = sizes.size(); d-- > 0;) {
    const size_t missing = sizes.size() - from.size();
    const bool varies = d >= missing && from[d - missing] != 1;
    const size_t inner = result.size();
    const auto n = static_cast<size_t>(sizes[d]);
    result.resize(inner * n);
    for (size_t i = n; i-- > 0;)
      for (size_t k = 0; k < inner; ++k) result[i * inner + k] = result[k] + (varies ? i * stride : 0);
    if (d >= missing) stride *= static_cast<size_t>(from[d - missing]);
  }
  return result;
}

std::vector<Sizes> places_in(const Sizes& sizes) {
  std::vector<Sizes> places{{}};
  for (const int64_t n : sizes) {
    std::vector<Sizes> next;
    for (const Sizes& place : places)
      for (int64_t i = 0; i < n; ++i) {
        next.push_back(place);
        next.back().push_back(i);
      }
    places = std::move(next);
  }
  return places;
}

const Small* SmallCall::tensor(size_t arg) const {
  for (size_t k = 0; k < operands.size(); ++k)
    if (places[k].arg == arg) return operands[k];
  return nullptr;
}

SmallResults SmallCall::give(Sizes sizes, const std::vector<E>& elements) const {
  Small t{std::move(sizes), {}, dtypes[0]};
  for (const E& e : elements) t.ids.push_back(e.to(type(0)).id());
  return {t};
}

c10::SmallVector<Tensor, 2> SmallCall::run(Stack arguments, c10::ArrayRef<Tensor> tensors) const {
  size_t next = 0;
  replace_tensors(op, arguments, [&](const Tensor&, LeafRef) { return tensors[next++]; });
  op.call(arguments);
  return flatten_outputs(arguments);
}

bool is_table(const Small& t) { return c10::multiply_integers(t.sizes) > static_cast<int64_t>(t.ids.size()); }

namespace {

rules::RuleTable<SmallRule>& small_rules() {
  static auto& table = *new rules::RuleTable<SmallRule>;
  return table;
}

struct LooksUp {};
rules::RuleTable<LooksUp>& tables() {
  static auto& table = *new rules::RuleTable<LooksUp>;
  return table;
}

}  // namespace

bool looks_up(const Operator& op) { return tables().find(op) != nullptr; }
void set_looks_up(const Operator& op) { tables().set(op, LooksUp()); }

const SmallRule* small_rule(const Operator& op) { return small_rules().find(op); }
void set_small_rule(const Operator& op, SmallRule rule) { small_rules().set(op, std::move(rule)); }

}  // namespace tower::compiler
