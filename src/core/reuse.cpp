#include "core/reuse.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clone.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/bind.h"
#include "core/wrapper.h"

namespace tower {

constinit thread_local const Reuse* Reuse::current_ = nullptr;

namespace {

// Counts the references to a storage of which it is known who has them. A tensor to which all references are known
// passes on those that it has: a wrapper to what its payload holds and to the tensor that it is a view of, a view of
// LibTorch's to the tensor that it is one of.
class Known {
 public:
  explicit Known(c10::StorageImpl* storage) : storage_(storage) {}

  void refer(const Payload& payload) {
    for (const Tensor* t : {&payload.value, &payload.tangent})
      if (t->defined()) refer(t->unsafeGetTensorImpl());
  }
  void refer(c10::TensorImpl* impl) {
    auto entry = std::find_if(tensors_.begin(), tensors_.end(), [&](const Entry& e) { return e.impl == impl; });
    if (entry == tensors_.end()) entry = tensors_.insert(tensors_.end(), Entry{impl, 0});
    if (++entry->references != c10::raw::intrusive_ptr::use_count(impl)) return;
    storages_ += impl->unsafe_storage().unsafeGetStorageImpl() == storage_;
    if (impl->key_set().has(kKey)) {
      auto& wrapper = static_cast<Wrapper&>(*impl);
      refer(wrapper.stored());
      if (wrapper.view()) refer(wrapper.view()->base.get());
    } else {
      const Tensor t(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(impl));
      if (t.is_view()) refer(t._base().unsafeGetTensorImpl());
    }
  }
  bool all() const { return c10::raw::intrusive_ptr::use_count(storage_) == storages_; }

 private:
  struct Entry {
    c10::TensorImpl* impl;
    size_t references;
  };
  c10::StorageImpl* storage_;
  size_t storages_ = 0;  // tensors that have it, of those to which all references are known
  c10::SmallVector<Entry, 8> tensors_;
};

constexpr c10::DispatchKeySet kSpecial =
    c10::DispatchKeySet(kKey) |
    c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::ZeroTensor,
                         c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper});

// Of a kind that is written to.
bool has_own_values(const Tensor& t) {
  return t.defined() && !t.key_set().has_any(kSpecial) && t.layout() == at::kStrided && t.has_storage() &&
         !t.is_conj() && !t.is_neg() && !libtorch_follows(t) && (!t.is_inference() || c10::InferenceMode::is_enabled());
}

// What an operator makes of plain tensors, when it makes memory.
bool is_writable(const Tensor& t) { return has_own_values(t) && t.is_non_overlapping_and_dense(); }

// Whether `other` leaves a pointwise operator of the two the order of `into` in memory: LibTorch takes that of the
// first operand that has strides for both of two dimensions.
bool keeps_order(const Tensor& into, const Tensor& other) {
  const int64_t lead = into.dim() - other.dim();
  for (int64_t d = 1; d < other.dim(); ++d)
    for (int64_t e = 0; e < d; ++e) {
      if (other.size(d) == 1 || other.size(e) == 1 || other.stride(d) == 0 || other.stride(e) == 0) continue;
      if (other.stride(d) == other.stride(e)) return false;
      if ((other.stride(d) < other.stride(e)) != (into.stride(lead + d) < into.stride(lead + e))) return false;
    }
  return true;
}

// Whether a pointwise operator of `into` and `other` gives what `into` is: its shape, its type, its order in memory.
bool gives_same(const Tensor& into, const Tensor& other) {
  if (other.key_set().has_any(kSpecial) || libtorch_follows(other) || other.layout() != at::kStrided ||
      other.scalar_type() != into.scalar_type() || other.device() != into.device())
    return false;
  if (other.sizes().equals(into.sizes()) && other.strides().equals(into.strides())) return true;
  return at::is_expandable_to(other.sizes(), into.sizes()) && keeps_order(into, other);
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

// Whether anybody but the stack, and the tensors to be replaced, has a reference. The storage of external memory cannot
// be resized: others may see that without one.
bool Reuse::is_seen(const Tensor& t) {
  if (!t.storage().resizable()) return true;
  if (t.use_count() == 1 && t.storage().use_count() == 1) return false;
  Known known(t.storage().unsafeGetStorageImpl());
  known.refer(t.unsafeGetTensorImpl());
  for (Wrapper* w = current_->replaced_; w != nullptr; w = w->view() ? &base_of(*w->view()) : nullptr)
    known.refer(w->stored());
  return !known.all();
}

Tensor Reuse::to_overwrite(const Stack& stack) {
  if (!active() || !stack[0].isTensor()) return {};
  const Tensor& t = stack[0].toTensor();
  if (!has_own_values(t)) return {};
  return is_writable(t) && !is_seen(t) ? t : t.clone();
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
                                    Operator::find("aten::_index_put_impl", ""),
                                    Operator::find("aten::scatter", "src"),
                                    Operator::find("aten::scatter", "value"),
                                    Operator::find("aten::scatter_add", ""),
                                    Operator::find("aten::index_add", ""),
                                    Operator::find("aten::index_copy", ""),
                                    Operator::find("aten::index_fill", "int_Scalar"),
                                    Operator::find("aten::masked_fill", "Scalar")};
  return std::find(std::begin(known), std::end(known), &op) != std::end(known);
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
