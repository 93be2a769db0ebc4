#include "fuse/known_lookups.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "core/bind.h"
#include "graph/operand_dims.h"
#include "numbers/small.h"

namespace tower::compiler {
namespace {

bool is_index(const Value& v) { return v.dtype == at::kLong || v.dtype == at::kInt; }

// What it gives are elements of its first operand, as those of a search are not; where they are say indices in all its
// other operands, in examples of which there are some.
bool looks_up_by_indices(const Graph& graph, const Call& call) {
  if (!looks_up(*call.op) || call.op->depends != Depends::on_moved || call.effect || call.results.size() != 1 ||
      call.results[0] == kNoValue || call.operands.size() < 2 || call.places[0].arg != 0)
    return false;
  for (const Mapped& vmap : call.vmaps)
    if (vmap.batch_size == 0) return false;
  return std::all_of(call.operands.begin() + 1, call.operands.end(),
                     [&](ValueId id) { return is_index(graph.values[id]) && count(graph.values[id].sizes) > 0; });
}

bool repeats(const Value& v) {
  if (v.origin != Origin::constant || !v.device.is_cpu() || v.tensor.layout() != at::kStrided) return false;
  for (size_t d = 0; d < v.sizes.size(); ++d)
    if (v.tensor.stride(static_cast<int64_t>(d)) == 0 && v.sizes[d] > 1) return true;
  return false;
}

// The sizes of operand `k` for one example.
Sizes of_example(const Graph& graph, const Call& call, size_t k) {
  const Sizes& sizes = graph.values[call.operands[k]].sizes;
  Sizes result;
  for (const int64_t d : seen(call, k, sizes.size(), kNoAxis).of_example) result.push_back(along(sizes, d));
  return result;
}

// Whether both look at the same indices, for tables of the same size.
bool check_the_same(const Graph& graph, const Call& a, const Call& b) {
  if (a.op != b.op || a.operands.size() != b.operands.size() ||
      !std::equal(a.operands.begin() + 1, a.operands.end(), b.operands.begin() + 1) ||
      of_example(graph, a, 0) != of_example(graph, b, 0))
    return false;
  for (size_t k = 0; k < a.operands.size(); ++k)
    if (a.places[k].arg != b.places[k].arg || a.places[k].element != b.places[k].element) return false;
  for (size_t i = 0; i < a.args.size(); ++i)
    if (a.op->kind(i) == ArgKind::other && exact_text(a.args[i]) != exact_text(b.args[i])) return false;
  return true;
}

// What the call gives for one example where each index is `index`; undefined where that is out of range.
Tensor looked_up(const Graph& graph, const Call& call, const Tensor& table, int64_t index) {
  Stack stack = call.args;
  size_t k = 0;
  replace_tensors(*call.op, stack, [&](const Tensor&, LeafRef) {
    const size_t operand = k++;
    if (operand == 0) return table;
    return at::full(of_example(graph, call, operand), index, graph.values[call.operands[operand]].dtype);
  });
  try {
    call.op->call(stack);
  } catch (const c10::Error&) {
    return {};
  }
  return flatten_outputs(stack)[0];
}

// The result, whatever the indices are; undefined if it depends on them.
//
// Elements of the table are numbered by where they are in memory. A number grows along a dimension, or the elements
// repeat along it. So if indices of all zeros and of all ones find the same numbers, those that are looked up along
// repeat. That does not hold where an index counts elements of several dimensions: then more than the size of any of
// them is in range.
Tensor known_result(const Graph& graph, const Call& call) {
  const Tensor& table = graph.values[call.operands[0]].tensor;
  const Sizes& wanted = graph.values[call.results[0]].sizes;
  const Seen in_call = seen(call, 0, static_cast<size_t>(table.dim()), kNoAxis);
  std::vector<int64_t> sizes, strides;
  int64_t numbers = 1, longest = 0;
  for (const int64_t d : in_call.of_example) {
    sizes.push_back(table.size(d)), strides.push_back(table.stride(d));
    numbers += (table.size(d) - 1) * table.stride(d);
    longest = std::max(longest, table.size(d));
  }
  if (numbers < 1) return {};
  const Tensor places = at::arange(numbers, at::kLong).as_strided(sizes, strides);
  const Tensor found = looked_up(graph, call, places, 0), other = looked_up(graph, call, places, 1);
  if (!found.defined() || !other.defined() || !at::equal(found, other) ||
      looked_up(graph, call, places, longest).defined())
    return {};
  // The same for all examples, one after the other: those along which the table repeats have one in common.
  std::vector<int64_t> shared, steps;
  for (const int64_t d : in_call.of_vmaps) {
    const bool differs = d >= 0 && table.stride(d) != 0;
    shared.push_back(differs ? table.size(d) : 1), steps.push_back(differs ? table.stride(d) : 0);
  }
  std::vector<int64_t> of_result = shared;
  of_result.insert(of_result.end(), found.sizes().begin(), found.sizes().end());
  shared.push_back(numbers), steps.push_back(1);
  const Tensor elements = table.as_strided(shared, steps, table.storage_offset());
  const Tensor result = elements.index_select(-1, found.flatten()).view(of_result);
  if (result.scalar_type() != graph.values[call.results[0]].dtype || of_result.size() != wanted.size()) return {};
  return result.expand(wanted);
}

}  // namespace

void know_lookups(Graph& graph) {
  std::vector<const Call*> by_indices;
  for (const Call& call : graph.calls)
    if (looks_up_by_indices(graph, call)) by_indices.push_back(&call);
  for (const Call* call : by_indices) {
    if (!repeats(graph.values[call->operands[0]])) continue;
    const auto checks = [&](const Call* other) {
      return !repeats(graph.values[other->operands[0]]) && check_the_same(graph, *call, *other);
    };
    if (std::any_of(by_indices.begin(), by_indices.end(), checks))
      graph.values[call->results[0]].known = known_result(graph, *call);
  }
}

void remove_known_lookups(Graph& graph) {
  ById<ValueId, bool> needed(graph.values.size());
  for (const ValueId id : graph.results)
    if (id != kNoValue) needed[id] = true;
  std::vector<bool> unread(graph.calls.size());
  for (size_t n = graph.calls.size(); n-- > 0;) {
    const Call& call = graph.calls[n];
    unread[n] = call.results.size() == 1 && call.results[0] != kNoValue &&
                graph.values[call.results[0]].known.defined() && !needed[call.results[0]];
    if (unread[n]) continue;
    for (const ValueId id : call.operands) needed[id] = true;
  }
  size_t n = 0;
  std::erase_if(graph.calls, [&](const Call&) { return unread[n++]; });
  for (const ValueId id : graph.values.ids()) graph.values[id].known = Tensor();
}

}  // namespace tower::compiler
