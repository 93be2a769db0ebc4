// The memory of temporaries. What transforms allocate in passing comes and goes many times in a call. LibTorch gets
// every larger block from the system and gives it back at once, so each is made of fresh pages, which costs more than
// many an operator does; small ones, which have to be aligned, cost malloc much of the time that an operator on few
// numbers takes. While a transform runs, Tower takes blocks from a cache of the thread and puts them back there.
//
// There is nothing to do for it. Tensors that a transform returns are ordinary ones; code outside of transforms has
// LibTorch's allocator. A thread's cache holds no more than twice what its recent calls had in use at once, and no more
// than the limit; what some calls did not use is given back. All is given back when the thread ends, when no transform
// has used it for a second (as soon as a transform ends or a large tensor is made), and when an allocation fails.
//
// The cache stays out of the way where the process has an allocator of its own, where blocks are not those of malloc,
// and, until a limit is set, under sanitizers, which have to see each block freed.
#pragma once

#include <cstddef>

namespace tower {

/// The limit until another is set: 256 MiB.
inline constexpr std::size_t kDefaultMemoryLimit = std::size_t{256} << 20;

/// Sets how many bytes the cache of one thread may hold, `bytes_per_thread`, for all threads. What is held beyond is
/// given back. 0: no cache; blocks are LibTorch's.
void set_memory_limit(std::size_t bytes_per_thread);
/// How many bytes the cache of one thread may hold.
std::size_t memory_limit();

/// Bytes that the caches of all threads hold: memory that no tensor uses.
std::size_t memory_cached();

/// Gives back what the caches of all threads hold, and returns how many bytes that were.
std::size_t release_memory();

}  // namespace tower
