#include "interpreters/jvp.h"

#include "core/bind.h"
#include "interpreters/derivatives.h"
#include "operators/custom.h"

namespace tower {

namespace {

bool differentiable(const Meta& m) { return c10::isFloatingType(m.dtype) || c10::isComplexType(m.dtype); }

c10::SmallVector<Meta, 2> metas_of(c10::ArrayRef<IValue> outs) {
  c10::SmallVector<Meta, 2> metas;
  const auto add = [&](const Tensor& t) { t.defined() ? metas.emplace_back(t) : metas.emplace_back(); };
  for (const IValue& v : outs) {
    if (v.isTensor()) add(v.toTensor());
    else if (v.isTensorList())
      for (const IValue& e : v.toListRef()) add(e.toTensor());
  }
  return metas;
}

}  // namespace

void Jvp::process(const Operator& op, Stack& stack) {
  const bool follows_tangents = autograd_state().get_fw_grad_mode() && !op.no_derivative();
  // Rules for some arguments only, or none: then it depends on which arguments are tracked.
  if (follows_tangents && op.opens_up() && !op.has_jvp(op.tensor_mask())) {
    const Mask tracked = tracked_args(*this, op, stack);
    if (tracked && !op.has_jvp(tracked) && decompose(op, stack)) return;
  }

  c10::SmallVector<Tensor, 4> leaves(count_leaves(op, stack));
  Mask tracked = 0;
  bool records = false, wrapped = false;
  const auto records_if = [&](const Tensor& t) { records = records || libtorch_follows(t); };
  // Undefined tensors have a leaf, too, but no visit: walk the arguments alongside.
  size_t base = 0;
  uint8_t last = 0;
  const auto position = [&](LeafRef ref) {
    for (; last < ref.arg; ++last)
      if (op.kind(last) != ArgKind::other) base += stack[last].isList() ? stack[last].toListRef().size() : 1;
    return base + ref.element;
  };
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef leaf) -> const Tensor& {
    const Tensor* value = &t;
    if (Wrapper* w = as_wrapper_of(t, *this)) {
      const Payload& payload = w->payload();
      value = &payload.value;
      if (follows_tangents && is_tracked(op, leaf, payload)) {
        tracked |= Mask{1} << leaf.arg;
        leaves[position(leaf)] = payload.tangent;
        records_if(payload.tangent);
      }
    }
    records_if(*value);
    wrapped = wrapped || value->key_set().has(kKey);
    return *value;
  });

  Below below(*this);
  if (!this->below() && !records) below.keys().skip_libtorch_autograd();
  if (!tracked) {
    call_below(*this, op, stack, wrapped);
    replace_outputs(stack, [&](Tensor&& t, size_t) { return wrap_constant(*this, std::move(t)); });
    return;
  }
  c10::SmallVector<IValue, 6> args(stack.begin(), stack.end());
  Operator::Values saved;
  if (op.save) saved = call_and_save(op, stack);
  else call_below(*this, op, stack, wrapped);
  const auto metas = metas_of(stack);
  c10::SmallVector<const Meta*, 2> outs_meta;
  for (const Meta& m : metas) outs_meta.push_back(&m);
  JvpFrame frame{{op, args, stack, nullptr, 0, saved}, leaves, {}, outs_meta};
  frame.tangents.resize(metas.size());
  run_jvp(frame, tracked, served_jvp(op, tracked));
  size_t leaf = 0;
  for (size_t i = 0; i < stack.size(); ++i) {
    const size_t count = stack[i].isTensorList() ? stack[i].toListRef().size() : 1;
    for (size_t e = 0; e < count; ++e, ++leaf)
      if ((op.nondifferentiable_outs >> i & 1) || (leaf < metas.size() && !differentiable(metas[leaf])))
        frame.tangents[leaf] = Tensor();
  }
  replace_outputs(stack, [&](Tensor&& t, size_t k) {
    return wrap(*this, Payload{std::move(t), std::move(frame.tangents[k]), -1});
  });
}

}  // namespace tower
