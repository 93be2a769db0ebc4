#include "sparse/dependence.h"

#include "core/bind.h"
#include "interpreters/vmap.h"

namespace tower::sparse {

namespace {

bool differentiable(const Tensor& t) { return t.is_floating_point() || t.is_complex(); }

bool gives_numbers(const Stack& outs) {
  for (const IValue& v : outs) {
    if (v.isTensor() && v.toTensor().defined() && differentiable(v.toTensor())) return true;
    if (!v.isTensorList()) continue;
    for (const auto& e : v.toListRef())
      if (e.toTensor().defined() && differentiable(e.toTensor())) return true;
  }
  return false;
}

}  // namespace

void Dependence::process(const Operator& op, Stack& stack) {
  bool any = false;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) {
    Wrapper* w = as_wrapper_of(t, *this);
    any = any || (w && w->payload().tracked());
  });
  any = any && !op.no_derivative();
  const Rule rule = any ? rule_of(op) : nullptr;
  if (any && !rule && op.opens_up() && decompose(op, stack)) return;

  std::vector<std::pair<LeafRef, Tensor>> tracked;
  bool wrapped = false, from_x = op.random();
  Mask varying = 0;
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef leaf) {
    Tensor value = t;
    Wrapper* w = as_wrapper_of(t, *this);
    if (w) {
      value = w->payload().value;
      if (any && w->payload().tracked()) tracked.emplace_back(leaf, w->payload().tangent);
    }
    if (w && is_from_x(*w)) {
      from_x = true;
      varying |= Mask{1} << leaf.arg;
    }
    wrapped = wrapped || value.key_set().has(kKey);
    return value;
  });
  Below below(*this);
  const Stack args = tracked.empty() ? Stack() : stack;
  call_below(*this, op, stack, wrapped);
  std::vector<Tensor> found;
  if (!tracked.empty() && gives_numbers(stack)) {
    const Call call{op, args, stack, tracked, sets_, varying};
    if (rule) found = rule(call);
    if (found.empty()) {
      dense_.insert(op.name());
      found = dense(call);
    }
  }
  replace_outputs(stack, [&](Tensor&& t, size_t k) {
    Tensor ids = k < found.size() && t.defined() && differentiable(t) ? found[k] : Tensor();
    return wrap(*this, Payload{std::move(t), std::move(ids), from_x ? kFromX : kConstant});
  });
}

}  // namespace tower::sparse
