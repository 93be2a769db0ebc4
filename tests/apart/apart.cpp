// A call: Loan (what a kernel of the CPU gets for tensors of the device, and what becomes of its results), run_on_cpu
// (the fallback). Below: memory, generators, the guard, hooks, registration.
#include "apart/apart.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apart/asserts.h"
#include "apart/casts.h"
#include "apart/pinned.h"
#include "apart/streams.h"
#include "apart/values.h"

namespace apart {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr auto kKey = c10::DispatchKey::PrivateUse1;

// ---- memory --------------------------------------------------------------------------------------------------------

// Set in every address of the device. No processor lets a program have such an address.
constexpr uintptr_t kFar = uintptr_t{1} << 55;

void* far_from(void* p) { return p ? reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(p) | kFar) : nullptr; }
void* near_to(const void* p) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(p) & ~kFar); }

thread_local c10::DeviceIndex current = 0;

c10::Device with_index(c10::Device device) { return {kType, device.has_index() ? device.index() : current}; }

// Memory that belongs to a storage of the CPU.
c10::DataPtr far_memory_of(const c10::Storage& storage, c10::Device device) {
  const auto give_back = [](void* p) {
    const std::unique_ptr<c10::Storage> owner(static_cast<c10::Storage*>(p));
    given_back(far_from(owner->mutable_data()));
  };
  void* memory = far_from(storage.mutable_data());
  made(memory, device.index());
  return {memory, new c10::Storage(storage), give_back, device};
}

struct FarAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = c10::alloc_cpu(bytes);
    made(far_from(memory), current);
    const auto give_back = [](void* p) {
      given_back(far_from(p));
      c10::free_cpu(p);
    };
    return {far_from(memory), memory, give_back, {kType, current}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(near_to(to), near_to(from), bytes);
  }
};

FarAllocator& allocator() {
  static FarAllocator instance;
  return instance;
}

// ---- generators ----------------------------------------------------------------------------------------------------

struct FarGenerator final : at::CPUGeneratorImpl {
  explicit FarGenerator(c10::DeviceIndex index) {
    device_ = {kType, index};
    key_set_ = c10::DispatchKeySet(kKey);
  }
};

at::Generator& default_generator(c10::DeviceIndex index) {
  static std::array<at::Generator, kDevices> all{at::make_generator<FarGenerator>(0),
                                                 at::make_generator<FarGenerator>(1)};
  return all.at(static_cast<size_t>(index < 0 ? current : index));
}

// The CPU's default generator draws what `generator` would draw.
class DrawingFrom {
 public:
  explicit DrawingFrom(at::Generator generator)
      : far_(std::move(generator)), near_(at::detail::getDefaultCPUGenerator()), before_(near_.get_state()) {
    near_.set_state(far_.get_state());
  }
  ~DrawingFrom() {
    far_.set_state(near_.get_state());
    near_.set_state(before_);
  }
  DrawingFrom(const DrawingFrom&) = delete;
  DrawingFrom& operator=(const DrawingFrom&) = delete;

 private:
  at::Generator far_, near_;
  Tensor before_;
};

// ---- one call ------------------------------------------------------------------------------------------------------

bool is_far(const Tensor& t) { return t.defined() && t.device().type() == kType; }

Tensor tensor_like(const Tensor& t, c10::Storage storage, c10::DispatchKey key) {
  c10::DispatchKeySet keys(key);
  if (t._is_zerotensor()) keys = keys.add(c10::DispatchKey::ZeroTensor);
  Tensor result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, t.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  result._set_conj(t.is_conj());
  result._set_neg(t.is_neg());
  return result;
}

enum class Use : uint8_t { none, reads, writes };

// A view's argument is shown, not read.
Use use_of(const c10::Argument& argument) {
  if (argument.alias_info() == nullptr) return Use::reads;
  return argument.alias_info()->isWrite() ? Use::writes : Use::none;
}

class Loan {
 public:
  // What a kernel of the CPU may have for this value.
  IValue lend(const IValue& v, Use use) {
    if (v.isDevice() && v.toDevice().type() == kType) {
      device_ = with_index(v.toDevice());
      return c10::Device(c10::kCPU);
    }
    if (v.isStorage() && v.toStorage().device_type() == kType) return lend(v.toStorage(), Use::none);
    if (v.isGenerator() && v.toGenerator().device().type() == kType) {
      generator_ = v.toGenerator();
      return {};
    }
    return with_tensors(v, [&](const Tensor& t) { return lend(t, use); });
  }

  Tensor lend(const Tensor& t, Use use) {
    if (!is_far(t)) {
      if (t.defined() && t.device().is_cpu()) near_tensor_ |= t.dim() > 0;
      return t;
    }
    if (!device_) device_ = t.device();
    if (*device_ != t.device()) refuse(t.device());
    if (at::sparse_csr::is_sparse_compressed(t)) {
      kernels_ = c10::DispatchKey::SparseCsrCPU;
      return with_parts(t, [&](const Tensor& part) { return lend(part, use); });
    }
    const c10::Storage near_storage = lend(t.storage(), use);
    for (const auto& [far, near] : tensors_)
      if (far.is_same(t)) return near;
    tensors_.emplace_back(t, tensor_like(t, near_storage, c10::DispatchKey::CPU));
    return tensors_.back().second;
  }

