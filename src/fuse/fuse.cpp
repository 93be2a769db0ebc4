#include "fuse/fuse.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "core/bind.h"
#include "fuse/known_lookups.h"
#include "fuse/matrix_products.h"
#include "fuse/moves_in_memory.h"
#include "fuse/opened.h"
#include "fuse/products_of_one.h"
#include "fuse/row_recompute.h"
#include "fuse/rows.h"
#include "fuse/rows_by_index.h"
#include "fuse/scaled_products.h"
#include "fuse/short_sums.h"
#include "fuse/small.h"
#include "fuse/sums_as_products.h"
#include "fuse/systems_in_memory.h"
#include "fuse/unrolled.h"
#include "fuse/vmaps_of_one.h"
#include "fuse/weighted_sums.h"
#include "graph/effects.h"
#include "graph/kernel_operator.h"
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

// The graph as kernels take it, and which of its calls are to be one kernel.
struct Groups {
  Groups(Graph given, Worth worth, int64_t most_operations)
      : graph(std::move(given)), fewest(worth == Worth::joined ? 2 : 1) {
    remove_identities(graph);
    drop_vmaps_of_one(graph);
    // Those are made of several products by LibTorch.
    if (worth != Worth::outside) contract_summed_products(graph);
    take_scales_out_of_products(graph);
    graph.simplify();
    take_products_out_of_sums(graph);
    drop_vmaps_of_one(graph);
    read_before_expanding(graph);
    graph.simplify_across_vmaps();
    know_lookups(graph);
    join_axes(graph);
    unrolled.emplace(graph, most_operations, worth == Worth::outside);
    for (const auto& calls : Regions::in_order(graph, unrolled->joining(), {}))
      if (unrolled->are_worth_it(calls, worth) || unrolled->are_worth_their_sums(calls)) of_unrolled.push_back(calls);
    unrolled->settle(graph, of_unrolled);
    for (auto& calls : of_unrolled)
      if (auto found = unrolled->sums_of(calls); !found.empty()) {
        calls.insert(calls.end(), found.begin(), found.end());
        std::sort(calls.begin(), calls.end());
        sums.emplace(calls[0], std::move(found));
      }
    for (const auto& calls : of_unrolled) first_of_unrolled.insert(calls[0]);
    rows.emplace(graph, of_unrolled);
    all = Regions::in_order(graph, rows->joining(), of_unrolled);
    settle_rows();
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  bool is_unrolled(const Regions::Calls& calls) const { return first_of_unrolled.count(calls[0]) > 0; }
  bool is_of_rows(const Regions::Calls& calls) const { return calls.size() >= fewest && rows->serves(calls); }

  // What kernels of rows compute again: calls have other numbers then.
  void settle_rows() {
    if (has_effects(graph)) return;
    std::vector<bool> of_rows;
    for (const auto& calls : all) of_rows.push_back(!is_unrolled(calls) && rows->serves(calls));
    if (std::count(of_rows.begin(), of_rows.end(), true) < 2) return;
    const size_t before = graph.calls.size();
    const std::vector<size_t> origin = compute_rows_again(graph, rows->joining(), all, of_rows);
    const std::vector<size_t> now = places_now(origin, before);
    unrolled->renumber(origin);
    decltype(sums) of_sums;
    for (auto& [first, calls] : sums) {
      for (size_t& n : calls) n = now[n];
      of_sums.emplace(now[first], std::move(calls));
    }
    sums = std::move(of_sums);
    first_of_unrolled.clear();
    for (auto& calls : of_unrolled) {
      for (size_t& n : calls) n = now[n];
      first_of_unrolled.insert(calls[0]);
    }
    rows.emplace(graph, of_unrolled);
  }

  Graph graph;
  const size_t fewest;  // calls that are a kernel of rows
  std::optional<Unrolled> unrolled;
  std::vector<Regions::Calls> of_unrolled;
  std::unordered_set<size_t> first_of_unrolled;
  std::unordered_map<size_t, std::vector<size_t>> sums;  // of those: by the first call, sums over the examples
  std::optional<Rows> rows;
  std::vector<Regions::Calls> all;  // in an order in which each finds what it reads
};

// Of operators that kernels do not know, those are opened of which kernels take all that they are made of.
std::unique_ptr<Groups> groups_of(const Graph& graph, Worth worth, int64_t most_operations) {
  Opened opened(graph);
  while (true) {
    DispatchGuard keys;
    // Passes run operators on numbers of elements, to see what they move where: that is nobody's affair.
    keys.see_no_operator();
    auto groups = std::make_unique<Groups>(opened.graph(), worth, most_operations);
    std::set<size_t> left;
    for (const auto& calls : groups->all) {
      if (groups->is_unrolled(calls) || groups->is_of_rows(calls)) continue;
      for (const size_t n : calls)
        if (const auto part = opened.part_of(groups->graph.calls[n]); part && !gives_view(groups->graph.calls[n]))
          left.insert(*part);
    }
    if (left.empty()) return groups;
    for (const size_t part : left) opened.put_back(part);
  }
}

// The calls of a group, of which some run on tensors as they lie.
std::vector<Call> one_by_one(const Graph& graph, const Regions::Calls& group, const Readers& readers, Worth worth) {
  std::vector<Call> calls;
  for (const size_t n : group) {
    if (const CodeInNumbers* code = code_in_numbers(*graph.calls[n].op)) code->compile_itself();
    auto in_memory = product_of_matrices(graph, graph.calls[n]);
    if (!in_memory) in_memory = rows_by_index(graph, graph.calls[n]);
    if (!in_memory && worth != Worth::outside) in_memory = sum_of_short_rows(graph, graph.calls[n]);
    if (!in_memory && worth == Worth::outside) in_memory = systems_in_memory(graph, n, readers);
    if (!in_memory && worth == Worth::outside) in_memory = moves_in_memory(graph, graph.calls[n]);
    calls.push_back(in_memory ? *in_memory : graph.calls[n]);
  }
  return calls;
}

// NOTE [Alone between kernels]
// A call that is joined to no other is LibTorch's where no kernel is near: to make one takes longer than it
// saves. But what kernels and products hand on is a place in memory, of which a tensor would have to be made for this
// call alone, and the dispatcher asked. So the call is a kernel where it reads what they make, or they read what it
// makes.
class BetweenKernels {
 public:
  BetweenKernels(const Graph& graph, const std::vector<std::vector<Call>>& parts) : theirs_(graph.values.size()) {
    for (const auto& part : parts)
      for (const Call& call : part)
        if (dynamic_cast<const KernelOperator*>(call.op)) note(call);
    for (const ValueId id : graph.values.ids())
      if (graph.values[id].tensor.defined()) theirs_[id] = false;
    for (const ValueId id : graph.arguments)
      if (id != kNoValue) theirs_[id] = false;
  }

