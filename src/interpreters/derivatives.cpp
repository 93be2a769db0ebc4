#include "interpreters/derivatives.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "core/bind.h"
#include "core/wrapper.h"
#include "interpreters/jvp.h"
#include "interpreters/vjp.h"
#include "tower/errors.h"

namespace tower {
namespace {

template <class R>
Keeps union_of(const std::vector<R>& rules, Mask tracked) {
  Keeps keep;
  for (const auto& r : rules)
    if (r.serves & tracked) keep |= r.keeps;
  return keep;
}

constexpr Keeps kEverything{~Mask{0}, 0, ~Mask{0}};

[[noreturn]] void refuse(const Operator& op, const char* mode) {
  if (!op.vjp.empty() && !op.vjp_is_linear)
    throw DerivativeError(std::string(mode) + ": " + op.name() +
                          " has a backward but no jvp rule, and its backward is not declared to be linear in the "
                          "cotangents. Register a jvp rule, or declare linear_backward if it is.");
  throw DerivativeError(
      std::string(mode) + ": no derivative is known for " + op.name() +
      ": it has no rule in Tower, no decomposition, and no formula in LibTorch's autograd. Register a "
      "derivative for it, or detach() its arguments if the derivative is meant to be zero.");
}

// In the functions below the level records whatever the caller's mode is: a backward pass often runs without.

// The vjp at a point is a linear function of the cotangent; its own vjp, taken at the tangents, is the jvp.
void transpose_vjp(JvpFrame& frame, Mask tracked) {
  auto level = c10::make_intrusive<Vjp>("jvp");
  std::vector<int64_t> cotangent_slots, gradient_slots;
  std::vector<Tensor> tangents;
  {
    Scope scope(level);
    const c10::AutoGradMode recording(true);
    std::vector<Tensor> cotangents;
    for (const Meta* meta : frame.outs_meta) {
      if (!c10::isFloatingType(meta->dtype) && !c10::isComplexType(meta->dtype)) {
        cotangents.emplace_back();
        cotangent_slots.push_back(-1);
        continue;
      }
      Tensor zero = strip_constants(at::zeros(meta->sizes, meta->options()));
      cotangents.push_back(level->track(zero));
      cotangent_slots.push_back(as_wrapper(cotangents.back())->payload().index);
    }
    c10::SmallVector<LeafRef, 4> wanted;
    std::vector<Meta> metas;
    size_t next = 0;
    for (uint8_t i : frame.op.tensor_args()) {
      const IValue& v = frame.args[i];
      const size_t count = v.isList() ? v.toListRef().size() : 1;
      for (size_t e = 0; e < count; ++e, ++next) {
        if (!frame.leaves[next].defined()) continue;
        wanted.push_back(LeafRef{i, static_cast<uint16_t>(e)});
        metas.emplace_back(v.isList() ? v.toListRef()[e].toTensor() : v.toTensor());
        tangents.push_back(frame.leaves[next]);
      }
    }
    c10::SmallVector<const Meta*, 4> wanted_meta;
    for (const auto& m : metas) wanted_meta.push_back(&m);
    VjpFrame vjp{
        {frame.op, frame.args, frame.outs, nullptr, 0, frame.saved}, cotangents, wanted, wanted_meta, {}, tracked};
    vjp.gradients.resize(wanted.size());
    run_vjp(vjp, served_vjp(frame.op, tracked));
    for (const Tensor& g : vjp.gradients) {
      Wrapper* w = g.defined() ? as_wrapper_of(g, *level) : nullptr;
      gradient_slots.push_back(w ? w->payload().index : -1);
    }
  }
  auto result = level->tape().pull_back(gradient_slots, tangents, cotangent_slots, true);
  // Complex numbers: the vjp is linear over the reals with the inner product Re(conj(a) b), so no conjugation is owed.
  for (size_t k = 0; k < result.size(); ++k) frame.give(k, std::move(result[k]));
}

// The jvp at a point is a linear function of the tangents; its own vjp, taken at the cotangents, is the vjp.
void transpose_jvp(VjpFrame& frame) {
  auto level = c10::make_intrusive<Vjp>("vjp");
  std::vector<int64_t> tangent_slots, output_slots;
  std::vector<Tensor> cotangents;
  {
    Scope scope(level);
    const c10::AutoGradMode recording(true);
    std::vector<Tensor> leaves(count_leaves(frame.op, frame.args));
    for (size_t k = 0; k < frame.wanted.size(); ++k) {
      const Meta& meta = *frame.wanted_meta[k];
      Tensor& tangent = leaves[leaf_number(frame.op, frame.args, frame.wanted[k])];
      tangent = level->track(strip_constants(at::zeros(meta.sizes, meta.options())));
      tangent_slots.push_back(as_wrapper(tangent)->payload().index);
    }
    std::vector<Meta> metas;
    for (const Tensor& t : flatten_outputs(frame.outs)) metas.push_back(meta_of_output(t));
    c10::SmallVector<const Meta*, 2> outs_meta;
    for (const auto& m : metas) outs_meta.push_back(&m);
    JvpFrame jvp{{frame.op, frame.args, frame.outs, nullptr, 0, frame.saved}, leaves, {}, outs_meta};
    jvp.tangents.resize(metas.size());
    run_jvp(jvp, frame.wanted_args, Served::own_rule);
    for (size_t k = 0; k < jvp.tangents.size(); ++k) {
      Wrapper* w = jvp.tangents[k].defined() ? as_wrapper_of(jvp.tangents[k], *level) : nullptr;
      output_slots.push_back(w ? w->payload().index : -1);
      cotangents.push_back(frame.cotangents[k]);
    }
  }
  auto result = level->tape().pull_back(output_slots, cotangents, tangent_slots, true);
  for (size_t k = 0; k < result.size(); ++k)
    frame.give(frame.wanted[k].arg, std::move(result[k]), frame.wanted[k].element);
}

// The derivative of an operator's decomposition, evaluated again beside the operator itself.
void differentiate_decomposition(VjpFrame& frame) {
  auto level = c10::make_intrusive<Vjp>("vjp");
  std::vector<int64_t> input_slots, output_slots;
  {
    Scope scope(level);
    const c10::AutoGradMode recording(true);
    Stack stack(frame.args.begin(), frame.args.end());
    replace_tensors(frame.op, stack, [&](const Tensor& t, LeafRef leaf) {
      for (const LeafRef& wanted : frame.wanted)
        if (wanted.arg == leaf.arg && wanted.element == leaf.element) {
          Tensor tracked = level->track(t);
          input_slots.push_back(as_wrapper(tracked)->payload().index);
          return tracked;
        }
      return t;
    });
    decompose(frame.op, stack);
    for (const Tensor& t : flatten_outputs(stack)) {
      Wrapper* w = t.defined() ? as_wrapper_of(t, *level) : nullptr;
      output_slots.push_back(w ? w->payload().index : -1);
    }
  }
  auto result = level->tape().pull_back(output_slots, frame.cotangents, input_slots, true);
  for (size_t k = 0; k < result.size(); ++k)
    frame.give(frame.wanted[k].arg, std::move(result[k]), frame.wanted[k].element);
}

void differentiate_decomposition(JvpFrame& frame) {
  auto level = c10::make_intrusive<Jvp>("jvp");
  std::vector<Tensor> tangents;
  {
    Scope scope(level);
    const c10::AutoFwGradMode following(true);
    Stack stack(frame.args.begin(), frame.args.end());
    replace_tensors(frame.op, stack, [&](const Tensor& t, LeafRef leaf) {
      const Tensor& tangent = frame.leaves[leaf_number(frame.op, frame.args, leaf)];
      return tangent.defined() ? wrap(*level, Payload{t, tangent, -1}) : t;
    });
    decompose(frame.op, stack);
    for (const Tensor& t : flatten_outputs(stack)) {
      Wrapper* w = t.defined() ? as_wrapper_of(t, *level) : nullptr;
      tangents.push_back(w ? w->payload().tangent : Tensor());
    }
  }
  for (size_t k = 0; k < tangents.size(); ++k) frame.give(k, std::move(tangents[k]));
}

}  // namespace

Mask tracked_args(const Level& level, const Operator& op, c10::ArrayRef<IValue> args) {
  Mask tracked = 0;
  for_each_tensor(op, args, [&](const Tensor& t, LeafRef leaf) {
    Wrapper* w = as_wrapper_of(t, level);
    if (w && is_tracked(op, leaf, w->payload())) tracked |= Mask{1} << leaf.arg;
  });
  return tracked;
}

Served served_vjp(const Operator& op, Mask tracked) {
  if (op.no_derivative()) return Served::no_derivative;
  if (op.has_vjp(tracked) && (!op.vjp.empty() || (tracked & ~op.inactive_args) == 0)) return Served::own_rule;
  // What runs the operator again would draw other numbers, if it is a random one.
  if (op.custom && op.jvp.empty() && op.decomposes() && !op.random()) return Served::decomposition;
  if (op.libtorch_differentiates() && !op.random()) return Served::libtorch_autograd;
  if (op.custom && !op.jvp.empty() && op.has_jvp(tracked)) return Served::transposed_jvp;
  return Served::error;
}

Served served_jvp(const Operator& op, Mask tracked) {
  if (op.no_derivative()) return Served::no_derivative;
  if (op.has_jvp(tracked) && (!op.jvp.empty() || (tracked & ~op.inactive_args) == 0)) return Served::own_rule;
  if (op.custom && op.vjp.empty() && op.decomposes() && !op.random()) return Served::decomposition;
  return !op.vjp_is_linear || served_vjp(op, tracked) == Served::error ? Served::error : Served::transposed_vjp;
}

Keeps keeps_for_vjp(const Operator& op, Mask tracked, Served served) {
  return served == Served::own_rule ? union_of(op.vjp, tracked) : kEverything;
}

Keeps keeps_for_jvp(const Operator& op, Mask tracked, Served served) {
  return served == Served::own_rule ? union_of(op.jvp, tracked) : kEverything;
}

void run_vjp(VjpFrame& frame, Served served) {
  const Operator& op = frame.op;
  switch (served) {
    case Served::no_derivative:
      return;
    case Served::own_rule:
      // A rule that was taken back since the call was recorded is not a zero.
      if ((op.custom || op.vjp.empty()) && !op.has_vjp(frame.wanted_args)) refuse(op, "vjp");
      for (const auto& rule : op.vjp)
        if (rule.serves & frame.wanted_args) rule.run(frame);
      return;
    case Served::libtorch_autograd:
      return vjp_by_libtorch(frame);
    case Served::transposed_jvp:
      return transpose_jvp(frame);
    case Served::decomposition:
      return differentiate_decomposition(frame);
    default:
      refuse(op, "vjp");
  }
}

void run_jvp(JvpFrame& frame, Mask tracked, Served served) {
  const Operator& op = frame.op;
  switch (served) {
    case Served::no_derivative:
      return;
    case Served::own_rule:
      if ((op.custom || op.jvp.empty()) && !op.has_jvp(tracked)) refuse(op, "jvp");
      for (const auto& rule : op.jvp)
        if (rule.serves & tracked) rule.run(frame);
      return;
    case Served::transposed_vjp:
      return transpose_vjp(frame, tracked);
    case Served::decomposition:
      return differentiate_decomposition(frame);
    default:
      refuse(op, "jvp");
  }
}

}  // namespace tower