  // Where a GPU would: beside its tensors, operators on elements take single numbers of the CPU.
  void check_devices(const c10::OperatorHandle& op, bool into_near) {
    if (tensors_.empty()) return;
    static const std::set<std::string> takes_positions{"aten::index", "aten::index_put", "aten::index_put_",
                                                       "aten::_index_put_impl_", "aten::_unsafe_index"};
    if (near_tensor_ && (into_near || takes_positions.count(op.operator_name().name) == 0)) refuse(c10::kCPU);
  }

  // The kernel's place on the current stream.
  void queue_up(const std::string& kernel) const {
    c10::SmallVector<Used, 8> used;
    for (const auto& [far, near, use] : storages_)
      if (use != Use::none) used.push_back({far.data(), use == Use::writes});
    queue(device().index(), kernel, used);
  }

  // The kernel's results, and what it did to the arguments.
  IValue take(const IValue& v) {
    return with_tensors(v, [this](const Tensor& t) { return take(t); });
  }

  void settle() {
    for (auto& [far, near, use] : storages_) {
      if (near.data() == near_to(far.data())) continue;
      far.set_data_ptr_noswap(far_memory_of(near, far.device()));
      far.set_nbytes(near.nbytes());
    }
    for (auto& [far, near] : tensors_) {
      if (!far.storage().is_alias_of(take(near.storage())))
        far.unsafeGetTensorImpl()->set_storage_keep_dtype(take(near.storage()));
      if (far.sizes() != near.sizes() || far.strides() != near.strides() ||
          far.storage_offset() != near.storage_offset())
        far.unsafeGetTensorImpl()->set_sizes_and_strides(near.sizes(), near.strides(), near.storage_offset());
      far._set_conj(near.is_conj());
      far._set_neg(near.is_neg());
    }
  }

  c10::DispatchKey kernels() const { return kernels_; }
  c10::Device device() const { return device_.value_or(c10::Device(kType, current)); }
  const std::optional<at::Generator>& generator() const { return generator_; }

 private:
  struct Lent {
    c10::Storage far, near;
    Use use;
  };

  c10::Storage lend(const c10::Storage& far, Use use) {
    for (Lent& lent : storages_) {
      if (lent.far.unsafeGetStorageImpl() != far.unsafeGetStorageImpl()) continue;
      lent.use = std::max(lent.use, use);
      return lent.near;
    }
    c10::Storage near(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(far.nbytes()),
        c10::DataPtr(near_to(far.mutable_data()), c10::Device(c10::kCPU)), c10::GetCPUAllocator(), /*resizable=*/true));
    storages_.push_back({far, near, use});
    return near;
  }

  // A sparse matrix of others.
  template <class F>
  static Tensor with_parts(const Tensor& t, const F& other) {
    const auto* impl = at::sparse_csr::get_sparse_csr_impl(t);
    const Tensor values = other(impl->values());
    return at::_sparse_compressed_tensor_unsafe(other(impl->compressed_indices()), other(impl->plain_indices()), values,
                                                t.sizes(), values.options().layout(t.layout()));
  }

  Tensor take(const Tensor& t) {
    if (!t.defined() || !t.device().is_cpu()) return t;
    if (at::sparse_csr::is_sparse_compressed(t))
      return with_parts(t, [this](const Tensor& part) { return take(part); });
    if (!t.has_storage()) return t;
    for (const auto& [far, near] : tensors_)
      if (near.is_same(t)) return far;
    return tensor_like(t, take(t.storage()), kKey);
  }

  c10::Storage take(const c10::Storage& near) {
    for (const auto& [far, known, use] : storages_)
      if (known.unsafeGetStorageImpl() == near.unsafeGetStorageImpl()) return far;
    c10::Storage far(
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(near.nbytes()),
                                              far_memory_of(near, device()), &allocator(), /*resizable=*/true));
    storages_.push_back({far, near, Use::none});
    return far;
  }

  [[noreturn]] void refuse(c10::Device other) const {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", *device_,
                " and ", other, "!");
  }

  std::vector<std::pair<Tensor, Tensor>> tensors_;  // of the device, and what stands in for it
  std::vector<Lent> storages_;
  c10::DispatchKey kernels_ = c10::DispatchKey::CPU;
  std::optional<c10::Device> device_;
  std::optional<at::Generator> generator_;
  bool near_tensor_ = false;
};

