#include "graph/split.h"

#include <algorithm>

#include "frontend/arguments.h"
#include "interpreters/custom.h"

namespace tower::compiler {
namespace {

constexpr size_t kNobody = static_cast<size_t>(-1);

// Some calls of a graph as a graph, which numbers its values anew.
class Subgraph {
 public:
  explicit Subgraph(const Graph& whole) : whole_(whole), own_(whole.values.size(), kNoValue) {}

  /// The next argument is this value, wherever it came from; none for an undefined tensor.
  void add_argument(ValueId id) {
    if (id == kNoValue) {
      graph_.arguments.push_back(kNoValue);
      return;
    }
    const ValueId mine = own_[id] = add(id, Origin::argument);
    graph_.values[mine].tensor = Tensor();
    graph_.arguments.push_back(mine);
  }
  void add_call(const Call& call) {
    Call copy = call;
    for (ValueId& id : copy.operands) id = number_of(id);
    for (ValueId& id : copy.results)
      if (id != kNoValue) id = own_[id] = add(id, Origin::result);
    graph_.calls.push_back(std::move(copy));
  }
  void add_result(ValueId id) { graph_.results.push_back(number_of(id)); }

  Graph take() { return std::move(graph_); }

 private:
  ValueId add(ValueId id, Origin origin) {
    const ValueId mine = graph_.values.add(whole_.values[id]);
    graph_.values[mine].origin = origin;
    return mine;
  }
  // What no call of the part gives is a tensor that the graph holds.
  ValueId number_of(ValueId id) {
    if (own_[id] == kNoValue) own_[id] = add(id, whole_.values[id].origin);
    return own_[id];
  }

  const Graph& whole_;
  ById<ValueId, ValueId> own_;
  Graph graph_;
};

// Which call gives each value.
ById<ValueId, size_t> makers(const Graph& graph) {
  ById<ValueId, size_t> makers(graph.values.size(), kNobody);
  for (size_t n = 0; n < graph.calls.size(); ++n)
    for (const ValueId id : graph.calls[n].results)
      if (id != kNoValue) makers[id] = n;
  return makers;
}

// What has to be there for `wanted`: marks the calls, walking over those that `through` lets pass, and returns the
// values at which it stopped, in their order.
template <class Through>
std::vector<ValueId> reach(const Graph& graph, const std::vector<ValueId>& wanted, std::vector<bool>& calls,
                           Through through) {
  ById<ValueId, bool> needed(graph.values.size(), false);
  for (const ValueId id : wanted) needed[id] = true;
  calls.assign(graph.calls.size(), false);
  const ById<ValueId, size_t> made_by = makers(graph);
  for (size_t n = graph.calls.size(); n-- > 0;) {
    const Call& call = graph.calls[n];
    if (!through(n)) continue;
    for (const ValueId id : call.results) calls[n] = calls[n] || (id != kNoValue && needed[id]);
    if (!calls[n]) continue;
    for (const ValueId id : call.operands) needed[id] = true;
  }
  std::vector<ValueId> stopped;
  for (const ValueId id : needed.ids())
    if (needed[id] && (made_by[id] == kNobody || !calls[made_by[id]])) stopped.push_back(id);
  return stopped;
}

// What is known of a captured tensor's memory from its views.
class Roots {
 public:
  explicit Roots(const Graph& graph) : graph_(graph), roots_(graph.values.size(), kNoValue) {
    for (const Call& call : graph.calls)
      for (const ValueId id : call.results)
        if (id != kNoValue && gives_view(call)) roots_[id] = root(call.operands[0]);
  }

  /// The captured tensor of which this is a view; undefined if it is of none.
  const Tensor& captured(ValueId id) const {
    static const Tensor none;
    const Value& value = graph_.values[root(id)];
    return value.origin == Origin::captured ? value.tensor : none;
  }

 private:
  ValueId root(ValueId id) const { return roots_[id] == kNoValue ? id : roots_[id]; }

  const Graph& graph_;
  ById<ValueId, ValueId> roots_;
};

// Calls that are seen in their order: those that do more than compute, those that speak of what is around them (the
// collectives of a vmap's axis), and those that read a captured tensor which is written to later: a part keeps its
// operands for its derivatives, and a tensor that was written to has other values by then.
std::vector<bool> ordered_calls(const Graph& graph) {
  const Roots roots(graph);
  std::vector<Tensor> written;
  std::vector<bool> ordered(graph.calls.size());
  for (size_t n = graph.calls.size(); n-- > 0;) {
    const Call& call = graph.calls[n];
    ordered[n] = call.random() || call.opaque() || call.effect || opens_under_trace(*call.op);
    for (size_t k = 0; k < call.operands.size(); ++k) {
      const Tensor& captured = roots.captured(call.operands[k]);
      if (!captured.defined()) continue;
      const auto is_it = [&](const Tensor& t) { return frontend::may_overlap(t, captured); };
      if (!gives_view(call) && std::any_of(written.begin(), written.end(), is_it)) ordered[n] = true;
      if (call.opaque() || call.writes(k)) written.push_back(captured);
    }
  }
  return ordered;
}

// When each call is run. A phase is: ordered calls, then what is computed of these and of earlier phases. Ordered calls
// that wait for nothing that is computed, such as most draws of random numbers, share a phase, and all that reads them
// is one part.
class Phases {
 public:
  struct When {
    size_t phase = 0;
    bool computed = false;  // at its end
    auto operator<=>(const When&) const = default;
  };

