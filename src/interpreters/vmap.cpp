// A call under vmap: take the values and their batch dimensions out of the wrappers, let the operator's rule run on
// them one level down, wrap what comes out. Operators tagged pointwise need no rule of their own, the rest is looped
// over with a warning.
#include "interpreters/vmap.h"

#include "core/bind.h"
#include "rules/families.h"
#include "tower/errors.h"

namespace tower {

void Vmap::process(const Operator& op, Stack& stack) {
  VmapFrame frame{op, stack, batch_size_, *this, {}, {}, {}};
  frame.in_dims.assign(op.num_args(), VmapFrame::kUnbatched);
  bool any_batched = false, records = false;
  replace_tensors(op, stack, [&](const Tensor& t, LeafRef ref) {
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
    records = records || value->unsafeGetTensorImpl()->requires_grad();
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
    bind_call(op, stack);
    replace_outputs(stack, [&](const Tensor& t, size_t) { return wrap_constant(*this, t); });
    return;
  } else if (op.vmap) {
    op.vmap(frame);
  } else if (op.pointwise_tag()) {
    rules::vmap_pointwise(frame);
  } else {
    run_loop(*this, frame, true);
  }
  replace_outputs(stack, [&](const Tensor& t, size_t leaf) {
    const int64_t dim = leaf < frame.out_dims.size() ? frame.out_dims[leaf] : 0;
    return wrap(*this, Payload{t, {}, dim});
  });
}

}  // namespace tower
