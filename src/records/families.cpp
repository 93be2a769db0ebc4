#include "records/families.h"

#include <ATen/Functions.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/TypeProperties.h>

#include "core/bind.h"
#include "core/reuse.h"
#include "core/wrapper.h"

namespace tower::rules {

Operator& record_of(const char* name, const char* overload) {
  if (Operator* found = Operator::find(name, overload)) return *found;
  static auto* nowhere = new std::vector<std::unique_ptr<Operator>>;
  nowhere->push_back(std::make_unique<Operator>(name, c10::FunctionSchema(name, overload, {}, {})));
  return *nowhere->back();
}

Contraction contraction_of(std::string_view letters, bool adds) {
  const size_t comma = letters.find(','), arrow = letters.find("->");
  return {std::string(letters.substr(0, comma)), std::string(letters.substr(comma + 1, arrow - comma - 1)),
          std::string(letters.substr(arrow + 2)), adds};
}

// ---- batching ------------------------------------------------------------------------------------------------------

namespace {

// NOTE [Promotion follows logical rank]
// LibTorch lets tensors with dimensions outrank zero-dimensional ones in type promotion, and those outrank numbers. A
// batched value that is zero-dimensional per example has a dimension physically, so the physical rule can give another
// dtype. Where dtypes differ, the logical result type is worked out, and operands are cast to it beforehand.
void promote_logically(VmapFrame& frame) {
  bool mixed = false;
  at::ScalarType first = at::ScalarType::Undefined;
  for (uint8_t i : frame.op.tensor_args()) {
    if (!frame.is_tensor(i) || frame.tensor(i).scalar_type() == at::kBool) continue;
    const auto type = frame.tensor(i).scalar_type();
    if (first == at::ScalarType::Undefined) first = type;
    mixed = mixed || type != first;
  }
  if (!mixed) return;
  at::native::ResultTypeState logical{}, physical{};
  for (uint8_t i : frame.op.tensor_args()) {
    if (!frame.is_tensor(i) || frame.tensor(i).scalar_type() == at::kBool) continue;
    const Tensor t = frame.tensor(i);
    const Tensor scalar = at::empty({}, at::TensorOptions().dtype(t.scalar_type()));
    const Tensor vector = at::empty({1}, at::TensorOptions().dtype(t.scalar_type()));
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
      logical = at::native::update_result_type_state(t, logical);
      physical = at::native::update_result_type_state(t, physical);
      continue;
    }
    logical = at::native::update_result_type_state(frame.logical_dim(i) == 0 ? scalar : vector, logical);
    physical = at::native::update_result_type_state(t.dim() == 0 ? scalar : vector, physical);
  }
  const auto type = at::native::result_type(logical);
  if (type == at::native::result_type(physical)) return;
  for (uint8_t i : frame.op.tensor_args()) {
    if (!frame.is_tensor(i)) continue;
    const Tensor t = frame.tensor(i);
    if (t.scalar_type() != at::kBool && !t.unsafeGetTensorImpl()->is_wrapped_number()) frame.stack[i] = t.to(type);
  }
}

// LibTorch takes zero-dimensional tensors of the CPU beside tensors of a device. A batch of them has a dimension.
void move_logically(VmapFrame& frame) {
  std::optional<at::Device> device;
  for (uint8_t i : frame.op.tensor_args()) {
    if (device || !frame.is_tensor(i)) continue;
    const Tensor t = frame.tensor(i);
    // Beside meta tensors it does not always take them.
    if (!t.is_cpu() && !t.is_meta()) device = t.device();
  }
  if (!device) return;
  for (uint8_t i : frame.op.tensor_args())
    if (frame.is_tensor(i) && frame.batched(i) && frame.logical_dim(i) == 0 && frame.tensor(i).is_cpu())
      frame.stack[i] = frame.tensor(i).to(*device);
}

// Makes room between the batch dimension and the logical ones, so that ranks agree and broadcasting aligns.
Tensor pad_rank(Tensor t, int64_t missing) {
  for (int64_t k = 0; k < missing; ++k) t = t.unsqueeze(1);
  return t;
}

void align_ranks(VmapFrame& frame) {
  int64_t rank = 0;
  for (uint8_t i : frame.op.tensor_args())
    if (frame.is_tensor(i)) rank = std::max(rank, frame.logical_dim(i));
  for (uint8_t i : frame.op.tensor_args()) {
    if (!frame.is_tensor(i) || !frame.batched(i)) continue;
    frame.to_front(i, false);
    const int64_t missing = rank - frame.logical_dim(i);
    if (missing > 0) frame.stack[i] = pad_rank(frame.tensor(i), missing);
  }
}

// Shifts one dimension argument past the batch.
IValue shift(const IValue& dims, int64_t rank, EmptyDims empty) {
  if (dims.isInt()) return at::maybe_wrap_dim(dims.toInt(), rank) + 1;
  std::vector<int64_t> list;
  if (dims.isIntList()) list = dims.toIntVector();
  if (list.empty() && empty == EmptyDims::all)
    for (int64_t d = 0; d < rank; ++d) list.push_back(d);
  for (int64_t& d : list) d = at::maybe_wrap_dim(d, rank) + 1;
  return list;
}

}  // namespace

