// A loop in a kernel: NOTE [Loops of numbers] in numbers/expression.h.
#include <c10/util/strides.h>

#include <algorithm>

#include "compile/traced_loop.h"
#include "fuse/fused_plan.h"
#include "fuse/small_graph.h"
#include "graph/operand_dims.h"
#include "numbers/thresholds.h"

namespace tower::compiler {

std::optional<Loop::InNumbers> Loop::steps_in_numbers(Expressions& g, c10::ArrayRef<const Small*> operands,
                                                      bool counted) const {
  if (has_stacked() && g.in_loop()) return std::nullopt;
  std::vector<Id> start;
  for (size_t k = 0; k < states_; ++k) start.insert(start.end(), operands[k]->ids.begin(), operands[k]->ids.end());
  if (counted) start.push_back(g.constant(Type::i32, int64_t{0}));
  const LoopId loop = g.open_loop(start);
  const std::vector<Id> carries = g.loop(loop).carries;
  SmallResults state, elements;
  for (size_t k = 0, next = 0; k < states_; ++k) {
    state.push_back(*operands[k]);
    for (Id& id : state.back().ids) id = carries[next++];
  }
  for (size_t i = 0; i < stacked(); ++i) {
    auto own = element(g, *operands[states_ + i]);
    if (!own) return std::nullopt;
    elements.push_back(*std::move(own));
  }
  std::vector<const Small*> all;
  for (const SmallResults* of : {&state, &elements})
    for (const Small& t : *of) all.push_back(&t);
  for (size_t i = all.size(); i < this->operands(); ++i) all.push_back(operands[i]);
  Id holds = g.constant(Type::b1, int64_t{1});
  if (predicate_) {
    const auto condition = results_of_graph(g, predicate_->graph(), all);
    if (!condition) return std::nullopt;
    holds = (*condition)[0].ids[0];
    // Where the condition itself has failed, another step says so.
    if (const Id undecided = g.failed_in_step(); undecided != kNone) holds = g.make(Op::bit_or, holds, undecided);
  }
  auto made = results_of_graph(g, step_.graph(), all);
  if (!made) return std::nullopt;
  std::vector<Id> next;
  for (size_t k = 0; k < states_; ++k) next.insert(next.end(), (*made)[k].ids.begin(), (*made)[k].ids.end());
  if (counted) next.push_back(g.make(Op::add, carries.back(), g.constant(Type::i32, int64_t{1})));
  const std::vector<Id> left =
      g.close_loop(holds, next, steps_ ? std::optional(steps_->count) : options_.max_steps, must_end_);
  auto id = left.begin();
  for (Small& t : state) {
    std::copy_n(id, t.ids.size(), t.ids.begin());
    id += static_cast<std::ptrdiff_t>(t.ids.size());
    t.number = false;
  }
  made->erase(made->begin(), made->begin() + static_cast<std::ptrdiff_t>(states_));
  return InNumbers{loop, std::move(state), counted ? *id : kNone, *std::move(made)};
}

std::optional<dynamic::Tensors> run_in_kernel(const Call& call, const dynamic::Tensors& operands) {
  Graph graph;
  Call one = call;
  one.operands.clear();
  one.results.clear();
  for (const at::Tensor& t : operands) {
    graph.arguments.push_back(graph.values.add(Value(Origin::argument, t, false)));
    one.operands.push_back(graph.arguments.back());
  }
  const KnownCode::Kinds kinds = *known_code(*call.op)->kinds();
  for (const auto& [sizes, dtype] : kinds.results) {
    Value v;
    v.sizes = sizes_of_all(call, sizes);
    v.strides = c10::contiguous_strides(v.sizes);
    v.dtype = dtype;
    one.results.push_back(graph.values.add(std::move(v)));
  }
  graph.results = one.results;
  graph.calls.push_back(std::move(one));
  return FusedPlan(std::move(graph), std::make_shared<Kernels>()).run_fused(operands);
}

KnownCode::Kinds Loop::kinds_of_step() const {
  const auto kind_of = [](const Value& v) { return Kind{{v.sizes.begin(), v.sizes.end()}, v.dtype}; };
  Kinds kinds;
  const Graph& step = step_.graph();
  for (size_t k = 0; k < operands(); ++k) {
    const Graph& reads = step.arguments[k] == kNoValue ? predicate_->graph() : step;
    kinds.operands.push_back(kind_of(reads.values[reads.arguments[k]]));
  }
  for (const ValueId id : step.results) kinds.results.push_back(kind_of(step.values[id]));
  return kinds;
}

std::optional<KnownCode::Kinds> Loop::kinds() const {
  Kinds kinds = kinds_of_step();
  const auto in_all_steps = [this](Kind& kind) { kind.sizes.insert(kind.sizes.begin(), steps_->count); };
  for (size_t k = 0; k < kinds.operands.size(); ++k)
    if (is_stacked_operand(k)) in_all_steps(kinds.operands[k]);
  for (size_t k = 0; k < kinds.results.size(); ++k)
    if (is_stacked_result(k)) in_all_steps(kinds.results[k]);
  return kinds;
}

std::optional<dynamic::Tensors> Loop::run_at_once(const Call& call, const dynamic::Tensors& operands) const {
  if (const TiledLoop* tiled = in_tiles_.if_made() ? in_tiles() : nullptr)
    return tiled->takes(operands) ? std::optional(tiled->run(operands)) : std::nullopt;
  return is_long() ? run_in_kernel(call, operands) : std::nullopt;
}

bool Loop::fits_kernel(const dynamic::Tensors& operands) const {
  Expressions trial;
  SmallResults all;
  for (size_t k = 0; k < operands.size(); ++k) {
    const at::Tensor& t = operands[k];
    const auto type = type_of(t.scalar_type());
    const int64_t most = is_stacked_operand(k) ? kMostStacked : thresholds().most_of_lane;
    if (!type || !t.device().is_cpu() || t.numel() == 0 || t.numel() > most) return false;
    all.push_back({Sizes(t.sizes()), {}, t.scalar_type()});
    for (int64_t i = 0; i < t.numel(); ++i) all.back().ids.push_back(trial.input(*type, trial.size()));
  }
  std::vector<const Small*> pointers;
  for (const Small& t : all) pointers.push_back(&t);
  return !results_in_numbers(trial, pointers).empty();
}

SmallResults Loop::results_in_numbers(Expressions& g, c10::ArrayRef<const Small*> operands) const {
  auto loop = steps_in_numbers(g, operands, has_stacked());
  if (!loop) return {};
  SmallResults results = std::move(loop->last);
  for (const Small& output : loop->outputs) results.push_back(in_steps(g, loop->loop, output, loop->steps));
  return results;
}

std::optional<Small> Loop::element(Expressions& g, const Small& stacked) const {
  const auto steps = static_cast<size_t>(steps_->count), size = stacked.ids.size() / steps;
  Small own{Sizes(stacked.sizes.begin() + 1, stacked.sizes.end()), {}, stacked.dtype};
  for (size_t e = 0; e < size; ++e) {
    std::vector<Id> of_steps;
    for (size_t s = 0; s < steps; ++s)
      of_steps.push_back(stacked.ids[(steps_->reverse ? steps - 1 - s : s) * size + e]);
    const bool read = std::all_of(of_steps.begin(), of_steps.end(), [&](Id id) { return g[id].op == Op::input; });
    if (!read && !std::all_of(of_steps.begin(), of_steps.end(), [&](Id id) { return id == of_steps[0]; }))
      return std::nullopt;
    own.ids.push_back(g.element(of_steps));
  }
  return own;
}

Small Loop::in_steps(Expressions& g, LoopId loop, const Small& output, Id left) const {
  const auto steps = static_cast<size_t>(steps_->count), size = output.ids.size();
  Small all{output.sizes, std::vector<Id>(steps * size), output.dtype};
  all.sizes.insert(all.sizes.begin(), steps_->count);
  for (size_t e = 0; e < size; ++e) {
    const std::vector<Id> of_steps = g.in_steps(loop, output.ids[e], left, steps_->count);
    for (size_t s = 0; s < steps; ++s) all.ids[(steps_->reverse ? steps - 1 - s : s) * size + e] = of_steps[s];
  }
  return all;
}

}  // namespace tower::compiler
