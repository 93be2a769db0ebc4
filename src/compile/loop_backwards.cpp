#include "compile/loop_backwards.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "fuse/small_graph.h"
#include "tower/errors.h"

namespace tower::compiler {

using dynamic::Tensors;

LoopBackwards::LoopBackwards(std::shared_ptr<const Loop> loop, std::vector<bool> cotangents, std::vector<bool> needs,
                             const Tensors& operands)
    : loop_(std::move(loop)), cotangents_(std::move(cotangents)), needs_(std::move(needs)) {
  random = loop_->random;
  foreign = loop_->foreign;
  raises = loop_->raises;
  for (size_t k = 0; k < loop_->states(); ++k) moves_.push_back(has_derivative(operands[k]));
  if (random || foreign) return;
  std::vector<bool> of_step = moves_;
  of_step.insert(of_step.end(), needs_.begin() + static_cast<std::ptrdiff_t>(moves_.size()), needs_.end());
  const auto step = [this](const Tensors& x) { return loop_->step().run(x); };
  Tensors all = operands;
  for (size_t k = 0; k < moves_.size(); ++k)
    if (moves_[k]) all.push_back(at::ones_like(operands[k]));
  try {
    step_ = traced_step(pullback_of(step, moves_, of_step), all);
  } catch (const InvisibleTensorError&) {
    throw;
  } catch (const std::exception&) {
    // It may be of a step that is never made; where it is, making it again raises.
    return;
  }
  const auto is_captured = [](const Value& v) { return v.origin == Origin::captured; };
  if (std::any_of(step_->values.begin(), step_->values.end(), is_captured)) step_.reset();
}

SmallResults LoopBackwards::in_numbers(const SmallCall& call) const {
  const size_t states = loop_->states(), operands = loop_->operands();
  if (!step_) return {};
  const auto forwards = loop_->steps_in_numbers(call, true);
  if (!forwards) return {};
  Expressions& g = call.graph;

  // The cotangents after the last step, and the gradients of what all steps share so far, which are none.
  std::vector<Id> start;
  SmallResults cotangents, gradients;
  const auto begin_with_zeros = [&](const Small& like) {
    Small zeros = like;
    for (Id& id : zeros.ids) id = g.constant(*type_of(like.dtype), 0.0);
    return zeros;
  };
  for (size_t k = 0, next = operands; k < states; ++k) {
    const Small* given = cotangents_[k] ? call.operands[next++] : nullptr;
    if (moves_[k]) cotangents.push_back(given ? *given : begin_with_zeros(*call.operands[k]));
  }
  for (size_t i = states; i < operands; ++i)
    if (needs_[i]) gradients.push_back(begin_with_zeros(*call.operands[i]));
  const auto each_id = [&](const auto& f) {
    for (SmallResults* of : {&cotangents, &gradients})
      for (Small& t : *of)
        for (Id& id : t.ids) f(id);
  };
  each_id([&](Id id) { start.push_back(id); });

  const LoopId loop = g.open_loop_backwards(forwards->loop, forwards->steps, start);
  const std::vector<Id> carries = g.loop(loop).carries;
  size_t at = 0;
  each_id([&](Id& id) { id = carries[at++]; });
  SmallResults state;
  size_t place = 0;
  for (size_t k = 0; k < states; ++k) {
    state.push_back(*call.operands[k]);
    for (Id& id : state.back().ids) id = g.kept(place++);
  }
  std::vector<const Small*> all;
  for (const Small& t : state) all.push_back(&t);
  for (size_t i = states; i < operands; ++i) all.push_back(call.operands[i]);
  for (const Small& t : cotangents) all.push_back(&t);
  const auto made = results_of_graph(g, *step_, all);
  if (!made) return {};
  std::vector<Id> next;
  for (size_t k = 0; k < cotangents.size(); ++k) {
    const Small& before = (*made)[k];
    if (before.sizes != cotangents[k].sizes || before.dtype != cotangents[k].dtype) return {};
    next.insert(next.end(), before.ids.begin(), before.ids.end());
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Small& more = (*made)[cotangents.size() + i];
    if (more.sizes != gradients[i].sizes || more.dtype != gradients[i].dtype) return {};
    for (size_t e = 0; e < more.ids.size(); ++e) next.push_back(g.make(Op::add, gradients[i].ids[e], more.ids[e]));
  }
  const std::vector<Id> left = g.close_loop_backwards(next);
  at = 0;
  each_id([&](Id& id) { id = left[at++]; });

  SmallResults results;
  for (size_t k = 0, moved = 0; k < states; ++k) {
    if (needs_[k]) results.push_back(cotangents[moved]);
    moved += moves_[k];
  }
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

bool LoopBackwards::does_the_same(const KnownCode& code) const {
  const auto* other = dynamic_cast<const LoopBackwards*>(&code);
  return other && cotangents_ == other->cotangents_ && needs_ == other->needs_ && loop_->does_the_same(*other->loop_);
}

}  // namespace tower::compiler
