#include "frontend/autocast.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

namespace tower::frontend {
namespace {

// Autocast keeps casts of parameters for as long as it is on. A cast that is recorded on a tape, or made of an example,
// must not be found again by another transform.
class WithoutCache {
 public:
  WithoutCache() : before_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~WithoutCache() { at::autocast::set_autocast_cache_enabled(before_); }
  WithoutCache(const WithoutCache&) = delete;
  WithoutCache& operator=(const WithoutCache&) = delete;

 private:
  bool before_;
};

}  // namespace

bool run_autocast(const Operator& op, Stack& stack, c10::DispatchKeySet active) {
  if (!op.handle()) return false;
  std::optional<c10::DispatchKey> key;
  for_each_tensor(op, stack, [&](const Tensor& t, LeafRef) {
    if (key || !at::autocast::is_autocast_available(t.device().type())) return;
    const auto its = at::autocast::get_autocast_dispatch_key_from_device_type(t.device().type());
    if (active.has(its) && op.handle()->hasKernelForDispatchKey(its)) key = its;
  });
  if (!key) return false;
  WithoutCache guard;
  op.handle()->callBoxedForDispatchKey(*key, stack);
  return true;
}

AutocastDtypes dtypes_of_autocast() {
  constexpr auto& devices = at::autocast::_AUTOCAST_SUPPORTED_DEVICES;
  AutocastDtypes dtypes;
  static_assert(devices.size() <= dtypes.size());
  dtypes.fill(at::ScalarType::Undefined);
  std::transform(devices.begin(), devices.end(), dtypes.begin(), at::autocast::get_autocast_dtype);
  return dtypes;
}

namespace {

void set_autocast(const Autocast& state, bool keeps) {
  auto& keys = dispatch_keys();
  keys.set_excluded((keys.excluded() | c10::autocast_dispatch_keyset) - state.active);
  for (const auto& [device, dtype] : state.dtypes) at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::set_autocast_cache_enabled(keeps);
}

}  // namespace

Autocast autocast_here() {
  Autocast here{active_autocast(), {}, at::autocast::is_autocast_cache_enabled()};
  for (int d = 0; d < c10::COMPILE_TIME_MAX_DEVICE_TYPES; ++d) {
    const auto device = static_cast<at::DeviceType>(d);
    if (at::autocast::is_autocast_available(device))
      here.dtypes.emplace_back(device, at::autocast::get_autocast_dtype(device));
  }
  return here;
}

AutocastAs::AutocastAs(const Autocast& there) : before_(autocast_here()) { set_autocast(there, /*keeps=*/false); }
AutocastAs::~AutocastAs() { set_autocast(before_, before_.keeps); }

}  // namespace tower::frontend
