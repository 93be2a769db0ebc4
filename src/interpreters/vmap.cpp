// A call under vmap: take the values and their batch dimensions out of the wrappers, let the operator's rule run on
// them one level down, wrap what comes out. Operators tagged pointwise need no rule of their own, the rest is looped
// over with a warning.
#include "interpreters/vmap.h"

#include <algorithm>

#include "core/bind.h"
#include "core/gives_tensors.h"
#include "interpreters/custom.h"
#include "interpreters/derivatives.h"
#include "interpreters/mapped.h"
#include "records/families.h"
#include "tower/detail/foreign_frame.h"
#include "tower/errors.h"

namespace tower {
namespace {

// What numbers compare by in type promotion: bool, integers, reals, complex numbers.
int category(at::ScalarType type) {
  if (c10::isComplexType(type)) return 3;
  if (c10::isFloatingType(type)) return 2;
  return type == at::ScalarType::Bool ? 0 : 1;
}

// Whether arguments of the level are the CPU's and others a device's. LibTorch takes such numbers, but no batch of
// them. (Beside meta tensors it does not always take them.)
bool numbers_beside_a_device(const Operator& op, const Stack& stack, Mask wrappers) {
  bool numbers = false, device = false;
  for (uint8_t i : op.tensor_args()) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const bool cpu = stack[i].toTensor().is_cpu();
    numbers = numbers || (cpu && (wrappers >> i & 1));
    device = device || !(cpu || stack[i].toTensor().is_meta());
  }
  return numbers && device;
}

// LibTorch speaks of what it was given: all examples together, with a dimension that the user has not seen.
template <class F>
void of_all_examples(const Level& level, const Operator& op, const F& run) {
  try {
    run();
  } catch (c10::Error& error) {
    detail::ForeignFrame::note_refusal();
    const auto names_a_level = [](const std::string& context) { return context.find("(level ") != std::string::npos; };
    if (!op.custom && std::none_of(error.context().begin(), error.context().end(), names_a_level))
      error.add_context("of all examples together, " + level.describe() + ": " + op.name());
    throw;
  }
}

}  // namespace

// Nearly every call of a pointwise operator: the batch is in front of all batched operands, which have one rank and
// dtype, and no unbatched operand has more dimensions. Then the physical call is the logical one. False, with nothing
// changed, where it is not so simple.
bool Vmap::process_aligned(const Operator& op, Stack& stack) {
  int64_t batched_rank = -1, unbatched_rank = -1;
  at::ScalarType type = at::ScalarType::Undefined;
  int number = -1;  // highest category among Python's or C++'s numbers, which promote by category alone
  bool wrapped = false, records = false;
  Mask wrappers = 0;  // arguments that are wrappers of this level
  for (uint8_t i : op.tensor_args()) {
    if (!stack[i].isTensor()) continue;
    const Tensor& t = stack[i].toTensor();
    if (!t.defined()) continue;
    const Tensor* value = &t;
    int64_t dim = -1;
    if (Wrapper* w = as_wrapper_of(t, *this)) {
      value = &w->payload().value;
      dim = w->stored().index;
      wrappers |= Mask{1} << i;
    }
    const c10::TensorImpl* impl = value->unsafeGetTensorImpl();
    wrapped = wrapped || impl->key_set().has(kKey);
    records = records || libtorch_follows(*value);
    if (dim < 0) {
      unbatched_rank = std::max(unbatched_rank, impl->dim());
    } else {
      if (dim != 0 || (batched_rank >= 0 && batched_rank != impl->dim() - 1)) return false;
      batched_rank = impl->dim() - 1;
    }
    const auto here = c10::typeMetaToScalarType(impl->dtype());
    if (dim < 0 && impl->is_wrapped_number()) {
      number = std::max(number, category(here));
      continue;
    }
    if (type == at::ScalarType::Undefined) type = here;
    if (type != here) return false;
  }
  if (batched_rank < 0 || unbatched_rank > batched_rank || number > category(type)) return false;
  if (batched_rank == 0 && numbers_beside_a_device(op, stack, wrappers)) return false;
  for (uint8_t i : op.tensor_args())
    if (wrappers >> i & 1) stack[i] = Tensor(as_wrapper(stack[i].toTensor())->stored().value);
  {
    Below below(*this);
    if (!this->below() && !records) below.keys().skip_libtorch_autograd();
    of_all_examples(*this, op, [&] { call_below(*this, op, stack, wrapped); });
  }
  for (auto& out : stack) out = wrap(*this, Payload{std::move(out).toTensor(), {}, 0});
  return true;
}

