// Kernels over one row of elements, any part of which can be computed by itself: which elements a lane reads.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "graph/kernel_operator.h"
#include "kernels/kernel.h"

namespace tower::compiler {

/// How far from its own place in a row a lane reads an operand: places that are `first` to `last` further on.
struct Reach {
  int64_t first = 0, last = 0;
};

struct RowReach {
  struct Read {
    size_t operand;
    bool shared;  // one element for all lanes
    Reach reach;
  };
  std::shared_ptr<const Kernel> kernel;
  int64_t lanes;
  std::vector<Read> reads;  // for each input of the kernel
};

/// Kernels in a graph that may be such.
class ReachingKernel {
 public:
  virtual ~ReachingKernel() = default;
  /// A call with operands of these sizes that lie row by row, whose results lie row by row and have an element for each
  /// lane. None where it is more than that, or reads elements whose places do not follow from those of the lanes.
  virtual std::optional<RowReach> reach(c10::ArrayRef<InMemory> operands) const = 0;
};

}  // namespace tower::compiler
