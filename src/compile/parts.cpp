#include "compile/parts.h"

#include <algorithm>
#include <unordered_map>

namespace tower::compiler {
namespace {

constexpr size_t kNobody = static_cast<size_t>(-1);

size_t at(ValueId id) { return static_cast<size_t>(id); }

// Some calls of a graph as a graph, which numbers its values anew.
class Part {
 public:
  explicit Part(const Graph& whole) : whole_(whole), own_(whole.values.size(), kNoValue) {}

  /// The next argument is this value, wherever it came from; none for an undefined tensor.
  void add_argument(ValueId id) {
    if (id == kNoValue) {
      graph_.arguments.push_back(kNoValue);
      return;
    }
    const ValueId mine = own_[at(id)] = add(id, Origin::argument);
    graph_.values[at(mine)].tensor = Tensor();
    graph_.arguments.push_back(mine);
  }
  void add_call(const Call& call) {
    Call copy = call;
    for (ValueId& id : copy.operands) id = number_of(id);
    for (ValueId& id : copy.results)
      if (id != kNoValue) id = own_[at(id)] = add(id, Origin::result);
    graph_.calls.push_back(std::move(copy));
  }
  void add_result(ValueId id) { graph_.results.push_back(number_of(id)); }

  Graph take() { return std::move(graph_); }

 private:
  ValueId add(ValueId id, Origin origin) {
    graph_.values.push_back(whole_.values[at(id)]);
    graph_.values.back().origin = origin;
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }
  // What no call of the part gives is a tensor that the graph holds.
  ValueId number_of(ValueId id) {
    if (own_[at(id)] == kNoValue) own_[at(id)] = add(id, whole_.values[at(id)].origin);
    return own_[at(id)];
  }

