#include "interpreters/libtorch_bridge.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/bind.h"
#include "interpreters/derivatives.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"

namespace tower {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One call, apart from the tensors that LibTorch keeps for it.
struct BridgedCall final : torch::CustomClassHolder {
  explicit BridgedCall(const Operator& called) : op(called) {
    if (!op.handle()) owner = c10::intrusive_ptr<const Operator>::reclaim_copy(&op);
  }
  const Operator& op;
  c10::intrusive_ptr<const Operator> owner;
  Stack args;                   // placeholders for the tensors
  std::vector<LeafRef> leaves;  // where they go
  Stack outs;                   // the outputs' structure
  Operator::Values saved;       // what came with the outputs, if anything, placeholders for its tensors
};

Stack fill(const BridgedCall& call, c10::ArrayRef<Tensor> tensors) {
  Stack stack = call.args;
  size_t next = 0;
  replace_tensors(call.op, stack, [&](const Tensor&, LeafRef) { return tensors[next++]; });
  return stack;
}

Stack fill_outputs(const BridgedCall& call, c10::ArrayRef<Tensor> tensors) {
  Stack stack = call.outs;
  replace_outputs(stack, [&](const Tensor&, size_t leaf) { return tensors[leaf]; });
  return stack;
}

// What is evaluated knows nothing of LibTorch's history of its operands. So if LibTorch records what comes out, a
// tensor was captured whose gradient the operator's rules would drop.
void check_nothing_captured(const Operator& op, c10::ArrayRef<Tensor> outs) {
  for (const Tensor& t : outs)
    if (t.defined() && libtorch_records(t))
      throw UnsupportedError(op.name() +
                             ": it uses a tensor that it captured instead of taking it as an argument, and that "
                             "requires grad. Its rules give no gradient for it; pass it as an argument.");
}

struct Recorded : torch::autograd::Function<Recorded> {
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<BridgedCall>& call,
                               at::TensorList given) {
    variable_list operands;
    for (const Tensor& t : given) operands.push_back(t.requires_grad() ? t.detach() : t);
    Stack stack = fill(*call, operands);
    Operator::Values saved;
    const c10::AutoGradMode recording(true);
    if (call->op.call_and_save) {
      const AsUserCode user;
      std::tie(stack, saved) = call->op.call_and_save(stack);
    } else {
      call->op.call(stack);
    }
    auto flat = flatten_outputs(stack);
    variable_list outs(flat.begin(), flat.end());
    check_nothing_captured(call->op, outs);
    // An operand that comes out as it is, is LibTorch's to see as such.
    const auto as_given = [&](const Tensor& t) {
      for (size_t k = 0; k < operands.size(); ++k)
        if (t.is_same(operands[k])) return given[k];
      return t;
    };
    for (Tensor& t : outs) t = as_given(t);
    // Only the structure is kept with the call: LibTorch must know of every tensor.
    const Tensor place = at::empty({0});
    replace_outputs(stack, [&](const Tensor&, size_t) { return place; });
    call->outs = std::move(stack);
    variable_list kept(given.begin(), given.end());
    kept.insert(kept.end(), outs.begin(), outs.end());
    replace_outputs(saved, [&](const Tensor& t, size_t) {
      kept.push_back(as_given(t));
      return place;
    });
    call->saved = std::move(saved);
    ctx->save_for_backward(std::move(kept));
    ctx->saved_data["call"] = IValue::make_capsule(call);
    ctx->set_materialize_grads(false);
    return outs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& cotangents) {
    const auto capsule = ctx->saved_data["call"].toCapsule();
    const BridgedCall& call = static_cast<const BridgedCall&>(*capsule);
    const variable_list kept = ctx->get_saved_variables();
    const auto all = c10::ArrayRef<Tensor>(kept);
    const Stack args = fill(call, all.slice(0, call.leaves.size()));
    const size_t num_outs = flatten_outputs(call.outs).size();
    const Stack outs = fill_outputs(call, all.slice(call.leaves.size(), num_outs));
    // Computed now where a second derivative may ask how it depends on the operands.
    Operator::Values saved = call.saved;
    if (saved.empty() || c10::GradMode::is_enabled()) {
      saved = save_for_derivatives(call.op, args, outs);
    } else {
      const auto came_with_the_outputs = all.slice(call.leaves.size() + num_outs);
      size_t next = 0;
      replace_outputs(saved, [&](const Tensor&, size_t) { return came_with_the_outputs[next++]; });
    }
    c10::SmallVector<LeafRef, 4> wanted;
    std::vector<Meta> metas;
    std::vector<size_t> operands;
    Mask wanted_args = 0;
    for (size_t k = 0; k < call.leaves.size(); ++k) {
      if (!kept[k].requires_grad() || (call.op.inactive_args >> call.leaves[k].arg & 1)) continue;
      operands.push_back(k);
      wanted.push_back(call.leaves[k]);
      metas.emplace_back(kept[k]);
      wanted_args |= Mask{1} << call.leaves[k].arg;
    }
    c10::SmallVector<const Meta*, 4> wanted_meta;
    for (const Meta& m : metas) wanted_meta.push_back(&m);
    VjpFrame frame{{call.op, args, outs, nullptr, 0, saved}, cotangents, wanted, wanted_meta, {}, wanted_args};
    frame.gradients.resize(wanted.size());
    const Served served = served_vjp(call.op, wanted_args);
    if (served == Served::error)
      throw DerivativeError("backward: autograd is not implemented for " + call.op.name() +
                            ": it has no backward formula. Register one (" + detail::spellings().new_operator +
                            "), or detach() its arguments.");
    run_vjp(frame, served);
    variable_list gradients(1 + call.leaves.size());  // the first is the call's
    for (size_t k = 0; k < operands.size(); ++k) gradients[1 + operands[k]] = std::move(frame.gradients[k]);
    return gradients;
  }
};

bool is_recorded(const Operator& op, c10::ArrayRef<IValue> args) {
  bool recorded = false;
  for_each_tensor(op, args, [&](const Tensor& t, LeafRef) {
    if (is_libtorch_dual(t) && c10::AutogradState::get_tls_state().get_fw_grad_mode())
      throw DerivativeError(op.name() +
                            ": an argument carries a tangent of LibTorch's own forward mode, which cannot follow an "
                            "operator with rules of its own. Use " +
                            detail::spellings().jvp + " instead of LibTorch's dual tensors.");
    recorded = recorded || t.requires_grad();
  });
  return recorded && c10::GradMode::is_enabled();
}

}  // namespace

bool record_in_libtorch(const Operator& op, Stack& stack) {
  if (!is_recorded(op, stack)) return false;
  auto call = c10::make_intrusive<BridgedCall>(op);
  call->args = stack;
  variable_list operands;
  const Tensor place = at::empty({0});
  replace_tensors(op, call->args, [&](const Tensor& t, LeafRef leaf) {
    call->leaves.push_back(leaf);
    operands.push_back(t);
    return place;
  });
  const variable_list outs = Recorded::apply(call, at::TensorList(operands));
  stack = fill_outputs(*call, outs);
  return true;
}

}  // namespace tower
