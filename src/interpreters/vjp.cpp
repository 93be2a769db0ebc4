#include "interpreters/vjp.h"

#include <c10/core/GradMode.h>

#include "core/bind.h"
#include "frontend/views.h"
#include "interpreters/custom.h"
#include "interpreters/derivatives.h"
#include "tower/errors.h"

namespace tower {
namespace {

bool has_derivatives(const Tensor& t) { return t.is_floating_point() || t.is_complex(); }

/// The outputs declared to have no derivative, flattened.
Mask nondifferentiable_leaves(const Operator& op, c10::ArrayRef<IValue> outs) {
  Mask leaves = 0;
  size_t leaf = 0;
  for (size_t i = 0; i < outs.size(); ++i) {
    const size_t count = outs[i].isTensorList() ? outs[i].toListRef().size() : 1;
    for (size_t e = 0; e < count; ++e, ++leaf)
      if (op.nondifferentiable_outs >> i & 1) leaves |= Mask{1} << leaf;
  }
  return leaves;
}

}  // namespace

Vjp::Vjp(const char* label, Tape::Purpose purpose)
    : Level(Kind::vjp, label),
      purpose_(purpose),
      tape_(c10::make_intrusive<Tape>(purpose, label)),
      outer_grad_mode_(autograd_state().get_grad_mode()) {}

Tensor Vjp::track(const Tensor& value) {
  const int64_t slot = tape_->add_input(value);
  num_inputs_ = slot + 1;
  return wrap(*this, Payload{value, {}, slot});
}

void Vjp::took(Wrapper& w) {
  const int64_t slot = w.stored().index;
  if (slot < 0) return History::show_untracked(w);
  if (purpose_ == Tape::Purpose::pushforward) return;  // as in LibTorch, forward mode requires no grad
  if (slot < num_inputs_) history_.show_input(w);
  else history_.show_result(w);
}

C10_ALWAYS_INLINE void Vjp::compute(const Operator& op, Stack& stack, bool wrapped) const {
  if (known_) [[unlikely]]
    stack = *known_;
  else call_below(*this, op, stack, wrapped);
}

Operator::Values Vjp::compute_and_save(const Operator& op, Stack& stack) const {
  if (!known_) return call_and_save(op, stack);
  const Stack args = std::exchange(stack, *known_);
  return save_for_derivatives(op, args, stack);
}

void Vjp::process(const Operator& op, Stack& stack) {
  const bool grad_mode = autograd_state().get_grad_mode();
  const bool follows = heeds_no_grad() ? grad_mode : autograd_state().get_fw_grad_mode();
  const bool records_calls = follows && !op.no_derivative();
  // Rules for some arguments only, or none: then it depends on which arguments are tracked.
  if (records_calls && op.opens_up() && !op.has_vjp(op.tensor_mask())) {
    const Mask tracked = tracked_args(*this, op, stack);
    if (tracked && !op.has_vjp(tracked) && decompose(op, stack)) return;
  }

  Node::Inputs inputs;
  Mask tracked = 0, held = 0;  // `held`: by the function itself, which may write to them
  bool records = false, wrapped = false;
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef leaf) -> const Tensor& {
    const Tensor* value = &t;
    if (Wrapper* w = as_wrapper_of(t, *this)) {
      const Payload& payload = w->payload();
      value = &payload.value;
      if (records_calls && is_tracked(op, leaf, payload)) {
        inputs.push_back({leaf, payload.index});
        tracked |= Mask{1} << leaf.arg;
      }
    } else if (t.key_set().has(kKey)) {
      held |= Mask{1} << leaf.arg;
    }
    records = records || libtorch_follows(*value);
    wrapped = wrapped || value->key_set().has(kKey);
    return *value;
  });

  Below below(*this);
  if (!this->below() && !records) below.keys().skip_libtorch_autograd();
  std::optional<c10::AutoGradMode> mode;
  if (grad_mode && !outer_grad_mode_) mode.emplace(false);
  if (!tracked) {
    compute(op, stack, wrapped);
    replace_outputs(stack, [&](Tensor&& t, size_t) { return wrap_constant(*this, std::move(t)); });
    return;
  }
  if (held && op.save) {  // which chooses freely among the arguments
    replace_tensors(op, stack, [&](const Tensor& t, LeafRef leaf) { return held >> leaf.arg & 1 ? as_held(t) : t; });
    held = 0;
  }
  Node& node = tape_->record(op, stack, std::move(inputs), tracked, held);
  Operator::Values saved;
  try {
    if (op.save) saved = compute_and_save(op, stack);
    else compute(op, stack, wrapped);
  } catch (...) {
    node.release();  // the call did not happen
    throw;
  }
  const int64_t first = tape_->complete(node, stack, std::move(saved));
  const Mask constant_leaves = op.nondifferentiable_outs ? nondifferentiable_leaves(op, stack) : 0;
  replace_outputs(stack, [&](Tensor&& t, size_t leaf) {
    const bool constant = !has_derivatives(t) || (leaf < 64 && (constant_leaves >> leaf & 1));
    return wrap(*this, Payload{std::move(t), {}, constant ? -1 : first + static_cast<int64_t>(leaf)});
  });
}

}  // namespace tower
