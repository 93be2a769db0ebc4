#include "interpreters/jvp.h"

#include "core/bind.h"
#include "core/reuse.h"
#include "interpreters/custom.h"
#include "interpreters/derivatives.h"

namespace tower {

namespace {

bool differentiable(const Meta& m) { return c10::isFloatingType(m.dtype) || c10::isComplexType(m.dtype); }

c10::SmallVector<Meta, 2> metas_of(c10::ArrayRef<IValue> outs) {
  c10::SmallVector<Meta, 2> metas;
  const auto add = [&](const Tensor& t) { metas.push_back(meta_of_output(t)); };
  for (const IValue& v : outs) {
    if (v.isTensor()) add(v.toTensor());
    else if (v.isTensorList())
      for (const IValue& e : v.toListRef()) add(e.toTensor());
  }
  return metas;
}

// Lets go of the first argument where the rule needs at most its shape, so that the call may overwrite it. Returns for
// which arguments `shapes` stands.
Mask let_go(const Operator& op, Mask tracked, Served served, c10::SmallVectorImpl<IValue>& args,
            std::vector<Meta>& shapes) {
  const Keeps keeps = keeps_for_jvp(op, tracked, served);
  if (op.kind(0) != ArgKind::tensor || (keeps.args & 1)) return 0;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!(keeps.shapes >> i & 1)) continue;
    if (!args[i].isTensor() || !args[i].toTensor().defined()) return 0;
    shapes.emplace_back(args[i].toTensor());
  }
  args[0] = IValue();
  return keeps.shapes;
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
  const Served served = served_jvp(op, tracked);
  c10::SmallVector<IValue, 6> args(stack.begin(), stack.end());
  std::vector<Meta> shapes;
  Mask shapes_kept = 0;
  if (Reuse::active() && !op.save) shapes_kept = let_go(op, tracked, served, args, shapes);
  Operator::Values saved;
  if (op.save) saved = call_and_save(op, stack);
  else call_below(*this, op, stack, wrapped);
  const auto metas = metas_of(stack);
  c10::SmallVector<const Meta*, 2> outs_meta;
  for (const Meta& m : metas) outs_meta.push_back(&m);
  JvpFrame frame{{op, args, stack, shapes_kept ? &shapes : nullptr, shapes_kept, saved}, leaves, {}, outs_meta};
  frame.tangents.resize(metas.size());
  run_jvp(frame, tracked, served);
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
