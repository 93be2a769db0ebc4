// The most memory that tensors held at once while a function ran, above what was held before: exact, as LibTorch's
// CPU allocator reports it, and not what the process happens to have mapped.
//
//   const int64_t bytes = peak_memory([&] { gradient = f(x); });
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

class PeakMemory : public c10::MemoryReportingInfoBase {
 public:
  int64_t peak() const { return peak_; }

  bool memoryProfilingEnabled() const override { return true; }

  /// `bytes` is negative where memory is freed; of memory from before the measurement nothing is reported.
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }

 private:
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

/// What this thread allocates counts; LibTorch allocates on the calling thread, its workers only compute.
inline int64_t peak_memory(const std::function<void()>& body) {
  const auto meter = std::make_shared<PeakMemory>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  body();
  return meter->peak();
}
