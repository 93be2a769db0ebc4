#include "compile/loop_backwards.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "compile/loop_rules.h"
#include "core/bind.h"
#include "fuse/small_graph.h"
#include "tower/errors.h"

namespace tower::compiler {

using dynamic::Tensors;

LoopBackwards::LoopBackwards(std::shared_ptr<const Loop> loop, std::vector<bool> cotangents, std::vector<bool> needs)
    : loop_(std::move(loop)), cotangents_(std::move(cotangents)), needs_(std::move(needs)) {
  random = loop_->random;
  foreign = loop_->foreign;
  raises = loop_->raises;
  const Kinds of_step = loop_->kinds_of_step();
  for (size_t k = 0; k < loop_->states(); ++k) moves_.push_back(has_derivative(of_step.operands[k].dtype));
}

LoopBackwards::LoopBackwards(std::shared_ptr<const Loop> loop, std::vector<bool> cotangents, std::vector<bool> needs,
                             const Tensors& operands)
    : LoopBackwards(std::move(loop), std::move(cotangents), std::move(needs)) {
  if (random || foreign) return;
  std::vector<bool> of_step = moves_;
  of_step.insert(of_step.end(), needs_.begin() + static_cast<std::ptrdiff_t>(moves_.size()), needs_.end());
  const auto step = [this](const Tensors& x) { return loop_->step().run(x); };
  Tensors all = operands;
  for (size_t i = 0; i < operands.size(); ++i)
    if (loop_->is_stacked_operand(i)) all[i] = all[i].select(0, 0);
  for (size_t k = 0; k < moves_.size(); ++k)
    if (moves_[k]) all.push_back(at::ones_like(operands[k]));
  std::vector<bool> given = moves_;
  const Graph& graph = loop_->step().graph();
  for (size_t k = loop_->states(); k < loop_->results(); ++k) {
    given.push_back(cotangents_[k]);
    const Value& output = graph.values[graph.results[k]];
    if (cotangents_[k]) all.push_back(at::ones(output.sizes, at::TensorOptions(output.dtype)));
  }
  try {
    step_ = traced_step(pullback_of(step, given, of_step), all);
  } catch (const InvisibleTensorError&) {
    throw;
  } catch (const std::exception&) {
    // It may be of a step that is never made; where it is, making it again raises.
    return;
  }
  const auto is_captured = [](const Value& v) { return v.origin == Origin::captured; };
  if (std::any_of(step_->values.begin(), step_->values.end(), is_captured)) step_.reset();
}

// The cotangents before the last step that is made back are of all states that move, and gradients are added up from
// zeros, as in a kernel.
std::unique_ptr<const TiledLoop> LoopBackwards::made_in_tiles() const {
  const size_t states = loop_->states(), operands = loop_->operands();
  const Kinds of_step = kinds_of_step();
  Tensors all;
  for (const Kind& kind : of_step.operands) all.push_back(at::zeros(kind.sizes, at::TensorOptions(kind.dtype)));
  const size_t given = all.size(), cotangents = given - operands;
  for (size_t i = states; i < operands; ++i)
    if (needs_[i]) all.push_back(at::zeros_like(all[i]));
  const auto back = [plan = Plan(*step_), given, cotangents](const Tensors& x) {
    Tensors found = plan.run(Tensors(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(given)));
    for (size_t k = cotangents; k < found.size(); ++k) found[k] = x[given + k - cotangents] + found[k];
    return found;
  };
  try {
    Kernels kernels;
    return TiledLoop::of(loop_->step().graph(), states, loop_->known_steps(), traced_step(back, all), kernels);
  } catch (const InvisibleTensorError&) {
    throw;
  } catch (const std::exception&) {
    return nullptr;
  }
}

const TiledLoop* LoopBackwards::in_tiles() const {
  if (!step_ || raises || !loop_->may_be_in_tiles() || !loop_->in_tiles()) return nullptr;
  return in_tiles_.get([this] { return made_in_tiles(); }).get();
}

std::optional<Tensors> LoopBackwards::run_in_tiles(const Tensors& operands) const {
  const TiledLoop* tiled = in_tiles();
  if (!tiled) return std::nullopt;
  const size_t states = loop_->states();
  Tensors all(operands.begin(), operands.begin() + static_cast<std::ptrdiff_t>(loop_->operands()));
  for (size_t k = 0, next = all.size(); k < states; ++k) {
    if (moves_[k]) all.push_back(cotangents_[k] ? operands[next] : at::zeros_like(operands[k]));
    next += cotangents_[k];
  }
  for (size_t i = states; i < needs_.size(); ++i)
    if (needs_[i]) all.push_back(at::zeros_like(operands[i]));
  if (!tiled->takes(all)) return std::nullopt;
  const Tensors found = tiled->run(all);
  Tensors gradients;
  size_t next = 0;
  for (size_t k = 0; k < states; ++k) {
    if (needs_[k]) gradients.push_back(found[next]);
    next += moves_[k];
  }
  gradients.insert(gradients.end(), found.begin() + static_cast<std::ptrdiff_t>(next), found.end());
  return gradients;
}

bool LoopBackwards::is_stacked_operand(size_t k) const {
  if (k < loop_->operands()) return loop_->is_stacked_operand(k);
  for (size_t result = 0, next = loop_->operands(); result < loop_->results(); ++result)
    if (cotangents_[result] && next++ == k) return loop_->is_stacked_result(result);
  return false;
}

bool LoopBackwards::is_stacked_result(size_t k) const {
  for (size_t i = 0, next = 0; i < loop_->operands(); ++i)
    if (needs_[i] && next++ == k) return loop_->is_stacked_operand(i);
  return false;
}

SmallResults LoopBackwards::in_numbers(const SmallCall& call) const {
  const size_t states = loop_->states(), operands = loop_->operands(), own = states + loop_->stacked();
  if (!step_) return {};
  const auto forwards = loop_->steps_in_numbers(call.graph, call.operands, true);
  if (!forwards) return {};
  Expressions& g = call.graph;

  // The cotangents after the last step, and the gradients of what all steps share so far, which are none.
  std::vector<Id> start;
  SmallResults cotangents, gradients;
  std::vector<const Small*> of_outputs;
  const auto begin_with_zeros = [&](const Small& like) {
    Small zeros = like;
    for (Id& id : zeros.ids) id = g.constant(*type_of(like.dtype), 0.0);
    return zeros;
  };
  for (size_t k = 0, next = operands; k < loop_->results(); ++k) {
    const Small* given = cotangents_[k] ? call.operands[next++] : nullptr;
    if (k >= states && given) of_outputs.push_back(given);
    if (k < states && moves_[k]) cotangents.push_back(given ? *given : begin_with_zeros(*call.operands[k]));
  }
  for (size_t i = own; i < operands; ++i)
    if (needs_[i]) gradients.push_back(begin_with_zeros(*call.operands[i]));
  const auto each_id = [&](const auto& f) {
    for (SmallResults* of : {&cotangents, &gradients})
      for (Small& t : *of)
        for (Id& id : t.ids) f(id);
  };
  each_id([&](Id id) { start.push_back(id); });
  start.push_back(g.constant(Type::i32, int64_t{0}));

  const LoopId loop = g.open_loop_backwards(forwards->loop, forwards->steps, start);
  const std::vector<Id> carries = g.loop(loop).carries;
  size_t at = 0;
  each_id([&](Id& id) { id = carries[at++]; });
  SmallResults state, elements, cotangents_of_step;
  size_t place = 0;
  for (size_t k = 0; k < states; ++k) {
    state.push_back(*call.operands[k]);
    for (Id& id : state.back().ids) id = g.kept(place++);
  }
  for (size_t i = states; i < own; ++i)
    if (auto element = loop_->element(g, *call.operands[i])) elements.push_back(*std::move(element));
  for (const Small* given : of_outputs)
    if (auto element = loop_->element(g, *given)) cotangents_of_step.push_back(*std::move(element));
  if (elements.size() < loop_->stacked() || cotangents_of_step.size() < of_outputs.size()) return {};
  std::vector<const Small*> all;
  for (const SmallResults* of : {&state, &elements})
    for (const Small& t : *of) all.push_back(&t);
  for (size_t i = own; i < operands; ++i) all.push_back(call.operands[i]);
  for (const SmallResults* of : {&cotangents, &cotangents_of_step})
    for (const Small& t : *of) all.push_back(&t);
  const auto made = results_of_graph(g, *step_, all);
  if (!made) return {};
  std::vector<Id> next;
  auto found = made->begin();
  for (const Small& after : cotangents) {
    const Small& before = *found++;
    if (before.sizes != after.sizes || before.dtype != after.dtype) return {};
    next.insert(next.end(), before.ids.begin(), before.ids.end());
  }
  const auto of_elements = found;
  for (size_t i = states; i < own; ++i) found += needs_[i];
  for (const Small& sum : gradients) {
    const Small& more = *found++;
    if (more.sizes != sum.sizes || more.dtype != sum.dtype) return {};
    for (size_t e = 0; e < more.ids.size(); ++e) next.push_back(g.make(Op::add, sum.ids[e], more.ids[e]));
  }
  next.push_back(g.make(Op::add, carries.back(), g.constant(Type::i32, int64_t{1})));
  const std::vector<Id> left = g.close_loop_backwards(next);
  at = 0;
  each_id([&](Id& id) { id = left[at++]; });

  SmallResults results;
  for (size_t k = 0, moved = 0; k < states; ++k) {
    if (needs_[k]) results.push_back(cotangents[moved]);
    moved += moves_[k];
  }
  found = of_elements;
  for (size_t i = states; i < own; ++i)
    if (needs_[i]) results.push_back(loop_->in_steps(g, loop, *found++, left[at]));
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

std::optional<KnownCode::Kinds> LoopBackwards::kinds() const {
  const Kinds of_loop = *loop_->kinds();
  Kinds kinds{of_loop.operands, {}};
  for (size_t k = 0; k < cotangents_.size(); ++k)
    if (cotangents_[k]) kinds.operands.push_back(of_loop.results[k]);
  for (size_t i = 0; i < needs_.size(); ++i)
    if (needs_[i]) kinds.results.push_back(of_loop.operands[i]);
  return kinds;
}

KnownCode::Kinds LoopBackwards::kinds_of_step() const {
  const Kinds forwards = loop_->kinds_of_step();
  const size_t states = loop_->states();
  Kinds kinds{forwards.operands, {}};
  for (size_t k = 0; k < loop_->results(); ++k)
    if (k < states ? moves_[k] : cotangents_[k]) kinds.operands.push_back(forwards.results[k]);
  for (size_t i = 0; i < loop_->operands(); ++i)
    if (i < states ? moves_[i] : needs_[i]) kinds.results.push_back(forwards.operands[i]);
  return kinds;
}

std::optional<Tensors> LoopBackwards::run_at_once(const Call& call, const Tensors& operands) const {
  if (in_tiles_.if_made()) return run_in_tiles(operands);
  if (!step_ || !loop_->is_long()) return std::nullopt;
  return run_in_kernel(call, operands);
}

bool LoopBackwards::does_the_same(const KnownCode& code) const {
  const auto* other = dynamic_cast<const LoopBackwards*>(&code);
  return other && cotangents_ == other->cotangents_ && needs_ == other->needs_ && loop_->does_the_same(*other->loop_);
}

}  // namespace tower::compiler
