// Where transforms begin and end, for the allocator of temporaries (memory.cpp).
#pragma once

#include <cstdint>

namespace tower::memory {

class Cache;

struct ThreadMemory {
  uint32_t calls = 0;  // public functions of Tower that this thread is in
  bool ended = false;  // the thread's cache is gone for good
  Cache* cache = nullptr;
};
extern constinit thread_local ThreadMemory thread_memory __attribute__((tls_model("initial-exec")));

void begin_outermost();
void end_outermost();

/// Lives as long as the call of a transform, or of a pullback: what is allocated meanwhile is taken for temporary.
class InTransform {
 public:
  InTransform() {
    if (thread_memory.calls++ == 0) begin_outermost();
  }
  ~InTransform() {
    if (--thread_memory.calls == 0) end_outermost();
  }
  InTransform(const InTransform&) = delete;
  InTransform& operator=(const InTransform&) = delete;
};

}  // namespace tower::memory
