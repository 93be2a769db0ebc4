#include "core/reuse.h"

#include <ATen/ops/clone.h>

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

}  // namespace

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
  constexpr c10::DispatchKeySet kSpecial = c10::DispatchKeySet(kKey) | c10::DispatchKeySet(c10::DispatchKey::Python);
  if (!t.defined() || t.key_set().has_any(kSpecial) || t.layout() != at::kStrided || !t.has_storage() ||
      t.is_inference() || t.is_conj() || t.is_neg() || !t.is_non_overlapping_and_dense() || libtorch_follows(t))
    return {};
  return is_seen(t) ? t.clone() : t;
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