namespace {

// What a mask picks has a shape that depends on its values. The rule asks where it is set, which a trace may know.
bool picks_by_mask(const Operator& op, const Stack& stack) {
  if (!op.handle() || !op.handle()->hasTag(at::Tag::dynamic_output_shape)) return false;
  bool found = false;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef leaf) {
    found = found || (leaf.arg > 0 && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte));
  });
  return found;
}

// A trace records the operator itself, and which dimensions are mapped; the rule runs where the image is evaluated. But
// where only LibTorch's formula differentiates the operator, which asks for single examples and how they lie in memory,
// the operators that the rule is made of are recorded: those have derivatives.
bool is_recorded_mapped(const Operator& op, const Stack& stack) {
  if (op.reads_shapes_alone || opens_under_trace(op) || !gives_only_tensors(op) || picks_by_mask(op, stack))
    return false;
  if (op.custom || op.no_derivative()) return true;
  Mask active = 0;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef leaf) {
    if (t.is_floating_point() || t.is_complex()) active |= Mask{1} << leaf.arg;
  });
  return served_vjp(op, active & ~op.inactive_args) != Served::libtorch_autograd;
}

// Whether levels below are to meet the operator's image, not what its rule is made of.
[[gnu::noinline]] bool binds_image(const Level& level, const Operator& op, const Stack& stack) {
  if (level.is_traced() && is_recorded_mapped(op, stack)) return true;
  return op.custom && derivative_may_be_wanted(level.below(), op, stack);
}

}  // namespace

void Vmap::process(const Operator& op, Stack& stack) {
  if ((op.custom || is_traced()) && binds_image(*this, op, stack)) return bind_mapped(*this, op, stack);
  evaluate(op, stack);
}

void Vmap::evaluate(const Operator& op, Stack& stack) {
  if (op.custom && !op.vmap && run_implementation(*this, op, stack)) return;
  if (op.vmap_is_pointwise && !op.random() && process_aligned(op, stack)) return;
  VmapFrame frame{op, stack, batch_size_, *this, {}, {}, {}};
  frame.in_dims.assign(op.num_args(), VmapFrame::kUnbatched);
  bool any_batched = false, records = false;
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef ref) -> const Tensor& {
    Wrapper* w = as_wrapper_of(t, *this);
    int64_t dim = VmapFrame::kUnbatched;
    const Tensor* value = &t;
    if (w) {
      const Payload& p = w->payload();
      dim = p.index;
      value = &p.value;
    }
    if (op.kind(ref.arg) == ArgKind::tensor) {
      frame.in_dims[ref.arg] = dim;
    } else {
      if (frame.list_dims.empty()) frame.list_dims.resize(op.num_args());
      auto& dims = frame.list_dims[ref.arg];
      dims.resize(std::max<size_t>(dims.size(), ref.element + 1), VmapFrame::kUnbatched);
      dims[ref.element] = dim;
    }
    any_batched = any_batched || dim >= 0;
    records = records || libtorch_follows(*value);
    return *value;
  });
  if (!frame.list_dims.empty())
    for (uint8_t i : op.tensor_args())
      if (stack[i].isList()) frame.list_dims[i].resize(stack[i].toListRef().size(), VmapFrame::kUnbatched);

  Below below(*this);
  if (!this->below() && !records) below.keys().skip_libtorch_autograd();

  if (op.random()) {
    run_random(*this, op, frame);
  } else if (!any_batched) {
    if (op.foreign()) run_foreign_once(*this, frame);
    else bind_call(op, stack);
    replace_outputs(stack, [&](Tensor&& t, size_t) { return wrap_constant(*this, std::move(t)); });
    return;
  } else if (op.vmap) {
    of_all_examples(*this, op, [&] { op.vmap(frame); });
  } else if (op.pointwise_tag()) {
    of_all_examples(*this, op, [&] { rules::vmap_pointwise(frame); });
  } else if (op.foreign()) {
    run_foreign_loop(*this, frame);
  } else {
    run_loop(*this, frame, true);
  }
  replace_outputs(stack, [&](Tensor&& t, size_t leaf) {
    const int64_t dim = leaf < frame.out_dims.size() ? frame.out_dims[leaf] : 0;
    return wrap(*this, Payload{std::move(t), {}, dim});
  });
}

}  // namespace tower
