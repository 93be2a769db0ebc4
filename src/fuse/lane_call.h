// A call of a kernel as what it reads and writes in memory, for what runs it without tensors (fuse/pointer_program.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/kernel_operator.h"
#include "kernels/kernel.h"

namespace tower::compiler {

struct LaneCall {
  /// An input or output: of which operand or result, and where in it the lanes are, in elements.
  struct Place {
    size_t of;
    int64_t offset, stride;
  };
  std::shared_ptr<const Kernel> kernel;
  int64_t lanes;
  std::vector<Place> inputs, outputs;
};

/// Kernels in a graph whose calls may be that.
class LaneCalls {
 public:
  virtual ~LaneCalls() = default;
  /// A call with operands that lie so, wherever that is. None where it does more than run its kernel's lanes; `why_not`
  /// is then what it needs.
  virtual std::optional<LaneCall> lane_call(c10::ArrayRef<InMemory> operands, std::string& why_not) const = 0;
};

}  // namespace tower::compiler
