#include "fuse/opened.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <unordered_set>

#include "core/bind.h"
#include "graph/addresses.h"
#include "graph/effects.h"
#include "graph/operand_dims.h"
#include "graph/trace.h"
#include "numbers/element.h"
#include "numbers/fold.h"
#include "operators/decompositions.h"

namespace tower::compiler {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 20;  // of a call that is tried with ones

// Decompositions are Tower's own: code of the user's is not run while a graph is fused.
bool may_be_opened(const Graph& graph, const Call& call) {
  const Operator& op = *call.op;
  const auto is_here = [&](ValueId id) { return id == kNoValue || graph.values[id].device.is_cpu(); };
  return call.vmaps.empty() && !call.effect && !call.opaque() && !call.random() && !call.operands.empty() &&
         !call.results.empty() && op.decomposition && op.opens_up() && !is_decomposed_by_user(op) &&
         !is_given_addresses(op) && !element_rule(op) && !fold_rule(op) && !op.contraction &&
         std::all_of(call.operands.begin(), call.operands.end(), is_here) &&
         std::all_of(call.results.begin(), call.results.end(), is_here);
}

// A tensor of the value's kind: on the device meta it has no memory, elsewhere it is ones.
Tensor stand_in_for(const Value& v, at::Device device) {
  Tensor t = at::empty_strided(v.sizes, v.strides, at::TensorOptions(v.dtype).device(device));
  if (!device.is_meta()) t.fill_(1);
  if (v.number) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

// Whether the graph gives, for each result of the call, a tensor of its own, of the same sizes and dtype, and as it
// lies.
bool gives_the_same(const Graph& inside, const Graph& whole, const Call& call) {
  if (inside.results.size() != call.results.size()) return false;
  ById<ValueId, bool> shown(inside.values.size());  // shares memory with what the call was given
  for (const ValueId id : inside.values.ids()) shown[id] = inside.values[id].origin != Origin::result;
  for (const Call& part : inside.calls)
    if (gives_view(part))
      for (const ValueId id : part.results)
        if (id != kNoValue) shown[id] = shown[part.operands[0]];
  std::unordered_set<ValueId> results;
  for (size_t k = 0; k < call.results.size(); ++k) {
    const ValueId made = inside.results[k], wanted = call.results[k];
    if (made == kNoValue && wanted == kNoValue) continue;
    if (made == kNoValue || wanted == kNoValue || shown[made] || !results.insert(made).second) return false;
    if (inside.values[made].sizes != whole.values[wanted].sizes ||
        inside.values[made].dtype != whole.values[wanted].dtype ||
        inside.values[made].strides != whole.values[wanted].strides)
      return false;
  }
  return true;
}

// What the call is made of, for anything in the place of its operands; none where that is not known.
std::optional<Graph> inside_of(const Graph& whole, const Call& call, at::Device device) try {
  dynamic::Tensors operands;
  for (const ValueId id : call.operands) operands.push_back(stand_in_for(whole.values[id], device));
  const dynamic::Function parts = [&](const dynamic::Tensors& given) -> dynamic::Tensors {
    Stack stack = call.args;
    size_t next = 0;
    replace_tensors(*call.op, stack, [&](const Tensor&, LeafRef) { return given[next++]; });
    if (!decompose(*call.op, stack)) return {};
    const auto outs = flatten_outputs(stack);
    return {outs.begin(), outs.end()};
  };
  // The call was recorded below autocast, and stays there.
  DispatchGuard keys;
  keys.skip_autocast();
  Graph inside = trace(parts, operands, "compile").graph;
  inside.simplify();
  for (Value& v : inside.values) {
    // What a constant is would have to be computed, and what is captured is somebody's memory.
    if (v.tensor.defined() && (v.origin == Origin::captured || !v.tensor.device().is_cpu())) return std::nullopt;
    v.device = at::kCPU;
  }
  for (const Call& part : inside.calls)
    if (part.effect || part.opaque() || part.random() || part.op == call.op) return std::nullopt;
  if (!gives_the_same(inside, whole, call)) return std::nullopt;
  return inside;
} catch (const std::exception&) {
  return std::nullopt;  // it reads values, or LibTorch has no shapes without memory for something that it calls
}

// Without memory, if LibTorch does it; else with some, if that is not much.
std::optional<Graph> inside_of(const Graph& whole, const Call& call) {
  if (auto inside = inside_of(whole, call, at::kMeta)) return inside;
  int64_t elements = 0;
  for (const auto& ids : {call.operands, call.results})
    for (const ValueId id : ids)
      if (id != kNoValue) elements += count(whole.values[id].sizes);
  return elements <= kMostElements ? inside_of(whole, call, at::kCPU) : std::nullopt;
}

}  // namespace

Opened::Opened(const Graph& whole) : whole_(whole), values_(whole.values) {
  const ById<ValueId, bool> leaves = values_that_leave(whole);
  const bool writes = has_effects(whole);
  // What is opened gives tensors of its own, which a view that somebody may write to, or sees, is not.
  const auto has_to_share = [&](const Call& call) {
    const auto leaves_here = [&](ValueId id) { return id != kNoValue && leaves[id]; };
    return gives_view(call) && (writes || std::any_of(call.results.begin(), call.results.end(), leaves_here));
  };
  for (size_t n = 0; n < whole.calls.size(); ++n) {
    const Call& call = whole.calls[n];
    if (!may_be_opened(whole, call) || has_to_share(call)) continue;
    auto inside = inside_of(whole, call);
    if (!inside) continue;
    Part part{n, std::move(*inside), {}, true};
    for (const ValueId id : part.inside.values.ids()) {
      const auto argument = std::find(part.inside.arguments.begin(), part.inside.arguments.end(), id);
      const auto result = std::find(part.inside.results.begin(), part.inside.results.end(), id);
      if (argument != part.inside.arguments.end())
        part.number.add(call.operands[static_cast<size_t>(argument - part.inside.arguments.begin())]);
      else if (result != part.inside.results.end())
        part.number.add(call.results[static_cast<size_t>(result - part.inside.results.begin())]);
      else part.number.add(values_.add(part.inside.values[id]));
    }
    for (const Call& made : part.inside.calls)
      for (const ValueId id : made.results)
        if (id != kNoValue) makers_.emplace(part.number[id], parts_.size());
    parts_.push_back(std::move(part));
  }
}

Graph Opened::graph() const {
  Graph graph = whole_;
  graph.values = values_;
  graph.calls.clear();
  auto part = parts_.begin();
  for (size_t n = 0; n < whole_.calls.size(); ++n) {
    if (part == parts_.end() || part->call != n) {
      graph.calls.push_back(whole_.calls[n]);
      continue;
    }
    if (!part->open) graph.calls.push_back(whole_.calls[n]);
    else
      for (Call call : part->inside.calls) {
        for (ValueId& id : call.operands) id = part->number[id];
        for (ValueId& id : call.results)
          if (id != kNoValue) id = part->number[id];
        graph.calls.push_back(std::move(call));
      }
    ++part;
  }
  return graph;
}

std::optional<size_t> Opened::part_of(const Call& call) const {
  for (const ValueId id : call.results)
    if (const auto found = makers_.find(id); found != makers_.end() && parts_[found->second].open) return found->second;
  return std::nullopt;
}

}  // namespace tower::compiler
