#include "core/operator.h"

#include <ATen/Functions.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <sstream>
#include <unordered_map>

#include "core/bind.h"
#include "core/broadcast.h"
#include "core/reuse.h"
#include "tower/errors.h"

namespace tower {

// ---- metadata and frames -------------------------------------------------------------------------------------------

std::string Meta::describe() const {
  std::ostringstream s;
  s << c10::toString(dtype) << " " << at::IntArrayRef(sizes);
  return s.str();
}

std::string describe(const Tensor& t) { return t.defined() ? Meta(t).describe() : "undefined"; }

namespace {

// A tape keeps the length of a list whose tensors it does not keep.
size_t leaves_in(const IValue& v) {
  return v.isList() ? v.toListRef().size() : v.isInt() ? static_cast<size_t>(v.toInt()) : 1;
}

// Position of the first leaf of `arg` among the flattened tensors of a call.
size_t first_leaf(const Operator& op, c10::ArrayRef<IValue> args, size_t arg) {
  size_t at = 0;
  for (uint8_t i : op.tensor_args()) {
    if (i == arg) break;
    at += leaves_in(args[i]);
  }
  return at;
}

}  // namespace

size_t count_leaves(const Operator& op, c10::ArrayRef<IValue> args) {
  size_t n = 0;
  for (uint8_t i : op.tensor_args()) n += leaves_in(args[i]);
  return n;
}

size_t leaf_number(const Operator& op, c10::ArrayRef<IValue> args, LeafRef leaf) {
  return first_leaf(op, args, leaf.arg) + leaf.element;
}

Meta Frame::meta(size_t arg) const {
  if (!shapes) return Meta(args[arg].toTensor());
  size_t at = 0;
  for (size_t i = 0; i < arg; ++i) at += (shapes_kept >> i & 1) ? 1 : 0;
  return (*shapes)[at];
}

std::vector<Meta> Frame::metas(size_t arg) const {
  std::vector<Meta> result;
  if (!shapes) {
    for (const auto& e : args[arg].toListRef()) result.emplace_back(e.toTensor());
    return result;
  }
  // A list is always the only argument kept by shape, so all recorded shapes are its own.
  return *shapes;
}

inline void VjpFrame::put(size_t k, Tensor&& gradient) {
  const Meta& meta = *wanted_meta[k];
  if (gradient.scalar_type() != meta.dtype) {
    if (gradient.is_complex() && !c10::isComplexType(meta.dtype)) gradient = at::real(gradient);
    if (gradient.scalar_type() != meta.dtype) gradient = gradient.to(meta.dtype);
  }
  Tensor& sum = gradients[k];
  sum = sum.defined() ? add_overwriting(std::move(sum), std::move(gradient)) : std::move(gradient);
}

void VjpFrame::give(size_t arg, Tensor gradient, size_t element) {
  if (!gradient.defined()) return;
  for (size_t k = 0; k < wanted.size(); ++k) {
    if (wanted[k].arg != arg || wanted[k].element != element) continue;
    if (!gradient.sizes().equals(wanted_meta[k]->sizes))
      throw DerivativeError("vjp of " + op.name() + ": its rule gave a gradient of shape " + describe(gradient) +
                            " for argument '" + op.argument_name(arg) + "', which is " + wanted_meta[k]->describe() +
                            ". The rule is wrong: gradients have the shape of their argument.");
    return put(k, std::move(gradient));
  }
}

void VjpFrame::give_broadcast(size_t arg, Tensor gradient) {
  if (!gradient.defined()) return;
  for (size_t k = 0; k < wanted.size(); ++k) {
    if (wanted[k].arg != arg) continue;
    if (!gradient.sizes().equals(wanted_meta[k]->sizes)) gradient = summed_to(gradient, wanted_meta[k]->sizes);
    return put(k, std::move(gradient));
  }
}

const Tensor& JvpFrame::tangent(size_t arg) const { return leaves[first_leaf(op, args, arg)]; }

c10::ArrayRef<Tensor> JvpFrame::tangent_list(size_t arg) const {
  return leaves.slice(first_leaf(op, args, arg), leaves_in(args[arg]));
}

void JvpFrame::give(size_t out, Tensor t) {
  if (!t.defined()) return;
  const Meta& meta = *outs_meta[out];
  if (t.scalar_type() != meta.dtype) {
    if (t.is_complex() && !c10::isComplexType(meta.dtype)) t = at::real(t);
    if (t.scalar_type() != meta.dtype) t = t.to(meta.dtype);
  }
  if (!t.sizes().equals(meta.sizes)) t = t.expand(meta.sizes);
  Tensor& sum = tangents[out];
  sum = sum.defined() ? add_overwriting(std::move(sum), std::move(t)) : std::move(t);
}

void VmapFrame::to_front(size_t arg, bool expand_unbatched) {
  int64_t& dim = in_dims[arg];
  if (dim > 0) {
    stack[arg] = tensor(arg).movedim(dim, 0);
    dim = 0;
  } else if (dim == kUnbatched && expand_unbatched) {
    Tensor t = tensor(arg);
    Sizes sizes{batch_size};
    sizes.append(t.sizes().begin(), t.sizes().end());
    stack[arg] = t.unsqueeze(0).expand(sizes);
    dim = 0;
  }
}

std::vector<Tensor> VmapFrame::list_to_front(size_t arg) const {
  std::vector<Tensor> result;
  const auto& elements = stack[arg].toListRef();
  for (size_t e = 0; e < elements.size(); ++e) {
    if (!elements[e].isTensor() || !elements[e].toTensor().defined()) {
      result.emplace_back();
      continue;
    }
    const Tensor& t = elements[e].toTensor();
    int64_t dim = list_dims[arg][e];
    if (dim == kUnbatched) {
      Sizes sizes{batch_size};
      sizes.append(t.sizes().begin(), t.sizes().end());
      result.push_back(t.unsqueeze(0).expand(sizes));
    } else {
      result.push_back(dim == 0 ? t : t.movedim(dim, 0));
    }
  }
  return result;
}

void VmapFrame::result(Tensor t, int64_t bdim) {
  stack.clear();
  stack.emplace_back(std::move(t));
  out_dims.assign(1, bdim);
}

c10::SmallVector<Tensor, 2> flatten_outputs(c10::ArrayRef<IValue> outs) {
  c10::SmallVector<Tensor, 2> result;
  for (const auto& v : outs) {
    if (v.isTensor()) result.push_back(v.toTensor());
    else if (v.isTensorList())
      for (const auto& e : v.toListRef()) result.push_back(e.toTensor());
  }
  return result;
}

// ---- records -------------------------------------------------------------------------------------------------------

namespace {

ArgKind kind_of(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return ArgKind::tensor;
  if (type.kind() == c10::TypeKind::OptionalType) {
    ArgKind inner = kind_of(*type.castRaw<c10::OptionalType>()->getElementType());
    return inner;
  }
  if (type.kind() == c10::TypeKind::ListType) {
    const auto& element = *type.castRaw<c10::ListType>()->getElementType();
    if (element.kind() == c10::TypeKind::TensorType) return ArgKind::tensor_list;
    if (element.kind() == c10::TypeKind::OptionalType &&
        kind_of(*element.castRaw<c10::OptionalType>()->getElementType()) == ArgKind::tensor)
      return ArgKind::optional_tensor_list;
  }
  return ArgKind::other;
}

}  // namespace

struct Records {
  std::shared_mutex mutex;
  std::unordered_map<c10::OperatorHandle, std::unique_ptr<Operator>> live;
  std::vector<std::unique_ptr<Operator>> retired;
  void (*complete)(Operator&) = nullptr;
  std::optional<c10::RegistrationHandleRAII> listening;

