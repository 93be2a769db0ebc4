#include "frontend/places.h"

#include <ATen/Functions.h>
#include <ATen/TensorUtils.h>
#include <c10/core/GradMode.h>

#include "frontend/arguments.h"
#include "frontend/views.h"

namespace tower::frontend {
namespace {

using Strides = c10::SmallVector<int64_t, 5>;

// The tensor below all levels, and in `strides` how the elements of one example lie in it; null where it has no memory.
const c10::TensorImpl* memory_of(const Wrapper& w, Strides& strides) {
  c10::SmallVector<int64_t, 4> batch_dims;
  const Wrapper* here = &w;
  const c10::TensorImpl* value = nullptr;
  while (!value) {
    const Payload& payload = here->stored();
    if (here->level().kind() == Kind::vmap && payload.tracked()) batch_dims.push_back(payload.index);
    here = as_wrapper(payload.value);
    if (!here) value = payload.value.unsafeGetTensorImpl();
  }
  if (value->layout() != at::kStrided || !value->has_storage()) return nullptr;
  strides.assign(value->strides().begin(), value->strides().end());
  for (size_t k = batch_dims.size(); k-- > 0;) strides.erase(strides.begin() + batch_dims[k]);
  return value;
}

void set_place(Wrapper& w, c10::IntArrayRef strides, int64_t offset) {
  if (w.strides() != strides) w.set_sizes_and_strides(Strides(w.sizes()), strides, offset);
  else if (w.storage_offset() != offset) w.set_storage_offset(offset);
}

// What the operator makes of memory that lies as `base` shows it, where there is nothing to compute. Results that are
// no views may lie otherwise than in the plain call, so that nothing but a copy of them has the shape: then the view's
// place is its own.
void place_by_operator(Wrapper& view, const Wrapper& base, const Operator& op, const View::Args& args, size_t out) {
  if (op.foreign()) return;
  static const Operator& in_shape = *Operator::find("aten::view", "");
  if (&op == &in_shape) {
    const auto strides = at::detail::computeStride(base.sizes(), base.strides(), at::DimVector(view.sizes()));
    if (strides) set_place(view, *strides, base.storage_offset());
    return;
  }
  Stack stack(args.begin(), args.end());
  for (const IValue& value : stack)
    if (value.isTensor() && value.toTensor().defined()) return;
  int64_t end = base.storage_offset() + 1;
  for (int64_t d = 0; d < base.dim(); ++d) end += std::max<int64_t>(base.sizes()[d] - 1, 0) * base.strides()[d];
  DispatchGuard keys;
  keys.see_no_operator();
  const auto options = at::TensorOptions(at::kMeta).dtype(base.dtype());
  stack[op.tensor_args()[0]] =
      at::empty({end}, options).as_strided(base.sizes(), base.strides(), base.storage_offset());
  try {
    op.call(stack);
  } catch (const c10::Error&) {
    return;
  }
  const Tensor shown = flatten_outputs(stack)[out];
  if (shown.sizes() == view.sizes()) set_place(view, shown.strides(), shown.storage_offset());
}

}  // namespace

bool is_as_strided(const Operator& op) {
  static const Operator& as_strided = *Operator::find("aten::as_strided", "");
  return &op == &as_strided;
}

void show_place(Wrapper& view, const Wrapper& base, const Operator& op, const View::Args& args, size_t out) {
  if (!view.stored().tracked()) return;  // a constant shows the memory that it has
  Strides of_view, of_base;
  const c10::TensorImpl *memory = memory_of(view, of_view), *around = memory_of(base, of_base);
  if (!memory || !around) return;
  const bool is_part = base.strides() == c10::IntArrayRef(of_base) && view.dtype() == base.dtype() &&
                       memory->storage().is_alias_of(around->storage());
  if (is_part) set_place(view, of_view, base.storage_offset() + memory->storage_offset() - around->storage_offset());
  else place_by_operator(view, base, op, args, out);
}

void take_in_place(Wrapper& w, const Tensor& now) {
  const Strides sizes(w.sizes()), strides(w.strides());
  const int64_t offset = w.storage_offset();
  w.take(now);
  if (w.stored().tracked() && w.sizes() == c10::IntArrayRef(sizes)) set_place(w, strides, offset);
}

void copy_place(Wrapper& to, const Wrapper& from) {
  if (to.stored().tracked()) set_place(to, from.strides(), from.storage_offset());
}

Tensor memory_around(const Operator& op, const Tensor& view, const IValue& offset) {
  Wrapper* w = as_wrapper(view);
  if (!is_as_strided(op) || !w || !w->view()) return {};
  w->payload();
  // Where the memory of an argument of a compiled function starts is another matter in each call.
  if (w->level().kind() == Kind::trace && offset.isNone() && !Arguments::made_inside(w->root())) return {};
  Wrapper* base = w;
  for (const View* v = w->view().get(); v != nullptr; v = base->view().get()) {
    Wrapper& next = base_of(*v);
    const bool followed = !v->op->no_derivative() && (v->recorded || !c10::GradMode::is_enabled());
    if (!followed || next.dtype() != w->dtype() || &next.level() != &w->level()) break;
    base = &next;
  }
  return base == w ? Tensor() : Tensor(c10::intrusive_ptr<Wrapper>::reclaim_copy(base));
}

}  // namespace tower::frontend