  const Graph& whole_;
  std::vector<ValueId> own_;
  Graph graph_;
};

// Which call gives each value.
std::vector<size_t> makers(const Graph& graph) {
  std::vector<size_t> makers(graph.values.size(), kNobody);
  for (size_t n = 0; n < graph.calls.size(); ++n)
    for (const ValueId id : graph.calls[n].results)
      if (id != kNoValue) makers[at(id)] = n;
  return makers;
}

// What has to be there for `wanted`: marks the calls, walking over those that `through` lets pass, and returns the
// values at which it stopped, in their order.
template <class Through>
std::vector<ValueId> reach(const Graph& graph, const std::vector<ValueId>& wanted, std::vector<bool>& calls,
                           Through through) {
  std::vector<bool> needed(graph.values.size(), false);
  for (const ValueId id : wanted) needed[at(id)] = true;
  calls.assign(graph.calls.size(), false);
  const std::vector<size_t> made_by = makers(graph);
  for (size_t n = graph.calls.size(); n-- > 0;) {
    const Call& call = graph.calls[n];
    if (!through(n)) continue;
    for (const ValueId id : call.results) calls[n] = calls[n] || (id != kNoValue && needed[at(id)]);
    if (!calls[n]) continue;
    for (const ValueId id : call.operands) needed[at(id)] = true;
  }
  std::vector<ValueId> stopped;
  for (size_t id = 0; id < needed.size(); ++id)
    if (needed[id] && (made_by[id] == kNobody || !calls[made_by[id]])) stopped.push_back(static_cast<ValueId>(id));
  return stopped;
}

bool only_computes(const Graph& graph) {
  bool written = false;
  for (const Call& call : graph.calls) {
    if (call.random() || call.opaque()) return false;
    if (call.effect && graph.values[at(call.operands[0])].origin != Origin::argument) return false;
    // What follows a write shows what was written to.
    if (written && !call.effect && !gives_view(call)) return false;
    written = written || call.effect;
  }
  return true;
}

}  // namespace

std::optional<WithoutEffects> split_effects(const Graph& graph) {
  if (!only_computes(graph)) return std::nullopt;
  // Outside: writes, and the views by which results show what they are views of.
  std::vector<bool> outside(graph.calls.size(), false);
  std::vector<bool> shown(graph.values.size(), false);
  for (const ValueId id : graph.results) shown[at(id)] = true;
  for (size_t n = graph.calls.size(); n-- > 0;) {
    const Call& call = graph.calls[n];
    outside[n] = call.effect;
    if (!gives_view(call)) continue;
    for (const ValueId id : call.results) outside[n] = outside[n] || (id != kNoValue && shown[at(id)]);
    if (!outside[n]) continue;
    for (const ValueId id : call.operands) shown[at(id)] = true;
  }
  std::vector<ValueId> wanted = graph.results;
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (outside[n]) wanted.insert(wanted.end(), graph.calls[n].operands.begin(), graph.calls[n].operands.end());

  WithoutEffects split;
  Part out(graph);
  for (const ValueId id : graph.arguments) out.add_argument(id);
  const std::vector<size_t> made_by = makers(graph);
  std::vector<ValueId> given;  // by what is inside
  for (const ValueId id : wanted)
    if (made_by[at(id)] != kNobody && !outside[made_by[at(id)]] &&
        std::find(given.begin(), given.end(), id) == given.end())
      given.push_back(id);
  if (given.empty()) return std::nullopt;
  for (const ValueId id : given) out.add_argument(id);
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (outside[n]) out.add_call(graph.calls[n]);
  for (const ValueId id : graph.results) out.add_result(id);
  split.outside = out.take();

  std::vector<bool> calls;
  Part in(graph);
  for (const ValueId id : reach(graph, given, calls, [&](size_t n) { return !graph.calls[n].effect; })) {
    const Value& value = graph.values[at(id)];
    if (value.origin == Origin::constant) continue;
    const auto argument = std::find(graph.arguments.begin(), graph.arguments.end(), id);
    split.operands.push_back({static_cast<size_t>(argument - graph.arguments.begin()), value.tensor});
    in.add_argument(id);
  }
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (calls[n]) in.add_call(graph.calls[n]);
  for (const ValueId id : given) in.add_result(id);
  split.inside = in.take();
  return split;
}

Halves split_linear(const Graph& graph, size_t operands, size_t outs) {
  std::vector<bool> depends(graph.values.size(), false);
  for (size_t i = operands; i < graph.arguments.size(); ++i) depends[at(graph.arguments[i])] = true;
  std::vector<bool> linear(graph.calls.size(), false);
  for (size_t n = 0; n < graph.calls.size(); ++n) {
    for (const ValueId id : graph.calls[n].operands) linear[n] = linear[n] || depends[at(id)];
    for (const ValueId id : graph.calls[n].results)
      if (linear[n] && id != kNoValue) depends[at(id)] = true;
  }
  const auto split_at = graph.results.begin() + static_cast<std::ptrdiff_t>(outs);
  const std::vector<ValueId> results(split_at, graph.results.end());

  Halves halves;
  std::vector<bool> calls;
  std::vector<ValueId> kept;  // values that the first half gives to the second
  const auto x_end = graph.arguments.begin() + static_cast<std::ptrdiff_t>(operands);
  for (const ValueId id : reach(graph, results, calls, [&](size_t n) { return linear[n]; })) {
    const Origin origin = graph.values[at(id)].origin;
    if (origin == Origin::result) kept.push_back(id);
    if (origin == Origin::argument && !depends[at(id)])
      halves.from_operands.push_back(std::find(graph.arguments.begin(), x_end, id) - graph.arguments.begin());
  }
  Part second(graph);
  for (const ValueId i : halves.from_operands) second.add_argument(graph.arguments[at(i)]);
  for (const ValueId id : kept) second.add_argument(id);
  std::for_each(x_end, graph.arguments.end(), [&](ValueId id) { second.add_argument(id); });
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (calls[n]) second.add_call(graph.calls[n]);
  for (const ValueId id : results) second.add_result(id);
  halves.second = second.take();

  std::vector<ValueId> made(graph.results.begin(), split_at);
  made.insert(made.end(), kept.begin(), kept.end());
  reach(graph, made, calls, [](size_t) { return true; });
  Part first(graph);
  std::for_each(graph.arguments.begin(), x_end, [&](ValueId id) { first.add_argument(id); });
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (calls[n]) first.add_call(graph.calls[n]);
  for (const ValueId id : made) first.add_result(id);
  halves.first = first.take();
  return halves;
}

Graph without_results(const Graph& graph, size_t count) {
  const std::vector<ValueId> results(graph.results.begin() + static_cast<std::ptrdiff_t>(count), graph.results.end());
  std::vector<bool> calls;
  reach(graph, results, calls, [](size_t) { return true; });
  Part part(graph);
  for (const ValueId id : graph.arguments) part.add_argument(id);
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (calls[n]) part.add_call(graph.calls[n]);
  for (const ValueId id : results) part.add_result(id);
  return part.take();
}

}  // namespace tower::compiler
