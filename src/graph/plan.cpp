#include "graph/plan.h"

#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>

#include <algorithm>

#include "core/bind.h"
#include "core/memory.h"
#include "core/reuse.h"
#include "frontend/arguments.h"
#include "frontend/autocast.h"
#include "frontend/enter.h"
#include "graph/kernel_operator.h"
#include "graph/trace.h"
#include "interpreters/surface.h"
#include "tower/errors.h"

namespace tower::compiler {

Plan::Plan(Graph graph) : graph_(std::move(graph)) {
  kept_.resize(graph_.values.size(), false);
  for (const ValueId id : graph_.values.ids()) {
    if (!graph_.values[id].tensor.defined()) continue;
    held_.push_back(id);
    if (graph_.values[id].origin == Origin::captured) captured_.push_back(id);
  }
  ById<ValueId, bool> needed(graph_.values.size(), false);
  for (ValueId id : graph_.results) needed[id] = kept_[id] = true;
  steps_.resize(graph_.calls.size());
  static const Operator& view = *Operator::find("aten::view", "");
  for (size_t n = graph_.calls.size(); n-- > 0;) {
    const Call& call = graph_.calls[n];
    Step& step = steps_[n];
    step.kernel = dynamic_cast<const KernelOperator*>(call.op);
    step.last.resize(call.operands.size());
    for (size_t k = call.operands.size(); k-- > 0;) {
      const ValueId id = call.operands[k];
      step.last[k] = !needed[id];
      needed[id] = kept_[id] = true;
    }
    step.is_view = call.vmaps.empty() && call.op == &view;
    step.gives_up_first = call.vmaps.empty() && !step.last.empty() && step.last[0];
    for (size_t k = 0; k < call.operands.size(); ++k) {
      if (!call.writes(k)) continue;
      const auto argument = std::find(graph_.arguments.begin(), graph_.arguments.end(), call.operands[k]);
      if (argument != graph_.arguments.end())
        written_.push_back(static_cast<size_t>(argument - graph_.arguments.begin()));
    }
  }
}

namespace {

bool matches(const Value& value, const Tensor& t) {
  return t.sizes().equals(value.sizes) && t.scalar_type() == value.dtype;
}

[[noreturn]] void refuse_other_results(const Call& call) {
  throw UnsupportedError("compile: " + call.op->name() +
                         " gave other shapes or dtypes than when the function was compiled. What a compiled function "
                         "computes must have shapes that follow from those of its arguments.");
}

// Code that is not known (Call::opaque) may give anything at each run.
void check_results(const Graph& graph, const Call& call, c10::ArrayRef<Tensor> results) {
  if (results.size() != call.results.size()) refuse_other_results(call);
  for (size_t k = 0; k < results.size(); ++k) {
    const bool expected = call.results[k] != kNoValue;
    if (expected != results[k].defined()) refuse_other_results(call);
    if (expected && !matches(graph.values[call.results[k]], results[k])) refuse_other_results(call);
  }
}

// What is viewed may lie otherwise than when the graph was made, where a rule's result does under a transform.
void make_viewable(Stack& stack) {
  const Tensor& t = stack[0].toTensor();
  const auto sizes = at::infer_size_dv(stack[1].toIntVector(), t.numel());
  if (!at::detail::computeStride(t.sizes(), t.strides(), sizes)) stack[0] = t.clone(at::MemoryFormat::Contiguous);
}

// Where autocast was on when the graph was made, its casts are calls of the graph, and it is off here. But code that is
// not LibTorch's may call operators inside for which autocast has to cast.
void run_call(const Call& call, Stack& stack) {
  std::optional<c10::AutoGradMode> mode;
  if (call.records != autograd_state().get_grad_mode()) mode.emplace(call.records);
  if (call.opaque() || frontend::active_autocast().empty()) return enter(*call.bound, stack);
  DispatchGuard keys;
  keys.skip_autocast();
  enter(*call.bound, stack);
}

}  // namespace

bool Plan::fits() const {
  return std::all_of(captured_.begin(), captured_.end(), [&](ValueId id) {
    const Value& v = graph_.values[id];
    return matches(v, v.tensor) && v.tensor.strides().equals(v.strides);
  });
}

void Plan::check_writes(const dynamic::Tensors& args) const {
  for (size_t i : written_) {
    check_shared(args, i, "compile");
    for (const Value& v : graph_.values)
      if (v.origin == Origin::captured && v.tensor.defined() && frontend::may_overlap(args[i], v.tensor))
        throw MutationError("compile: " + ordinal("argument", i) + ", " + tower::describe(args[i]) +
                            ", was written to, and shares memory with a tensor that the function captured, which would "
                            "not see it. Use the argument in place of the captured tensor.");
  }
}

dynamic::Tensors Plan::run(const dynamic::Tensors& args) const {
  const memory::InTransform here;
  if (!written_.empty()) check_writes(args);
  // What is computed here, and where each value is: there, among the arguments, or in the graph.
  ById<ValueId, Tensor, c10::SmallVector<Tensor, 32>> own(graph_.values.size());
  ById<ValueId, const Tensor*, c10::SmallVector<const Tensor*, 32>> at(graph_.values.size());
  for (const ValueId id : own.ids()) at[id] = &own[id];
  auto* trace = static_cast<Trace*>(tracing());
  for (const ValueId id : held_) {
    at[id] = &graph_.values[id].tensor;
    if (trace && graph_.values[id].origin == Origin::constant && at[id]->has_storage()) trace->know_constant(*at[id]);
  }
  for (size_t i = 0; i < args.size(); ++i)
    if (graph_.arguments[i] != kNoValue) at[graph_.arguments[i]] = &args[i];

  Stack stack;
  for (size_t n = 0; n < graph_.calls.size(); ++n) {
    const Call& call = graph_.calls[n];
    const Step& step = steps_[n];
    if (step.kernel) {
      c10::SmallVector<const Tensor*, 8> operands;
      for (const ValueId id : call.operands) operands.push_back(at[id]);
      c10::SmallVector<Tensor*, 4> results;
      for (const ValueId id : call.results) results.push_back(&own[id]);
      step.kernel->run(operands, results);
      for (size_t k = 0; k < call.operands.size(); ++k)
        if (step.last[k]) own[call.operands[k]].reset();
      continue;
    }
    const auto operand = [&](size_t k) {
      const ValueId id = call.operands[k];
      if (step.last[k] && at[id] == &own[id]) return std::move(own[id]);
      return *at[id];
    };
    if (call.vmaps.empty()) {
      stack = call.args;
      size_t next = 0;
      replace_tensors(*call.op, stack, [&](const Tensor&, LeafRef) { return operand(next++); });
    } else {
      c10::List<Tensor> operands;
      operands.reserve(call.operands.size());
      for (size_t k = 0; k < call.operands.size(); ++k) operands.push_back(operand(k));
      stack.assign(1, IValue(std::move(operands)));
    }
    {
      std::optional<Reuse> reuse;
      if (step.is_view) make_viewable(stack);
      if (step.gives_up_first) reuse.emplace();
      run_call(call, stack);
    }
    if (call.effect) continue;
    auto results = flatten_outputs(stack);
    stack.clear();
    if (call.opaque()) check_results(graph_, call, results);
    for (size_t k = 0; k < results.size(); ++k) {
      if (call.results[k] == kNoValue || !kept_[call.results[k]]) continue;
      own[call.results[k]] = without_lazy_conjugation(std::move(results[k]));
    }
  }

  dynamic::Tensors results;
  results.reserve(graph_.results.size());
  OwnMemory memory;
  for (ValueId id : graph_.results) {
    const Tensor& t = *at[id];
    results.push_back(graph_.values[id].origin == Origin::constant ? memory.copy(t) : t);
  }
  return results;
}

}  // namespace tower::compiler