std::atomic<long> made_to_wait{0};
void make_wait(c10::DeviceIndex device) {
  ++made_to_wait;
  wait(device);
}

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  check_alive();
  const size_t count = op.schema().arguments().size(), first = stack->size() - count;
  const bool into_near = count > 0 && (*stack)[first].isTensor() && !is_far((*stack)[first].toTensor());
  Loan loan;
  for (size_t i = first; i < stack->size(); ++i)
    (*stack)[i] = loan.lend((*stack)[i], use_of(op.schema().arguments()[i - first]));
  loan.check_devices(op, into_near);
  loan.queue_up(op.operator_name().name);
  {
    // Of an operator that is not LibTorch's nobody knows whether it draws.
    std::optional<DrawingFrom> draws;
    if (op.hasTag(at::Tag::nondeterministic_seeded) || op.operator_name().getNamespace() != "aten")
      draws.emplace(loan.generator().value_or(default_generator(loan.device().index())));
    const Stack lent(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    try {
      op.redispatchBoxed(c10::DispatchKeySet(loan.kernels()), stack);
    } catch (const c10::Error&) {
      after_refusal(op, lent);
      throw;
    }
  }
  if (op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape))
    make_wait(loan.device().index());
  loan.settle();
  for (size_t i = first; i < stack->size(); ++i) (*stack)[i] = loan.take((*stack)[i]);
}

// Until a copy has come, its target shows that it has not.
void copy_late(c10::DeviceIndex device, const Tensor& from, const Tensor& to) {
  to.fill_(to.is_floating_point() || to.is_complex() ? std::numeric_limits<double>::quiet_NaN() : -1);
  later(device, [from = from.clone(), to] {
    const at::AutoDispatchBelowAutograd guard;
    to.copy_(from);
  });
}

// Between the devices.
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  check_alive();
  Loan source, target;
  const Tensor near_from = source.lend(from, Use::reads), near_to = target.lend(to, Use::writes);
  const bool between = is_far(from) && is_far(to) && from.device() != to.device();
  if (between) meet(from.device().index(), to.device().index());
  if (is_far(from)) source.queue_up("copy");
  if (is_far(to)) target.queue_up("copy");
  const bool late = non_blocking && !is_far(to) && is_pinned(to.const_data_ptr());
  if (late) copy_late(from.device().index(), near_from, near_to);
  else near_to.copy_(near_from);
  if (between) meet(from.device().index(), to.device().index());
  if (!is_far(to) && !late) make_wait(from.device().index());
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// ---- the guard, hooks, registration --------------------------------------------------------------------------------

struct Guard final : StreamsOfGuard {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.type() == kType && device.index() < kDevices, "there is no device ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<FarGenerator>(index < 0 ? current : index);
  }
  at::Device getDeviceFromPtr(void*) const override { return {kType, current}; }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* memory) const override { return is_pinned(memory); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr memory = allocator().allocate(bytes);
    allocator().copy_data(memory.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(bytes);
  }
};

// Where LibTorch has a kernel for the CPU, and another one for devices that it does not know, the device has the CPU's,
// as a GPU has its own. The convolutions' one asks what the device is.
bool has_own_kernel(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  if (name == "aten::convolution" || name == "aten::convolution_backward") return true;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional));
}

void register_backend() {
  c10::register_privateuse1_backend("apart");
  static Guard guard;
  c10::impl::registerDeviceGuard(kType, &guard);
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kType, &allocator());
  static torch::Library all(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  static torch::Library sparse(torch::Library::IMPL, "_", c10::DispatchKey::SparseCsrPrivateUse1, __FILE__, __LINE__);
  sparse.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  static torch::Library parts(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCsrPrivateUse1, __FILE__, __LINE__);
  for (const char* name : {"crow_indices", "col_indices", "ccol_indices", "row_indices", "values"})
    parts.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  static torch::Library casts(torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  casts.fallback(torch::CppFunction::makeFallthrough());
  register_casts();
  static torch::Library aten(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  aten.impl("record_stream", [](Tensor& t, c10::Stream stream) {
    c10::impl::getDeviceGuardImpl(kType)->recordDataPtrOnStream(t.storage().data_ptr(), stream);
  });
  aten.impl("_copy_from", &copy_from);
  aten.impl("_copy_from_and_resize", &copy_from_and_resize);
  // A copy reads what is conjugated or negated lazily as it is; LibTorch knows that of copy_ alone.
  static torch::Library conjugates(torch::Library::IMPL, "aten", c10::DispatchKey::Conjugate, __FILE__, __LINE__);
  static torch::Library negatives(torch::Library::IMPL, "aten", c10::DispatchKey::Negative, __FILE__, __LINE__);
  for (const char* name : {"_copy_from", "_copy_from_and_resize"}) {
    conjugates.impl(name, torch::CppFunction::makeFallthrough());
    negatives.impl(name, torch::CppFunction::makeFallthrough());
  }
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && name.getNamespace() == "aten" && has_own_kernel(*op))
      aten.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

}  // namespace

void install() {
  static std::once_flag once;
  std::call_once(once, register_backend);
}

bool installed() { return c10::get_privateuse1_backend() == "apart"; }

long waits() { return made_to_wait; }

c10::DeviceIndex current_device() { return current; }

}  // namespace apart