void vmap_pointwise(VmapFrame& frame) {
  // Nearly every call: batch in front already, equal ranks, one dtype. Nothing but the call is left to do.
  bool simple = true;
  int64_t batched_rank = -1, unbatched_rank = -1;
  at::ScalarType type = at::ScalarType::Undefined;
  for (uint8_t i : frame.op.tensor_args()) {
    if (!frame.stack[i].isTensor()) continue;
    const Tensor& t = frame.stack[i].toTensor();
    if (!t.defined()) continue;
    const int64_t dim = frame.in_dims[i], rank = t.dim();
    if (dim >= 0) {
      simple = simple && dim == 0 && (batched_rank < 0 || batched_rank == rank - 1);
      batched_rank = rank - 1;
    } else {
      unbatched_rank = std::max(unbatched_rank, rank);
    }
    if (type == at::ScalarType::Undefined) type = t.scalar_type();
    simple = simple && type == t.scalar_type();
  }
  if (!simple || unbatched_rank > batched_rank) {
    promote_logically(frame);
    move_logically(frame);
    align_ranks(frame);
  } else if (batched_rank == 0) {
    move_logically(frame);
  }
  frame.call();
  frame.out_dims.assign(frame.stack.size(), 0);
}

void vmap_along(VmapFrame& frame, const std::vector<uint8_t>& dims, EmptyDims empty) {
  bool scalars = false;
  int64_t rank = -1;
  for (uint8_t i : frame.op.tensor_args()) {
    if (!frame.is_tensor(i)) continue;
    frame.to_front(i, true);
    if (frame.tensor(i).dim() == 1) {
      frame.stack[i] = frame.tensor(i).unsqueeze(1);
      if (rank < 0) scalars = true;
    }
    if (rank < 0) rank = frame.tensor(i).dim() - 1;
  }
  for (uint8_t d : dims) {
    const bool all = frame.stack[d].isNone() && empty == EmptyDims::all;
    if (all || !frame.stack[d].isNone()) frame.stack[d] = shift(frame.stack[d], rank, empty);
  }
  frame.call();
  frame.out_dims.assign(frame.stack.size(), 0);
  if (scalars) replace_outputs(frame.stack, [](const Tensor& t, size_t) { return t.dim() == 2 ? t.squeeze(1) : t; });
}

void vmap_natively(VmapFrame& frame) {
  align_ranks(frame);
  frame.call();
  frame.out_dims.assign(flatten_outputs(frame.stack).size(), 0);
}

