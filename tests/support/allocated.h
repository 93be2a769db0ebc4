// What a piece of code allocates.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <functional>
#include <memory>

namespace support {

/// The bytes of all tensors that `body` makes on this thread.
inline int64_t allocated_by(const std::function<void()>& body) {
  struct Meter : c10::MemoryReportingInfoBase {
    int64_t bytes = 0;
    bool memoryProfilingEnabled() const override { return true; }
    void reportMemoryUsage(void*, int64_t change, size_t, size_t, c10::Device) override {
      bytes += std::max<int64_t>(change, 0);
    }
  };
  const auto meter = std::make_shared<Meter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  body();
  return meter->bytes;
}

}  // namespace support