  Operator& of(const c10::OperatorHandle& handle) {
    {
      std::shared_lock lock(mutex);
      auto it = live.find(handle);
      if (it != live.end()) return *it->second;
    }
    std::unique_lock lock(mutex);
    auto it = live.find(handle);
    if (it != live.end()) return *it->second;
    auto record = std::make_unique<Operator>(handle);
    if (complete) complete(*record);
    // A formula that came before the operator stands at its Autograd keys, and is no kernel of the operator's own.
    if (record->bridged)
      record->composite_ = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                           !handle.hasKernelForDispatchKey(c10::DispatchKey::CPU);
    return *live.emplace(handle, std::move(record)).first->second;
  }

  // The dispatcher may give the next operator the same handle.
  void retire(const c10::OperatorHandle& handle) {
    std::unique_lock lock(mutex);
    auto it = live.find(handle);
    if (it == live.end()) return;
    it->second->retire();
    retired.push_back(std::move(it->second));
    live.erase(it);
  }
};

namespace {

struct Retirement final : c10::OpRegistrationListener {
  explicit Retirement(Records& r) : records(r) {}
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& handle) override { records.retire(handle); }
  Records& records;
};

// Never destroyed: records are referenced by tapes that may outlive static destruction.
Records& registry() {
  static auto* records = [] {
    auto* made = new Records;
    made->listening.emplace(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Retirement>(*made)));
    return made;
  }();
  return *records;
}

