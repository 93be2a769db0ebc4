// The device that benchmarks compute on: TOWER_BENCH_DEVICE=cuda, else the CPU. Engines' benchmarks measure processors'
// work for calls and stay on the CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>

namespace bench {

inline at::Device device() {
  static const at::Device chosen = [] {
    const char* name = std::getenv("TOWER_BENCH_DEVICE");
    at::Device device(name && *name ? name : "cpu");
    if (!device.is_cpu() && !device.has_index()) device.set_index(0);
    return device;
  }();
  return chosen;
}

/// Of tensors there.
inline at::TensorOptions here(at::ScalarType type = at::kFloat) { return at::dtype(type).device(device()); }

/// Waits for what was queued there.
inline void finish() {
  if (!device().is_cpu()) c10::impl::VirtualGuardImpl(device().type()).synchronizeDevice(device().index());
}

}  // namespace bench
