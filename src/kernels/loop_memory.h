// Memory of the loops in a kernel that others go back through: NOTE [Kept in memory] in
// kernels/print_loops_backwards.cpp.
#pragma once

#include <cstddef>

#include "kernels/by_pointers.h"

namespace tower::compiler {

/// The calling thread's, `count` of them, for one call of a kernel at a time. What is large is freed after that.
class LoopMemories {
 public:
  explicit LoopMemories(size_t count);
  ~LoopMemories();
  LoopMemories(const LoopMemories&) = delete;
  LoopMemories& operator=(const LoopMemories&) = delete;

  /// The first of them; the others follow it.
  LoopMemory* data() const;
  /// Whether one of them could not grow.
  bool failed() const;

 private:
  size_t count_;
};

}  // namespace tower::compiler