  bool has(const Call& call) const { return any_is_theirs(call.operands) || any_is_theirs(call.results); }

 private:
  void note(const Call& call) {
    for (const ValueId id : call.operands) theirs_[id] = true;
    for (const ValueId id : call.results) theirs_[id] = true;
  }
  bool any_is_theirs(const std::vector<ValueId>& ids) const {
    return std::any_of(ids.begin(), ids.end(), [&](ValueId id) { return id != kNoValue && theirs_[id]; });
  }

  ById<ValueId, bool> theirs_;  // made for a kernel, or by one
};

}  // namespace

FusedGraph fuse(const Graph& traced, Kernels& kernels, Worth worth, int64_t most_operations) {
  Graph functional = traced;
  functional.makers.clear();
  functional.constants.clear();
  const std::unique_ptr<Groups> groups = groups_of(functional, worth, most_operations);
  const Graph& graph = groups->graph;
  DispatchGuard keys;
  keys.see_no_operator();
  FusedGraph fused{graph, {}};
  fused.graph.calls.clear();
  const Readers readers(graph);
  std::vector<std::vector<Call>> parts;
  for (const auto& calls : groups->all) {
    std::optional<Call> kernel;
    if (groups->is_unrolled(calls))
      kernel = groups->unrolled->write(calls, groups->sums[calls[0]], readers, kernels, fused.kernels);
    else if (groups->is_of_rows(calls)) kernel = groups->rows->write(calls, readers, kernels, fused.kernels);
    parts.push_back(kernel ? std::vector{std::move(*kernel)} : one_by_one(graph, calls, readers, worth));
  }
  const BetweenKernels between(graph, parts);
  for (size_t k = 0; k < parts.size(); ++k) {
    const auto& calls = groups->all[k];
    const Call& call = graph.calls[calls[0]];
    if (calls.size() > 1 || parts[k][0].op != call.op || !between.has(call) || !groups->rows->serves(calls)) continue;
    if (auto kernel = groups->rows->write(calls, readers, kernels, fused.kernels)) parts[k] = {std::move(*kernel)};
  }
  for (auto& part : parts) std::move(part.begin(), part.end(), std::back_inserter(fused.graph.calls));
  remove_known_lookups(fused.graph);
  if (worth != Worth::outside) join_products_of_one(fused.graph);
  remove_unused_values(fused.graph);
  return fused;
}

Report FusedGraph::report() const {
  Report report;
  char line[256];
  for (const Fused& k : kernels) {
    const Kernel::Facts& facts = k.kernel->facts();
    std::snprintf(
        line, sizeof line,
        "kernel %zu: %zu operators, %lld lanes, %d instructions for %lld lanes, %lld bytes a lane, %.1f ms%s\n",
        report.kernels++, k.operators.size(), static_cast<long long>(k.lanes), facts.instructions,
        static_cast<long long>(facts.vector_lanes), static_cast<long long>(facts.bytes_a_lane), facts.milliseconds,
        facts.generated ? "" : " (from a file)");
    report.lines += line;
    report.operators += k.operators.size();
  }
  note_left(graph, report);
  if (blocks)
    report.add_below("in blocks of " + std::to_string(blocks->examples) + " examples", blocks->fused.report());
  return report;
}

}  // namespace tower::compiler
