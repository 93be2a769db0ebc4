#include "apart/pinned.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cstring>
#include <map>
#include <mutex>

namespace apart {
namespace {

// The ends of pieces of pinned memory, by where they begin. Lives to the end.
struct Pieces {
  std::mutex mutex;
  std::map<const char*, const char*> ends;
};
Pieces& pieces() {
  static Pieces& all = *new Pieces;
  return all;
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* memory = static_cast<char*>(c10::alloc_cpu(bytes));
    if (memory != nullptr) {
      const std::lock_guard lock(pieces().mutex);
      pieces().ends[memory] = memory + bytes;
    }
    const auto give_back = [](void* p) {
      {
        const std::lock_guard lock(pieces().mutex);
        pieces().ends.erase(static_cast<const char*>(p));
      }
      c10::free_cpu(p);
    };
    return {memory, memory, give_back, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

c10::Allocator& pinned_allocator() {
  static PinnedAllocator instance;
  return instance;
}

bool is_pinned(const void* memory) {
  const auto* place = static_cast<const char*>(memory);
  const std::lock_guard lock(pieces().mutex);
  const auto after = pieces().ends.upper_bound(place);
  return after != pieces().ends.begin() && place < std::prev(after)->second;
}

}  // namespace apart
