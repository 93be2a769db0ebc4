// Memory of the loops in a kernel that others go back through: NOTE [Kept in memory] in
// kernels/print_loops_backwards.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tower::compiler {

/// Kernels know where its members are.
struct LoopMemory {
  char* memory;
  int64_t bytes;
  /// Makes at least so many bytes of it; what it holds stays. Zero if there is no memory.
  int64_t (*grow)(LoopMemory*, int64_t);
  bool failed;
};

/// The calling thread's, `count` of them, for one call of a kernel at a time. What is large is freed after that.
class LoopMemories {
 public:
  explicit LoopMemories(size_t count);
  ~LoopMemories();
  LoopMemories(const LoopMemories&) = delete;
  LoopMemories& operator=(const LoopMemories&) = delete;

  LoopMemory* operator[](size_t k) const;
  /// Whether one of them could not grow.
  bool failed() const;

 private:
  size_t count_;
};

}  // namespace tower::compiler
