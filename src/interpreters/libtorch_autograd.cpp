// The vjp of an operator that has no rule of Tower's, taken from LibTorch's own autograd.
//
// NOTE [Opaque operators]
// The image of an operator under a transform is again an operator. So "the vjp of op, by LibTorch" is made an operator
// of its own, over a flat list of tensors, and bound like any other: a vmap level below loops over it, a vjp level
// below differentiates it by the same construction once more, and so on to any order. It costs a second evaluation of
// the forward operator, because what LibTorch keeps belongs to plain tensors, which the levels below may not have.
#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/bind.h"
#include "interpreters/derivatives.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"

namespace tower {
namespace {

using Tensors = std::vector<Tensor>;
// A function of plain tensors that LibTorch's autograd can differentiate.
using PlainFunction = std::function<Tensors(const Tensors&)>;

bool differentiable(const Tensor& t) { return t.defined() && (t.is_floating_point() || t.is_complex()); }

// Gradients of `f` for the inputs in `wanted`, as a function of inputs and (for outputs in `given`) cotangents.
PlainFunction gradient_of(PlainFunction f, std::vector<size_t> wanted, std::vector<size_t> given) {
  return [f = std::move(f), wanted = std::move(wanted), given = std::move(given)](const Tensors& args) {
    const size_t num_inputs = args.size() - given.size();
    DispatchGuard keys;
    keys.with_libtorch_autograd();
    bool record = false;
    for (const Tensor& t : args) record = record || (c10::GradMode::is_enabled() && t.requires_grad());
    c10::AutoGradMode grad(true);
    Tensors inputs(args.begin(), args.begin() + static_cast<std::ptrdiff_t>(num_inputs));
    for (size_t i : wanted)
      inputs[i] = record && inputs[i].requires_grad() ? at::alias(inputs[i]) : inputs[i].detach().requires_grad_();
    const Tensors outs = f(inputs);
    Tensors of_outputs, cotangents, of_inputs;
    for (size_t k = 0; k < given.size(); ++k) {
      if (!outs[given[k]].requires_grad()) continue;  // LibTorch declares this output non-differentiable
      of_outputs.push_back(outs[given[k]]);
      cotangents.push_back(args[num_inputs + k]);
    }
    for (size_t i : wanted) of_inputs.push_back(inputs[i]);
    Tensors grads(wanted.size());
    if (!of_outputs.empty())
      grads = torch::autograd::grad(of_outputs, of_inputs, cotangents, record, record, /*allow_unused=*/true);
    for (size_t k = 0; k < grads.size(); ++k)
      if (!grads[k].defined()) grads[k] = at::zeros_like(args[wanted[k]]);
    return grads;
  };
}

class OpaqueOperator final : public Operator {
 public:
  OpaqueOperator(std::string name, PlainFunction f)
      : Operator(name, c10::FunctionSchema(name, "", {c10::Argument("inputs", c10::ListType::ofTensors())},
                                           {c10::Argument("", c10::ListType::ofTensors())})),
        f_(std::move(f)) {
    vjp.push_back({1, Keeps{1, 0, 0}, [this](VjpFrame& frame) { differentiate(frame); }});
  }

  void call(Stack& stack) const override {
    Tensors inputs;
    for (const auto& e : stack[0].toListRef()) inputs.push_back(e.toTensor());
    if (std::any_of(inputs.begin(), inputs.end(), is_libtorch_dual))
      throw DerivativeError(name() +
                            ": it comes from LibTorch's reverse mode, which loses the tangents of LibTorch's dual "
                            "tensors. Use " +
                            detail::spellings().jvp + " instead of them, or register a rule.");
    Tensors outs = f_(inputs);
    stack.clear();
    stack.emplace_back(c10::List<Tensor>(outs));
  }

 private:
  void differentiate(VjpFrame& frame) const;
  PlainFunction f_;
};

// Binds the gradient operator of `f` on inputs and cotangents; gives gradients in the order of `wanted`.
Tensors bind_gradient(const std::string& name, const PlainFunction& f, Tensors inputs, std::vector<size_t> wanted,
                      c10::ArrayRef<Tensor> cotangents) {
  std::vector<size_t> given;
  for (size_t k = 0; k < cotangents.size(); ++k)
    if (cotangents[k].defined()) {
      given.push_back(k);
      inputs.push_back(cotangents[k]);
    }
  auto op =
      c10::make_intrusive<OpaqueOperator>("vjp(" + name + ")", gradient_of(f, std::move(wanted), std::move(given)));
  Stack stack;
  stack.emplace_back(c10::List<Tensor>(inputs));
  bind_call(*op, stack);
  Tensors grads;
  for (const auto& e : stack[0].toListRef()) grads.push_back(e.toTensor());
  return grads;
}

void OpaqueOperator::differentiate(VjpFrame& frame) const {
  Tensors inputs;
  for (const auto& e : frame.args[0].toListRef()) inputs.push_back(e.toTensor());
  std::vector<size_t> wanted;
  for (const LeafRef& leaf : frame.wanted) wanted.push_back(leaf.element);
  // The frame's operator is this one, alive on the tape for as long as its function is needed.
  Tensors grads = bind_gradient(name(), f_, std::move(inputs), wanted, frame.cotangents);
  for (size_t k = 0; k < wanted.size(); ++k) frame.give(0, std::move(grads[k]), wanted[k]);
}

}  // namespace

void vjp_by_libtorch(VjpFrame& frame) {
  const Operator& op = frame.op;
  Tensors inputs;
  std::vector<size_t> wanted;
  std::vector<IValue> attributes(frame.args.begin(), frame.args.end());
  for_each_tensor(op, frame.args, [&](const Tensor& t, LeafRef leaf) {
    for (const LeafRef& w : frame.wanted)
      if (w.arg == leaf.arg && w.element == leaf.element) wanted.push_back(inputs.size());
    inputs.push_back(t);
  });
  // Only the places of the tensors: a tape that keeps the operator must not keep its own level's tensors through it.
  const Tensor place = at::empty({0});
  replace_tensors(op, attributes, [&](const Tensor&, LeafRef) { return place; });
  PlainFunction forward = [&op, attributes](const Tensors& tensors) {
    Stack stack(attributes.begin(), attributes.end());
    size_t next = 0;
    replace_tensors(op, stack, [&](const Tensor&, LeafRef) { return tensors[next++]; });
    op.call(stack);
    auto outs = flatten_outputs(stack);
    return Tensors(outs.begin(), outs.end());
  };
  std::vector<Tensor> cotangents(frame.cotangents.begin(), frame.cotangents.end());
  for (size_t k = 0; k < cotangents.size(); ++k)
    if (cotangents[k].defined() && !differentiable(cotangents[k])) cotangents[k] = Tensor();
  Tensors grads = bind_gradient(op.name(), forward, std::move(inputs), wanted, cotangents);
  for (size_t k = 0; k < frame.wanted.size(); ++k)
    frame.give(frame.wanted[k].arg, std::move(grads[k]), frame.wanted[k].element);
}

}  // namespace tower
