#include "frontend/autocast.h"

#include <ATen/autocast_mode.h>

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

}  // namespace tower::frontend
