#include "compile/traced_function.h"

#include <algorithm>

#include "control/speech.h"
#include "graph/raises.h"
#include "graph/trace.h"

namespace tower::compiler {

using dynamic::Function;
using dynamic::Tensors;

namespace {

// Functions are run as they are, operator by operator: none is replaced by those that it is made of. But neither fails
// for the values that it is traced from: NOTE [Steps that are traced].
bool takes_every_operator(const Operator&) { return true; }

void collect_captured(const Graph& graph, Tensors& captured) {
  for (const Value& v : graph.values)
    if (v.origin == Origin::captured && v.tensor.defined() &&
        std::none_of(captured.begin(), captured.end(), [&](const Tensor& t) { return t.is_same(v.tensor); }))
      captured.push_back(v.tensor);
}

// Makes arguments of captured tensors, behind those that the graph has.
void pass_captured(Graph& graph, const Tensors& captured) {
  for (const Tensor& t : captured) {
    ValueId& argument = graph.arguments.emplace_back(kNoValue);
    for (const ValueId id : graph.values.ids()) {
      Value& v = graph.values[id];
      if (v.origin != Origin::captured || !v.tensor.is_same(t)) continue;
      argument = id;
      v.origin = Origin::argument;
      v.tensor = Tensor();
      break;
    }
  }
}

}  // namespace

std::optional<Graph> traced_function(const Function& f, const Tensors& operands, const char* op) {
  const Trying here;
  const speech::Listener listener;
  Traced traced = trace_without_effects(f, operands, op, takes_every_operator);
  if (!traced.assumptions.empty() || listener.asked() || !listener.axes().empty() ||
      !listener.axes_of_tangents().empty())
    return std::nullopt;
  traced.graph.simplify();
  const auto does_more = [](const Call& call) { return call.effect || call.random() || call.opaque(); };
  if (std::any_of(traced.graph.calls.begin(), traced.graph.calls.end(), does_more)) return std::nullopt;
  return std::move(traced.graph);
}

Tensors pass_captured(Graph& graph) {
  Tensors captured;
  collect_captured(graph, captured);
  pass_captured(graph, captured);
  return captured;
}

Tensors pass_captured(Graph& a, Graph& b) {
  Tensors captured;
  collect_captured(a, captured);
  collect_captured(b, captured);
  pass_captured(a, captured);
  pass_captured(b, captured);
  return captured;
}

void note_calls(KnownCode& code, const Graph& graph) {
  for (const Call& call : graph.calls) {
    code.random = code.random || call.random();
    code.foreign = code.foreign || call.opaque();
    code.raises = code.raises || may_raise(graph, call);
  }
}

}  // namespace tower::compiler
