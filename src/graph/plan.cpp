#include "graph/plan.h"

#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>

#include "core/bind.h"
#include "core/memory.h"
#include "core/reuse.h"
#include "frontend/arguments.h"
#include "frontend/autocast.h"
#include "frontend/enter.h"
#include "graph/lifetimes.h"
#include "graph/trace.h"
#include "interpreters/surface.h"
#include "tower/errors.h"

namespace tower::compiler {
namespace {

// Bytes. What is not larger than the first has a place in the block, which is not larger than the second, and from the
// third on is not on the stack.
constexpr size_t kMostInBlock = size_t{1} << 16, kMostOfBlock = size_t{1} << 20, kMostOnStack = 4096;

}  // namespace

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
  for (size_t n = 0; n < steps_.size(); ++n) {
    steps_[n].kernel = dynamic_cast<const KernelOperator*>(graph_.calls[n].op);
    steps_[n].in_memory = dynamic_cast<const MemoryKernel*>(graph_.calls[n].op);
  }
  settle_views();
  static const Operator& view = *Operator::find("aten::view", "");
  for (size_t n = graph_.calls.size(); n-- > 0;) {
    const Call& call = graph_.calls[n];
    Step& step = steps_[n];
    step.last.resize(call.operands.size());
    for (size_t k = call.operands.size(); k-- > 0;) {
      const ValueId id = call.operands[k], memory = memory_of(id);
      step.last[k] = !needed[id] && !needed[memory];
      needed[id] = kept_[id] = needed[memory] = kept_[memory] = true;
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
  size_t largest = kMostInBlock;
  do place_in_block(largest);
  while (block_bytes_ > kMostOfBlock && (largest /= 2));
  for (const ValueId id : graph_.values.ids())
    if (!values_[id].in_block) values_[id].at = slots_++;
  for (size_t n = 0; n < steps_.size(); ++n)
    for (size_t k = 0; k < steps_[n].last.size(); ++k) {
      if (!steps_[n].last[k]) continue;
      const ValueId id = graph_.calls[n].operands[k];
      for (const ValueId read : {id, memory_of(id)})
        if (!values_[read].in_block) steps_[n].last_of_slots.push_back(values_[read].at);
    }
}

void Plan::settle_views() {
  views_.resize(graph_.values.size());
  std::vector<bool> takes_memory;
  bool any = false, writes = false;
  for (size_t n = 0; n < steps_.size(); ++n) {
    takes_memory.push_back(steps_[n].in_memory);
    any = any || steps_[n].in_memory;
    for (size_t k = 0; k < graph_.calls[n].operands.size(); ++k) writes = writes || graph_.calls[n].writes(k);
  }
  if (!any || writes) return;
  ById<ValueId, std::optional<Lies>> lies(graph_.values.size());
  for (const ValueId id : graph_.values.ids())
    if (const Value& v = graph_.values[id]; v.origin != Origin::result && v.device.is_cpu())
      lies[id] = Lies{v.sizes, v.strides, v.dtype};
  for (size_t n = 0; n < steps_.size(); ++n)
    for (size_t k = 0; takes_memory[n] && k < graph_.calls[n].results.size(); ++k) {
      const MemoryKernel::Result& made = steps_[n].in_memory->made()[k];
      lies[graph_.calls[n].results[k]] = Lies{made.sizes, made.strides, made.dtype};
    }
  const auto viewed = views_in_memory(graph_, lies, takes_memory);
  for (const ValueId id : graph_.values.ids()) {
    if (!viewed[id]) continue;
    const auto& [of, in] = *viewed[id];
    const auto bytes = in.offset * static_cast<int64_t>(c10::elementSize(in.dtype));
    View& view = views_[id].emplace(View{of, bytes, in.sizes, in.strides, in.dtype});
    if (graph_.values[of].origin == Origin::result) continue;
    view.given = static_cast<size_t>(std::find(given_.begin(), given_.end(), of) - given_.begin());
    if (view.given == given_.size()) given_.push_back(of);
  }
  for (size_t n = 0; n < steps_.size(); ++n) {
    const std::vector<ValueId>& results = graph_.calls[n].results;
    steps_[n].is_settled = results.size() == 1 && results[0] != kNoValue && views_[results[0]];
  }
}

// Of the values of at most `largest` bytes, those that kernels make and nobody but kernels reads.
void Plan::place_in_block(size_t largest) {
  values_.assign(graph_.values.size(), {});
  ById<ValueId, size_t> last(graph_.values.size());
  ById<ValueId, bool> is_seen(graph_.values.size());
  for (const ValueId id : graph_.results) is_seen[id] = true;
  for (size_t n = 0; n < steps_.size(); ++n)
    for (const ValueId id : graph_.calls[n].operands) {
      last[memory_of(id)] = n;
      is_seen[id] = is_seen[id] || (!steps_[n].in_memory && !steps_[n].is_settled);
    }
  std::vector<ValueId> placed;
  std::vector<Lifetime> lifetimes;
  for (size_t n = 0; n < steps_.size(); ++n) {
    if (!steps_[n].in_memory) continue;
    const std::vector<ValueId>& results = graph_.calls[n].results;
    for (size_t k = 0; k < results.size(); ++k) {
      const MemoryKernel::Result& made = steps_[n].in_memory->made()[k];
      Held& held = values_[results[k]];
      held.made = &made;
      held.in_block = !is_seen[results[k]] && made.bytes() <= largest;
      if (!held.in_block) continue;
      placed.push_back(results[k]);
      lifetimes.push_back({n, std::max(n, last[results[k]]), made.bytes()});
    }
  }
  const Layout layout = lay_out(lifetimes);
  for (size_t k = 0; k < placed.size(); ++k) values_[placed[k]].at = layout.places[k];
  block_bytes_ = layout.bytes;
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

bool lies_as(const Value& value, const Tensor& t) { return matches(value, t) && t.strides().equals(value.strides); }

bool Plan::fits() const {
  return std::all_of(captured_.begin(), captured_.end(), [&](ValueId id) {
    const Value& v = graph_.values[id];
    return lies_as(v, v.tensor);
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

// What there is while a plan runs.
class Plan::Run {
 public:
  Run(const Plan& plan, const dynamic::Tensors& args) : plan_(plan), own_(plan.slots_), at_(plan.slots_) {
    for (size_t k = 0; k < own_.size(); ++k) at_[k] = &own_[k];
    auto* trace = static_cast<Trace*>(tracing());
    for (const ValueId id : plan.held_) {
      const Value& value = plan.graph_.values[id];
      place_of(id) = &value.tensor;
      if (trace && value.origin == Origin::constant && value.tensor.has_storage()) trace->know_constant(value.tensor);
    }
    for (size_t i = 0; i < args.size(); ++i)
      if (plan.graph_.arguments[i] != kNoValue) place_of(plan.graph_.arguments[i]) = &args[i];
    for (const ValueId id : plan.given_) lies_as_traced_.push_back(lies_as(plan.graph_.values[id], *place_of(id)));
    if (plan.block_bytes_ <= kMostOnStack) return;
    large_block_ = c10::GetCPUAllocator()->allocate(plan.block_bytes_);
    block_ = static_cast<char*>(large_block_.get());
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const Tensor& operator[](ValueId id) { return *place_of(id); }
  Tensor& own(ValueId id) { return own_[plan_.values_[id].at]; }

  /// The value, given away if it was made here and is read for the last time.
  Tensor take(ValueId id, bool last) {
    if (last && place_of(id) == &own(id)) return std::move(own(id));
    return *place_of(id);
  }

  /// Whether kernels read this result, the only one of a call, where what it views lies.
  bool is_settled(ValueId id) const {
    const View& view = *plan_.views_[id];
    return view.given == View::kIsMade || lies_as_traced_[view.given];
  }

  void call(const Call& call, const MemoryKernel& kernel) {
    c10::SmallVector<InMemory, 16> operands;
    c10::SmallVector<InMemory, 4> results;
    operands.reserve(call.operands.size());
    results.reserve(call.results.size());
    for (size_t k = 0; k < call.operands.size(); ++k) {
      const ValueId id = call.operands[k];
      const Held& held = plan_.values_[id];
      const bool settled = plan_.views_[id] && is_settled(id);
      if (!held.made && !settled && !kernel.fits(k, *at_[held.at])) refuse(call, kernel);
      operands.push_back(settled ? of_view(*plan_.views_[id]) : read(held));
    }
    for (size_t k = 0; k < call.results.size(); ++k) {
      const Held& held = plan_.values_[call.results[k]];
      const MemoryKernel::Result& made = kernel.made()[k];
      if (!held.in_block) own_[held.at] = made.allocate();
      results.push_back(held.in_block ? made.at(block_ + held.at) : made.written(own_[held.at]));
    }
    kernel.run_in(operands, results);
  }

  void call(const Call& call, const KernelOperator& kernel) {
    c10::SmallVector<const Tensor*, 8> operands;
    c10::SmallVector<Tensor*, 4> results;
    for (const ValueId id : call.operands) operands.push_back(place_of(id));
    for (const ValueId id : call.results) results.push_back(&own(id));
    kernel.run(operands, results);
  }

  void free(const Step& step) {
    for (const size_t slot : step.last_of_slots) own_[slot].reset();
  }

 private:
  const Tensor*& place_of(ValueId id) { return at_[plan_.values_[id].at]; }

  InMemory read(const Held& held) {
    return held.in_block ? held.made->at(block_ + held.at) : InMemory::read(*at_[held.at]);
  }
  InMemory of_view(const View& view) {
    return {static_cast<char*>(read(plan_.values_[view.of]).data) + view.bytes, view.sizes, view.strides, view.dtype};
  }

  [[noreturn]] void refuse(const Call& call, const MemoryKernel& kernel) {
    std::vector<Tensor> tensors;
    for (const ValueId id : call.operands) {
      const auto& view = plan_.views_[id];
      tensors.push_back((view && is_settled(id) ? of_view(*view) : read(plan_.values_[id])).tensor());
    }
    c10::SmallVector<const Tensor*, 8> operands;
    for (const Tensor& t : tensors) operands.push_back(&t);
    kernel.refuse(operands);
  }

  const Plan& plan_;
  c10::SmallVector<Tensor, 32> own_;          // what is computed here
  c10::SmallVector<const Tensor*, 32> at_;    // there, among the arguments, or in the graph
  c10::SmallVector<bool, 8> lies_as_traced_;  // of what is viewed
  alignas(64) char small_block_[kMostOnStack];
  c10::DataPtr large_block_;
  char* block_ = small_block_;
};

dynamic::Tensors Plan::run(const dynamic::Tensors& args) const {
  const memory::InTransform here;
  if (!written_.empty()) check_writes(args);
  Run values(*this, args);
  Stack stack;
  for (size_t n = 0; n < graph_.calls.size(); ++n) {
    const Call& call = graph_.calls[n];
    const Step& step = steps_[n];
    if (step.kernel) {
      if (step.in_memory) values.call(call, *step.in_memory);
      else values.call(call, *step.kernel);
      values.free(step);
      continue;
    }
    if (step.is_settled && values.is_settled(call.results[0])) continue;
    // A graph has views of what is not lazily conjugate or negative; an argument may be, here and not when it was
    // traced.
    const auto operand = [&, views = call.op->is_view()](size_t k) {
      Tensor t = values.take(call.operands[k], step.last[k]);
      return views ? without_lazy_conjugation(std::move(t)) : t;
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
      values.own(call.results[k]) = without_lazy_conjugation(std::move(results[k]));
    }
  }

  dynamic::Tensors results;
  results.reserve(graph_.results.size());
  OwnMemory memory;
  for (ValueId id : graph_.results) {
    const Tensor& t = values[id];
    results.push_back(graph_.values[id].origin == Origin::constant ? memory.copy(t) : t);
  }
  return results;
}

}  // namespace tower::compiler