  Phases(const Graph& graph, const std::vector<bool>& is_ordered)
      : calls_(graph.calls.size()), values_(graph.values.size()) {
    size_t ordered = 0, least = 0, next = 0;  // phases: of the latest ordered call, of what is computed, after all that
    for (size_t n = 0; n < graph.calls.size(); ++n) {
      const Call& call = graph.calls[n];
      When ready;
      for (const ValueId id : call.operands) ready = std::max(ready, values_[id]);
      if (is_ordered[n]) {
        ordered = std::max(ordered, ready.phase + (ready.computed ? 1 : 0));
        // Calls before it and calls after it may read the memory that it writes to.
        if (call.effect || call.opaque()) least = ordered = std::max(ordered, next);
        calls_[n] = ready = {ordered, false};
      } else if (gives_view(call)) {
        calls_[n] = std::max(ready, {ordered, false});
      } else {
        calls_[n] = ready = {std::max(least, ready.phase), true};
        next = std::max(next, ready.phase + 1);
      }
      for (const ValueId id : call.results)
        if (id != kNoValue) values_[id] = ready;
    }
    count_ = std::max(ordered + 1, next);
  }

  const When& operator[](size_t call) const { return calls_[call]; }
  size_t count() const { return count_; }

 private:
  std::vector<When> calls_;
  ById<ValueId, When> values_;
  size_t count_;
};

// Ordered calls, and the views by which those and results show what they are views of. Marks the values that they read.
std::vector<bool> calls_outside(const Graph& graph, const std::vector<bool>& ordered, ById<ValueId, bool>& read) {
  std::vector<bool> outside = ordered;
  for (const ValueId id : graph.results) read[id] = true;
  for (size_t n = graph.calls.size(); n-- > 0;) {
    const Call& call = graph.calls[n];
    for (const ValueId id : call.results) outside[n] = outside[n] || (id != kNoValue && gives_view(call) && read[id]);
    if (!outside[n]) continue;
    for (const ValueId id : call.operands) read[id] = true;
  }
  return outside;
}

}  // namespace

std::optional<Graph> with_parts(const Graph& graph, size_t fewest, const std::function<Call(ComputingPart)>& make) {
  const std::vector<bool> ordered = ordered_calls(graph);
  const Phases phases(graph, ordered);
  ById<ValueId, bool> read(graph.values.size(), false);
  const std::vector<bool> outside = calls_outside(graph, ordered, read);
  // What is computed in each phase, from the last one on: what a part reads, earlier ones give. Views are taken anew.
  struct Computed {
    std::vector<bool> calls;
    std::vector<ValueId> operands, results;
    bool is_part;
  };
  std::vector<Computed> computed(phases.count());
  bool any = false;
  for (size_t phase = phases.count(); phase-- > 0;) {
    Computed& c = computed[phase];
    const auto is_here = [&](size_t n) {
      return phases[n] == Phases::When{phase, true} && !gives_view(graph.calls[n]);
    };
    for (size_t n = 0; n < graph.calls.size(); ++n)
      for (const ValueId id : graph.calls[n].results)
        if (is_here(n) && id != kNoValue && read[id]) c.results.push_back(id);
    for (const ValueId id : reach(graph, c.results, c.calls, [&](size_t n) {
           return is_here(n) || (gives_view(graph.calls[n]) && !ordered[n]);
         })) {
      if (graph.values[id].origin == Origin::constant) continue;
      c.operands.push_back(id);
      read[id] = true;
    }
    c.is_part = static_cast<size_t>(std::count(c.calls.begin(), c.calls.end(), true)) >= fewest;
    any = any || c.is_part;
  }
  if (!any) return std::nullopt;

  Subgraph whole(graph);
  for (const ValueId id : graph.arguments) whole.add_argument(id);
  std::vector<bool> is_there(graph.calls.size(), false);
  const auto add_call = [&](size_t n) {
    if (!is_there[n]) whole.add_call(graph.calls[n]);
    is_there[n] = true;
  };
  for (size_t phase = 0; phase < computed.size(); ++phase) {
    const auto add_outside = [&](Phases::When when) {
      for (size_t n = 0; n < graph.calls.size(); ++n)
        if (outside[n] && phases[n] == when) add_call(n);
    };
    add_outside({phase, false});
    Computed& c = computed[phase];
    if (c.is_part) {
      Subgraph part(graph);
      for (const ValueId id : c.operands) part.add_argument(id);
      for (size_t n = 0; n < graph.calls.size(); ++n)
        if (c.calls[n]) part.add_call(graph.calls[n]);
      for (const ValueId id : c.results) part.add_result(id);
      whole.add_call(make({part.take(), std::move(c.operands), std::move(c.results)}));
    } else {
      for (size_t n = 0; n < graph.calls.size(); ++n)
        if (c.calls[n]) add_call(n);
    }
    add_outside({phase, true});
  }
  for (const ValueId id : graph.results) whole.add_result(id);
  return whole.take();
}

Halves split_linear(const Graph& graph, size_t operands, size_t outs) {
  ById<ValueId, bool> depends(graph.values.size(), false);
  for (size_t i = operands; i < graph.arguments.size(); ++i) depends[graph.arguments[i]] = true;
  std::vector<bool> linear(graph.calls.size(), false);
  for (size_t n = 0; n < graph.calls.size(); ++n) {
    for (const ValueId id : graph.calls[n].operands) linear[n] = linear[n] || depends[id];
    for (const ValueId id : graph.calls[n].results)
      if (linear[n] && id != kNoValue) depends[id] = true;
  }
  const auto split_at = graph.results.begin() + static_cast<std::ptrdiff_t>(outs);
  const std::vector<ValueId> results(split_at, graph.results.end());

  Halves halves;
  std::vector<bool> calls;
  std::vector<ValueId> kept;  // values that the first half gives to the second
  const auto x_end = graph.arguments.begin() + static_cast<std::ptrdiff_t>(operands);
  for (const ValueId id : reach(graph, results, calls, [&](size_t n) { return linear[n]; })) {
    const Origin origin = graph.values[id].origin;
    if (origin == Origin::result) kept.push_back(id);
    if (origin == Origin::argument && !depends[id])
      halves.from_operands.push_back(
          static_cast<size_t>(std::find(graph.arguments.begin(), x_end, id) - graph.arguments.begin()));
  }
  Subgraph second(graph);
  for (const size_t i : halves.from_operands) second.add_argument(graph.arguments[i]);
  for (const ValueId id : kept) second.add_argument(id);
  std::for_each(x_end, graph.arguments.end(), [&](ValueId id) { second.add_argument(id); });
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (calls[n]) second.add_call(graph.calls[n]);
  for (const ValueId id : results) second.add_result(id);
  halves.second = second.take();

  std::vector<ValueId> made(graph.results.begin(), split_at);
  made.insert(made.end(), kept.begin(), kept.end());
  reach(graph, made, calls, [](size_t) { return true; });
  Subgraph first(graph);
  std::for_each(graph.arguments.begin(), x_end, [&](ValueId id) { first.add_argument(id); });
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (calls[n]) first.add_call(graph.calls[n]);
  for (const ValueId id : made) first.add_result(id);
  halves.first = first.take();
  return halves;
}

std::vector<std::vector<bool>> differentiable_by(const Graph& graph) {
  // A bit for each argument, in words.
  constexpr size_t kBits = 64;
  const size_t count = graph.arguments.size(), words = (count + kBits - 1) / kBits;
  std::vector<uint64_t> bits(graph.values.size() * words, 0);
  const auto of = [&](ValueId id) { return bits.data() + static_cast<size_t>(id) * words; };
  for (size_t i = 0; i < count; ++i)
    if (graph.arguments[i] != kNoValue) of(graph.arguments[i])[i / kBits] |= uint64_t{1} << (i % kBits);
  for (const Call& call : graph.calls) {
    if (!call.records || call.op->no_derivative()) continue;
    for (const ValueId made : call.results)
      for (const ValueId read : call.operands)
        for (size_t w = 0; made != kNoValue && w < words; ++w) of(made)[w] |= of(read)[w];
  }
  std::vector<std::vector<bool>> by;
  for (const ValueId id : graph.results) {
    std::vector<bool>& each = by.emplace_back();
    for (size_t i = 0; i < count; ++i) each.push_back((of(id)[i / kBits] >> (i % kBits) & 1) != 0);
  }
  return by;
}

Graph without_results(const Graph& graph, size_t count) {
  const std::vector<ValueId> results(graph.results.begin() + static_cast<std::ptrdiff_t>(count), graph.results.end());
  std::vector<bool> calls;
  reach(graph, results, calls, [](size_t) { return true; });
  Subgraph part(graph);
  for (const ValueId id : graph.arguments) part.add_argument(id);
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (calls[n]) part.add_call(graph.calls[n]);
  for (const ValueId id : results) part.add_result(id);
  return part.take();
}

}  // namespace tower::compiler