// Most calls repeat a few operators; this spares them the lock.
struct CacheEntry {
  size_t hash = 0;
  Operator* op = nullptr;
};
constexpr size_t kCacheSize = 256;
using Cache = std::array<CacheEntry, kCacheSize>;

struct CacheOwner {
  ~CacheOwner() {
    delete static_cast<Cache*>(thread_state.operators);
    thread_state.operators = nullptr;
  }
};

// On the heap: a library that is loaded late, by Python say, finds little room left for thread-local variables.
Cache& cache() {
  if (!thread_state.operators) {
    thread_local CacheOwner owner;
    thread_state.operators = new Cache;
  }
  return *static_cast<Cache*>(thread_state.operators);
}

}  // namespace

Operator::Operator(const c10::OperatorHandle& handle) : schema_(&handle.schema()), handle_(handle) {
  name_ = c10::toString(handle.operator_name());
  read_schema();
  composite_ = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
               !handle.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
               !handle.hasKernelForDispatchKey(c10::DispatchKey::AutogradCPU);
  random_ = handle.hasTag(at::Tag::nondeterministic_seeded);
  foreign_ = handle.operator_name().getNamespace() != "aten";
  pointwise_tag_ = handle.hasTag(at::Tag::pointwise);
  inplace_view_ = handle.hasTag(at::Tag::inplace_view);
}

Operator::Operator(std::string name, c10::FunctionSchema schema)
    : name_(std::move(name)), own_schema_(std::make_unique<c10::FunctionSchema>(std::move(schema))) {
  schema_ = own_schema_.get();
  read_schema();
}

void Operator::read_schema() {
  for (const auto& arg : schema_->arguments()) {
    kinds_.push_back(kind_of(*arg.type()));
    if (kinds_.back() != ArgKind::other) {
      tensor_args_.push_back(static_cast<uint8_t>(kinds_.size() - 1));
      tensor_mask_ |= Mask{1} << tensor_args_.back();
    }
    if (arg.alias_info() && arg.alias_info()->isWrite()) mutates_ = true;
  }
  num_outs_ = schema_->returns().size();
  for (const auto& out : schema_->returns())
    if (out.alias_info() && !out.alias_info()->isWrite()) view_ = !mutates_;
}

Operator& Operator::of(const c10::OperatorHandle& handle) {
  const size_t hash = std::hash<c10::OperatorHandle>()(handle);
  CacheEntry& entry = cache()[(hash >> 4) % kCacheSize];
  if (entry.op && entry.hash == hash && *entry.op->handle() == handle && !entry.op->gone()) return *entry.op;
  Operator& found = registry().of(handle);
  entry = {hash, &found};
  return found;
}

void Operator::complete_records(void (*complete)(Operator&)) { registry().complete = complete; }

void Operator::retire() {
  // The schema is the dispatcher's, and about to go.
  own_schema_ = std::make_unique<c10::FunctionSchema>(*schema_);
  schema_ = own_schema_.get();
  gone_ = true;
}

Operator* Operator::find(const char* name, const char* overload) {
  auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  return handle ? &of(*handle) : nullptr;
}

std::vector<const Operator*> Operator::all() {
  Records& r = registry();
  std::shared_lock lock(r.mutex);
  std::vector<const Operator*> result;
  for (const auto& [handle, record] : r.live) result.push_back(record.get());
  std::sort(result.begin(), result.end(), [](auto* a, auto* b) { return a->name() < b->name(); });
  return result;
}

void Operator::call(Stack& stack) const {
  if (gone())
    throw UnsupportedError(name_ +
                           ": the operator was unregistered after a transform had recorded it. Keep its "
                           "registration for as long as it is used.");
  if (unboxed) unboxed(stack);
  else handle_->callBoxed(stack);
}

bool Operator::stand_in(Stack& stack) const {
  const auto rule = sparsity;  // which may be replaced while it runs
  if (rule) (*rule)(stack);
  return static_cast<bool>(rule);
}

bool Operator::libtorch_differentiates() const {
  return handle_ && !bridged && !gone() &&
         (handle_->hasKernelForDispatchKey(c10::DispatchKey::AutogradCPU) ||
          handle_->hasKernelForDispatchKey(c10::DispatchKey::Autograd));
}

bool Operator::has_rule(Kind kind) const {
  switch (kind) {
    case Kind::vmap:
      return static_cast<bool>(vmap);
    case Kind::vjp:
      return !vjp.empty() || no_derivative_;
    case Kind::jvp:
      return !jvp.empty() || no_derivative_;
    case Kind::trace:
      return !composite_;  // any other is recorded as it is
  }
  return false;
}

}  // namespace tower
