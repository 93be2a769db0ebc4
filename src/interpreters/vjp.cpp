#include "interpreters/vjp.h"

#include <c10/core/GradMode.h>

#include "core/bind.h"
#include "interpreters/derivatives.h"
#include "operators/custom.h"
#include "tower/errors.h"

namespace tower {
namespace {

bool differentiable(const Tensor& t) { return t.is_floating_point() || t.is_complex(); }

}  // namespace

Vjp::Vjp(const char* label, Tape::Purpose purpose)
    : Level(Kind::vjp, label),
      tape_(c10::make_intrusive<Tape>(purpose, label)),
      outer_grad_mode_(c10::GradMode::is_enabled()) {}

Tensor Vjp::track(const Tensor& value) { return wrap(*this, Payload{value, {}, tape_->add_input(value)}); }

void Vjp::process(const Operator& op, Stack& stack) {
  c10::SmallVector<Node::Input, 4> inputs;
  Mask tracked = 0;
  const bool grad_mode = c10::GradMode::is_enabled();
  if (grad_mode && !op.no_derivative())
    for_each_tensor(op, stack, [&](const Tensor& t, LeafRef leaf) {
      Wrapper* w = as_wrapper_of(t, *this);
      if (!w || w->payload().index < 0 || (op.inactive_args >> leaf.arg & 1)) return;
      inputs.push_back({leaf, w->stored().index});
      tracked |= Mask{1} << leaf.arg;
    });
  if (tracked && !op.custom && !op.has_vjp(tracked) && decompose(op, stack)) return;

  bool records = false, wrapped = false;
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef) -> const Tensor& {
    Wrapper* w = as_wrapper_of(t, *this);
    const Tensor& value = w ? w->payload().value : t;
    records = records || value.unsafeGetTensorImpl()->requires_grad();
    wrapped = wrapped || value.key_set().has(kKey);
    return value;
  });
  const auto call = [&] { wrapped ? bind_call(op, stack) : bind_call(op, stack, nullptr); };

  Below below(*this);
  if (!this->below() && !records) below.keys().skip_libtorch_autograd();
  std::optional<c10::AutoGradMode> mode;
  if (grad_mode && !outer_grad_mode_) mode.emplace(false);
  if (!tracked) {
    call();
    replace_outputs(stack, [&](const Tensor& t, size_t) { return wrap_constant(*this, t); });
    return;
  }
  Node& node = tape_->record(op, stack, inputs, tracked);
  Operator::Values saved;
  try {
    if (op.save) saved = call_and_save(op, stack);
    else call();
  } catch (...) {
    node.release();  // the call did not happen
    throw;
  }
  const int64_t first = tape_->complete(node, stack, std::move(saved));
  Mask constant_leaves = 0;
  if (op.nondifferentiable_outs) {
    size_t leaf = 0;
    for (size_t i = 0; i < stack.size(); ++i) {
      const size_t count = stack[i].isTensorList() ? stack[i].toListRef().size() : 1;
      for (size_t e = 0; e < count; ++e, ++leaf)
        if (op.nondifferentiable_outs >> i & 1) constant_leaves |= Mask{1} << leaf;
    }
  }
  replace_outputs(stack, [&](const Tensor& t, size_t leaf) {
    const bool constant = !differentiable(t) || (leaf < 64 && (constant_leaves >> leaf & 1));
    return wrap(*this, Payload{t, {}, constant ? -1 : first + static_cast<int64_t>(leaf)});
  });
}

}  // namespace tower
