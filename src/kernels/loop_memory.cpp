#include "kernels/loop_memory.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace tower::compiler {
namespace {

constexpr int64_t kFirst = 1 << 14, kLargestThatStays = 1 << 20;  // bytes

int64_t grow(LoopMemory* of, int64_t needed) {
  const int64_t bytes = std::max({needed, 2 * of->bytes, kFirst});
  void* memory = std::realloc(of->memory, static_cast<size_t>(bytes));
  if (!memory) {
    of->failed = 1;
    return 0;
  }
  of->memory = static_cast<char*>(memory);
  of->bytes = bytes;
  return 1;
}

void release(LoopMemory& of) {
  std::free(of.memory);
  of.memory = nullptr;
  of.bytes = 0;
}

struct OfThread : std::vector<LoopMemory> {
  ~OfThread() {
    for (LoopMemory& memory : *this) release(memory);
  }
};
thread_local OfThread of_thread;

}  // namespace

LoopMemories::LoopMemories(size_t count) : count_(count) {
  while (of_thread.size() < count) of_thread.push_back({nullptr, 0, grow, 0});
}

LoopMemories::~LoopMemories() {
  for (size_t k = 0; k < count_; ++k) {
    LoopMemory& memory = of_thread[k];
    memory.failed = 0;
    if (memory.bytes > kLargestThatStays) release(memory);
  }
}

LoopMemory* LoopMemories::data() const { return of_thread.data(); }

bool LoopMemories::failed() const {
  return std::any_of(of_thread.begin(), of_thread.begin() + static_cast<std::ptrdiff_t>(count_),
                     [](const LoopMemory& memory) { return memory.failed != 0; });
}

}  // namespace tower::compiler
