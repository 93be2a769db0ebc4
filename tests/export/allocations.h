// How often C++ asks for memory: this program's operator new counts.
#pragma once

#include <cstdint>

namespace support {

/// What the calling thread has asked for so far, by this program and its libraries; −1 where a sanitizer has the
/// allocator.
int64_t allocations_of_thread();

}  // namespace support
