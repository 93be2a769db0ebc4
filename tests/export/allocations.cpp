#include "export/allocations.h"

#include <cstdlib>
#include <new>

#ifdef __SANITIZE_ADDRESS__

int64_t support::allocations_of_thread() { return -1; }

#else

namespace {
thread_local int64_t allocations = 0;
}

int64_t support::allocations_of_thread() { return allocations; }

// The other forms call these.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

#endif
