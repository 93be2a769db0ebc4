#include "graph/viewed.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>

#include "core/bind.h"
#include "graph/addresses.h"
#include "graph/plan.h"

namespace tower::compiler {

std::optional<std::vector<Lies>> lie_in_operand(const Graph& graph, const Call& call, const Lies& operand) {
  Graph alone;
  Call view = call;
  alone.arguments = view.operands = {alone.values.add(graph.values[call.operands[0]])};
  for (ValueId& id : view.results)
    if (id != kNoValue) alone.results.push_back(id = alone.values.add(graph.values[id]));
  for (Value& v : alone.values) v.tensor = Tensor();
  alone.calls.push_back(std::move(view));
  const Tensor like = at::detail::empty_strided_cpu(operand.sizes, operand.strides, operand.dtype);
  std::vector<Lies> lie;
  for (const Tensor& t : Plan(std::move(alone)).run({like})) {
    if (!t.is_alias_of(like) || t.scalar_type() != operand.dtype) return std::nullopt;
    lie.push_back({Sizes(t.sizes()), Sizes(t.strides()), operand.dtype, operand.offset + t.storage_offset()});
  }
  return lie;
}

namespace {

bool may_be_settled(const Graph& graph, const Call& call) {
  return !call.effect && !call.opaque() && call.op->is_view() && !is_given_addresses(*call.op) &&
         call.operands.size() == 1 && call.results.size() == 1 && call.results[0] != kNoValue &&
         count(graph.values[call.operands[0]].sizes) > 0;
}

}  // namespace

ById<ValueId, std::optional<Viewed>> views_in_memory(const Graph& graph, const ById<ValueId, std::optional<Lies>>& lies,
                                                     const std::vector<bool>& takes_memory) {
  ById<ValueId, std::optional<Viewed>> views(graph.values.size());
  // Views are made of numbers that nobody sees.
  DispatchGuard keys;
  keys.see_no_operator();
  for (const Call& call : graph.calls) {
    if (!may_be_settled(graph, call)) continue;
    const ValueId of = call.operands[0], result = call.results[0];
    const std::optional<Viewed> viewed = views[of] || !lies[of] ? views[of] : Viewed{of, *lies[of]};
    const auto lie = viewed ? lie_in_operand(graph, call, viewed->lies) : std::nullopt;
    const auto is_as_traced = [&](const Value& v) {
      return lie->at(0).sizes == v.sizes && lie->at(0).dtype == v.dtype;
    };
    if (lie && is_as_traced(graph.values[result])) views[result] = Viewed{viewed->of, lie->at(0)};
  }
  ById<ValueId, bool> is_seen(graph.values.size(), false);
  for (const ValueId id : graph.results)
    if (id != kNoValue) is_seen[id] = true;
  for (size_t n = graph.calls.size(); n-- > 0;) {
    const Call& call = graph.calls[n];
    const bool is_settled = may_be_settled(graph, call) && views[call.results[0]] && !is_seen[call.results[0]];
    if (takes_memory[n] || is_settled) continue;
    for (const ValueId id : call.operands) is_seen[id] = true;
  }
  for (const ValueId id : graph.values.ids())
    if (is_seen[id]) views[id].reset();
  return views;
}

}  // namespace tower::compiler
