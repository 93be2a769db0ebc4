#include "interpreters/jvp.h"

#include <c10/core/AutogradState.h>

#include "core/bind.h"
#include "interpreters/derivatives.h"
#include "operators/custom.h"

namespace tower {

void Jvp::process(const Operator& op, Stack& stack) {
  Mask tracked = 0;
  if (c10::AutogradState::get_tls_state().get_fw_grad_mode() && !op.no_derivative())
    for_each_tensor(op, stack, [&](const Tensor& t, LeafRef leaf) {
      Wrapper* w = as_wrapper_of(t, *this);
      if (w && w->payload().tangent.defined() && !(op.inactive_args >> leaf.arg & 1)) tracked |= Mask{1} << leaf.arg;
    });
  if (tracked && !op.custom && !op.has_jvp(tracked) && decompose(op, stack)) return;

  c10::SmallVector<Tensor, 4> leaves;
  bool records = false;
  if (tracked) leaves.resize(count_leaves(op, stack));
  {
    // Undefined tensors have a leaf, too, but no visit: walk the arguments alongside.
    size_t base = 0;
    uint8_t last = 0;
    auto position = [&](LeafRef ref) {
      for (; last < ref.arg; ++last)
        if (op.kind(last) != ArgKind::other) base += stack[last].isList() ? stack[last].toListRef().size() : 1;
      return base + ref.element;
    };
    replace_tensors(op, stack, [&](const Tensor& t, LeafRef ref) -> const Tensor& {
      Wrapper* w = as_wrapper_of(t, *this);
      const Tensor& value = w ? w->payload().value : t;
      records = records || value.unsafeGetTensorImpl()->requires_grad();
      if (w && (tracked >> ref.arg & 1)) leaves[position(ref)] = w->payload().tangent;
      return value;
    });
  }

  Below below(*this);
  for (const Tensor& t : leaves) records = records || (t.defined() && t.unsafeGetTensorImpl()->requires_grad());
  if (!this->below() && !records) below.keys().skip_libtorch_autograd();
  if (!tracked) {
    bind_call(op, stack);
    replace_outputs(stack, [&](const Tensor& t, size_t) { return wrap_constant(*this, t); });
    return;
  }
  c10::SmallVector<IValue, 6> args(stack.begin(), stack.end());
  Operator::Values saved;
  if (op.save) saved = call_and_save(op, stack);
  else bind_call(op, stack);
  auto outs = flatten_outputs(stack);
  c10::SmallVector<Meta, 2> metas;
  for (const Tensor& t : outs) metas.push_back(t.defined() ? Meta(t) : Meta());
  c10::SmallVector<const Meta*, 2> outs_meta;
  for (const Meta& m : metas) outs_meta.push_back(&m);
  JvpFrame frame{{op, args, stack, nullptr, 0, saved}, leaves, {}, outs_meta};
  frame.tangents.resize(outs.size());
  run_jvp(frame, tracked, served_jvp(op, tracked));
  size_t leaf = 0;
  for (size_t i = 0; i < stack.size(); ++i) {
    const size_t count = stack[i].isTensorList() ? stack[i].toListRef().size() : 1;
    for (size_t e = 0; e < count; ++e, ++leaf)
      if ((op.nondifferentiable_outs >> i & 1) ||
          (leaf < outs.size() && outs[leaf].defined() && !outs[leaf].is_floating_point() && !outs[leaf].is_complex()))
        frame.tangents[leaf] = Tensor();
  }
  replace_outputs(stack, [&](const Tensor& t, size_t k) {
    return wrap(*this, Payload{t, std::move(frame.tangents[k]), -1});
  });
}

}  // namespace tower
