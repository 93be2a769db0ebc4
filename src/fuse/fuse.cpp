#include "fuse/fuse.h"

#include <algorithm>
#include <cstdio>
#include <unordered_map>
#include <unordered_set>

#include "core/bind.h"
#include "fuse/matrix_products.h"
#include "fuse/rows.h"
#include "fuse/small.h"
#include "fuse/sums_as_products.h"
#include "fuse/unrolled.h"
#include "graph/pointwise.h"

namespace tower::compiler {
namespace {

// Calls that give their operand, on plain tensors that nothing follows, where nobody outside sees which of the two it
// is.
void remove_identities(Graph& graph) {
  ById<ValueId, bool> leaves(graph.values.size());
  for (const ValueId id : graph.results)
    if (id != kNoValue) leaves[id] = true;
  std::unordered_map<ValueId, ValueId> stands_for;
  std::erase_if(graph.calls, [&](Call& call) {
    for (ValueId& id : call.operands)
      if (const auto found = stands_for.find(id); found != stands_for.end()) id = found->second;
    if (call.op->moves != Moves::nothing || !call.op->is_view() || leaves[call.results[0]]) return false;
    // Under a vmap the examples may have been elsewhere.
    for (size_t v = 0; v < call.vmaps.size(); ++v)
      if (call.vmaps[v].dims[0] != 0) return false;
    stands_for.emplace(call.results[0], call.operands[0]);
    return true;
  });
}

// What is not read may be there for its sizes, which are then the result's: copy, fill.
bool reads_all_operands(const Graph& graph, const Call& call) {
  const Pointwise pointwise{graph};
  if (!pointwise.is_of_numbers(call)) return false;
  Expressions trial;
  std::vector<Id> inputs;
  for (const ValueId id : call.operands)
    inputs.push_back(trial.input(*type_of(pointwise.value(id).dtype), inputs.size()));
  const std::vector<Id> results = pointwise.elements_of(trial, call, [&](size_t k) { return inputs[k]; });
  const ById<Id, bool> needed = trial.needed(results);
  return !results.empty() && std::all_of(inputs.begin(), inputs.end(), [&](Id id) { return needed[id]; });
}

// Where another operand of a pointwise call has all elements, the call reads an expanded operand as it was before
// `expand`: then it is known which dimensions the operand repeats along, and the operand may be made in the same
// kernel.
void read_before_expanding(Graph& graph) {
  ById<ValueId, ValueId> before(graph.values.size(), kNoValue);
  const auto value = [&](ValueId id) -> const Value& { return graph.values[id]; };
  for (Call& call : graph.calls) {
    if (!call.vmaps.empty() || call.results.empty() || call.results[0] == kNoValue) continue;
    if (call.op->moves == Moves::broadcast) {
      const ValueId from = call.operands[0];
      const ValueId earlier = before[from];
      before[call.results[0]] = earlier == kNoValue ? from : earlier;
    }
    const auto is_expanded = [&](ValueId id) { return before[id] != kNoValue; };
    if (call.effect || call.opaque() || !element_rule(*call.op) ||
        std::none_of(call.operands.begin(), call.operands.end(), is_expanded))
      continue;
    const Value& result = value(call.results[0]);
    const auto is_whole = [&](ValueId id) { return !is_expanded(id) && value(id).sizes == result.sizes; };
    // One dtype: what has no dimensions counts less in type promotion.
    const auto is_alike = [&](ValueId id) { return value(id).dtype == value(call.operands[0]).dtype; };
    if (!std::all_of(call.operands.begin(), call.operands.end(), is_alike) ||
        std::none_of(call.operands.begin(), call.operands.end(), is_whole) || !reads_all_operands(graph, call))
      continue;
    for (ValueId& id : call.operands)
      if (is_expanded(id)) id = before[id];
  }
}

// Leaves only the values that a call or the graph reads or gives: a plan makes room for every value.
void remove_unused_values(Graph& graph) {
  ById<ValueId, ValueId> number(graph.values.size(), kNoValue);
  ById<ValueId, Value> kept;
  const auto keep = [&](ValueId& id) {
    if (id == kNoValue) return;
    ValueId& n = number[id];
    if (n == kNoValue) n = kept.add(graph.values[id]);
    id = n;
  };
  for (ValueId& id : graph.arguments) keep(id);
  for (Call& call : graph.calls) {
    for (ValueId& id : call.operands) keep(id);
    for (ValueId& id : call.results) keep(id);
  }
  for (ValueId& id : graph.results) keep(id);
  graph.values = std::move(kept);
}

}  // namespace

FusedGraph fuse(const Graph& traced, Kernels& kernels, size_t fewest) {
  // Passes run operators on numbers of elements, to see what they move where: that is nobody's affair.
  DispatchGuard keys;
  keys.see_no_operator();
  Graph graph = traced;
  graph.makers.clear();
  graph.constants.clear();
  remove_identities(graph);
  contract_summed_products(graph);
  read_before_expanding(graph);
  graph.simplify();
  Unrolled unrolled(graph);
  std::vector<Regions::Calls> of_unrolled;
  for (const auto& calls : Regions::in_order(graph, unrolled.joining(), {}))
    if (unrolled.are_worth_it(calls, fewest) || unrolled.are_worth_their_sums(graph, calls))
      of_unrolled.push_back(calls);
  unrolled.settle(graph, of_unrolled);
  std::unordered_map<size_t, std::vector<size_t>> sums;  // by the first call of a group
  for (auto& calls : of_unrolled)
    if (auto found = unrolled.sums_of(graph, calls); !found.empty()) {
      calls.insert(calls.end(), found.begin(), found.end());
      std::sort(calls.begin(), calls.end());
      sums.emplace(calls[0], std::move(found));
    }
  std::unordered_set<size_t> first_of_unrolled;
  for (const auto& calls : of_unrolled) first_of_unrolled.insert(calls[0]);
  FusedGraph fused{graph, {}};
  fused.graph.calls.clear();
  const Readers readers(graph);
  const Rows rows(graph);
  for (const auto& calls : Regions::in_order(graph, rows.joining(), of_unrolled)) {
    std::optional<Call> kernel;
    if (first_of_unrolled.count(calls[0]))
      kernel = unrolled.write(calls, sums[calls[0]], readers, kernels, fused.kernels);
    else if (calls.size() >= fewest && rows.serves(calls)) kernel = rows.write(calls, readers, kernels, fused.kernels);
    if (kernel) {
      fused.graph.calls.push_back(std::move(*kernel));
      continue;
    }
    for (const size_t n : calls) {
      if (const CodeInNumbers* code = code_in_numbers(*graph.calls[n].op)) code->compile_itself();
      const auto product = product_of_matrices(graph, graph.calls[n]);
      fused.graph.calls.push_back(product ? *product : graph.calls[n]);
    }
  }
  remove_unused_values(fused.graph);
  return fused;
}

std::string FusedGraph::report() const {
  std::string text;
  char line[256];
  for (size_t n = 0; n < kernels.size(); ++n) {
    const Fused& k = kernels[n];
    const Kernel::Facts& facts = k.kernel->facts();
    std::snprintf(
        line, sizeof line,
        "kernel %zu: %zu operators, %lld lanes, %d instructions for %lld lanes, %lld bytes a lane, %.1f ms%s\n", n,
        k.operators.size(), static_cast<long long>(k.lanes), facts.instructions,
        static_cast<long long>(facts.vector_lanes), static_cast<long long>(facts.bytes_a_lane), facts.milliseconds,
        facts.generated ? "" : " (from a file)");
    text += line;
  }
  return text;
}

}  // namespace tower::compiler
