#include "core/reuse.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clone.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "core/bind.h"
#include "core/wrapper.h"

namespace tower {

constinit thread_local const Reuse* Reuse::current_ = nullptr;

namespace {

// References to a storage that a payload and what lies below it have, of tensors and wrappers nobody else holds.
// `held`: a tensor to which the stack has one reference besides.
size_t references(const Payload& payload, const c10::StorageImpl* storage, const Tensor& held) {
  size_t found = 0;
  for (const Tensor* t : {&payload.value, &payload.tangent}) {
    if (!t->defined()) continue;
    const bool is_held = t->is_same(held);
    if (t->use_count() != 1 + static_cast<size_t>(is_held)) continue;
    // A constant shows its value's storage.
    found += !is_held && t->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == storage;
    if (Wrapper* w = as_wrapper(*t)) found += references(w->stored(), storage, held);
  }
  return found;
}

bool holds(const Payload& payload, const Tensor& held) {
  for (const Tensor* t : {&payload.value, &payload.tangent}) {
    if (!t->defined()) continue;
    if (t->is_same(held)) return true;
    Wrapper* w = as_wrapper(*t);
    if (w && t->use_count() == 1 && holds(w->stored(), held)) return true;
  }
  return false;
}

constexpr c10::DispatchKeySet kSpecial =
    c10::DispatchKeySet(kKey) | c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
                                                     c10::DispatchKey::FuncTorchGradWrapper});

// Of a kind that is written to: what an operator makes of plain tensors, when it makes memory.
bool is_writable(const Tensor& t) {
  return t.defined() && !t.key_set().has_any(kSpecial) && t.layout() == at::kStrided && t.has_storage() &&
         !t.is_conj() && !t.is_neg() && t.is_non_overlapping_and_dense() && !libtorch_follows(t) &&
         (!t.is_inference() || c10::InferenceMode::is_enabled());
}

// Whether a pointwise operator of `into` and `other` gives what `into` is: its shape, its type, its order in memory.
bool gives_same(const Tensor& into, const Tensor& other) {
  if (other.key_set().has_any(kSpecial) || libtorch_follows(other) || other.layout() != at::kStrided ||
      other.scalar_type() != into.scalar_type() || other.device() != into.device())
    return false;
  if (!other.sizes().equals(into.sizes())) return at::is_expandable_to(other.sizes(), into.sizes());
  return other.strides().equals(into.strides()) || !other.is_non_overlapping_and_dense();
}

bool is_inexact(const Tensor& t) { return t.is_floating_point() || t.is_complex(); }

}  // namespace

bool is_plain(const Tensor& t) { return !t.key_set().has(kKey) && !libtorch_follows(t); }

bool is_own(const Tensor& t) {
  return t.use_count() == 1 && is_writable(t) && t.storage().resizable() && t.storage().use_count() == 1;
}

bool may_hold_result(const Tensor& into, const Tensor& other) {
  return is_own(into) && is_inexact(into) && gives_same(into, other);
}

// Whether anybody but the stack, and the tensor to be replaced, has a reference. The storage of external memory cannot
// be resized: others may see that without one.
bool Reuse::is_seen(const Tensor& t) {
  const Wrapper* replaced = current_->replaced_;
  const bool kept = replaced && holds(replaced->stored(), t);
  if (!t.storage().resizable() || t.use_count() != 1 + static_cast<size_t>(kept)) return true;
  const size_t others = replaced ? references(replaced->stored(), t.storage().unsafeGetStorageImpl(), t) : 0;
  return t.storage().use_count() != 1 + others;
}

Tensor Reuse::to_overwrite(const Stack& stack) {
  if (!active() || !stack[0].isTensor()) return {};
  const Tensor& t = stack[0].toTensor();
  if (!is_writable(t)) return {};
  return is_seen(t) ? t.clone() : t;
}

const Tensor* Reuse::to_write_result(const Stack& stack) {
  if (!active()) return nullptr;
  for (const IValue& candidate : stack) {
    if (candidate.isComplexDouble()) return nullptr;
    if (!candidate.isTensor()) continue;
    const Tensor& into = candidate.toTensor();
    if (!is_writable(into) || !is_inexact(into) || is_seen(into)) continue;
    const auto fits = [&](const IValue& v) {
      return !v.isTensor() || v.toTensor().is_same(into) || gives_same(into, v.toTensor());
    };
    if (std::ranges::all_of(stack, fits)) return &into;
  }
  return nullptr;
}

Tensor call_overwriting(const Operator& op, Stack&& stack) {
  const Reuse reuse;
  bind_call(op, stack);
  return std::move(stack[0]).toTensor();
}

Tensor add_overwriting(Tensor&& a, Tensor&& b) {
  static const Operator& add = *Operator::find("aten::add", "Tensor");
  if (as_wrapper(a) || as_wrapper(b)) {
    Stack call;
    call.reserve(3);
    call.emplace_back(std::move(a));
    call.emplace_back(std::move(b));
    call.emplace_back(1);
    return call_overwriting(add, std::move(call));
  }
  if (may_hold_result(a, b)) return a.add_(b);
  if (may_hold_result(b, a)) return b.add_(a);
  return at::add(a, b);
}

const Operator* scatter_of(const Operator& view) {
  static const std::pair<const Operator*, const Operator*> known[] = {
      {Operator::find("aten::select", "int"), Operator::find("aten::select_scatter", "")},
      {Operator::find("aten::slice", "Tensor"), Operator::find("aten::slice_scatter", "")},
      {Operator::find("aten::diagonal", ""), Operator::find("aten::diagonal_scatter", "")}};
  for (const auto& [op, scatter] : known)
    if (op == &view) return scatter;
  return nullptr;
}

bool replaces_part(const Operator& op) {
  static const Operator* known[] = {Operator::find("aten::index_put", ""),
                                    Operator::find("aten::_unsafe_index_put", ""),
                                    Operator::find("aten::_index_put_impl", "")};
  return &op == known[0] || &op == known[1] || &op == known[2];
}

Stack call_on_part(Tensor base, c10::ArrayRef<IValue> view_args) {
  Stack stack(view_args.begin(), view_args.end());
  stack[0] = std::move(base);
  return stack;
}

Stack call_on_part(Tensor base, Tensor part, c10::ArrayRef<IValue> view_args) {
  Stack stack;
  stack.reserve(view_args.size() + 1);
  stack.emplace_back(std::move(base));
  stack.emplace_back(std::move(part));
  stack.insert(stack.end(), view_args.begin() + 1, view_args.end());
  return stack;
}

}  // namespace tower