void vmap_fold(VmapFrame& frame, int64_t rank) {
  bool single = false;
  int64_t items = 0;
  for (uint8_t i : frame.op.tensor_args()) {
    if (!frame.is_tensor(i)) continue;
    frame.to_front(i, true);
    // Some kernels read indices through a raw pointer, whatever their strides: an expanded tensor would end too early.
    if (frame.tensor(i).scalar_type() == at::kLong) frame.stack[i] = frame.tensor(i).contiguous();
    const Tensor t = frame.tensor(i);
    single = t.dim() == rank;
    if (t.dim() != rank + 1) continue;
    items = t.size(1);
    frame.stack[i] = t.flatten(0, 1);
  }
  frame.call();
  replace_outputs(frame.stack, [&](const Tensor& t, size_t) {
    if (single || !t.defined()) return t;
    Sizes sizes{frame.batch_size, items};
    sizes.append(t.sizes().begin() + 1, t.sizes().end());
    return t.reshape(sizes);
  });
  frame.out_dims.assign(frame.stack.size(), 0);
}

void vmap_draw_elementwise(VmapFrame& frame) {
  for (uint8_t i : frame.op.tensor_args())
    if (frame.is_tensor(i)) frame.to_front(i, true);
  align_ranks(frame);
  frame.call();
  frame.out_dims.assign(frame.stack.size(), 0);
}

// ---- derivatives ---------------------------------------------------------------------------------------------------

Tensor conjugate(const Tensor& t) { return t.is_complex() ? t.conj() : t; }

Tensor times(const Tensor& t, Tensor&& d) {
  if (d.use_count() != 1) return at::mul(t, d);
  if (may_hold_result(d, t)) return d.mul_(t);
  if (!as_wrapper(d)) return at::mul(t, d);
  static const Operator& mul = *Operator::find("aten::mul", "Tensor");
  Stack call{t, IValue()};
  call[1] = std::move(d);
  return call_overwriting(mul, std::move(call));
}

Tensor times(const Tensor& t, const at::Scalar& d) {
  if (d.isComplex()) return at::mul(t, d);
  const double factor = d.toDouble();
  if (factor == 1.0) return t;
  // A number has to be made a tensor for the product.
  return factor == -1.0 && (t.is_floating_point() || t.is_complex()) ? at::neg(t) : at::mul(t, d);
}

Tensor times_conjugate(const Tensor& t, Tensor&& d) {
  return d.is_complex() ? at::mul(t, d.conj()) : times(t, std::move(d));
}
Tensor times_conjugate(const Tensor& t, const at::Scalar& d) { return times(t, d.conj()); }

Tensor with_reduced_dims(Tensor reduced, at::IntArrayRef dims, int64_t rank, bool keepdim) {
  if (keepdim || rank == 0) return reduced;
  std::vector<bool> gone(static_cast<size_t>(rank), dims.empty());
  for (int64_t d : dims) gone[static_cast<size_t>(at::maybe_wrap_dim(d, rank))] = true;
  for (int64_t d = 0; d < rank; ++d)
    if (gone[static_cast<size_t>(d)]) reduced = reduced.unsqueeze(d);
  return reduced;
}

void jvp_by_calling(JvpFrame& frame, Mask linear) {
  Stack stack(frame.args.begin(), frame.args.end());
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!(linear >> i & 1)) continue;
    if (frame.op.kind(i) == ArgKind::tensor) {
      const Tensor& given = frame.tangent(i);
      // What the call may overwrite must not stay behind.
      Tensor t;
      if (Reuse::active()) t = std::move(const_cast<Tensor&>(given));
      else t = given;
      if (!t.defined()) {
        const Meta meta = frame.meta(i);
        t = at::zeros(meta.sizes, meta.options());
      }
      stack[i] = std::move(t);
    } else {
      c10::List<Tensor> list;
      const auto metas = frame.metas(i);
      const auto tangents = frame.tangent_list(i);
      for (size_t e = 0; e < tangents.size(); ++e)
        list.push_back(tangents[e].defined() ? tangents[e] : at::zeros(metas[e].sizes, metas[e].options()));
      stack[i] = std::move(list);
    }
  }
  bind_call(frame.op, stack);
  auto outs = flatten_outputs(stack);
  for (size_t k = 0; k < outs.size(); ++k) frame.give(k, std::move(outs[k]));
}

}  // namespace tower::rules
