// Memory of the CPU that a device copies to and from while the program goes on. What is copied to it comes late: when
// the program waits for the stream (streams.h), and until then it holds no values.
#pragma once

#include <c10/core/Allocator.h>

namespace apart {

c10::Allocator& pinned_allocator();
bool is_pinned(const void* memory);

}  // namespace apart
