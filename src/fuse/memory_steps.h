// A call of a kernel as steps on memory, for what runs it without tensors (fuse/pointer_program.h): the kernel's, and
// the copies that it needs before and afterwards.
#pragma once

#include <c10/util/strides.h>

#include <memory>
#include <utility>
#include <vector>

#include "graph/kernel_operator.h"
#include "kernels/kernels.h"

namespace tower::compiler {

/// One step of those that kernels/by_pointers.h has, with the sizes that the graph has.
struct MemoryStep {
  enum In : uint8_t { operand, result, made, own, nothing };
  /// Where an input or output is, in elements of the step.
  struct Place {
    In in;
    size_t number;
    int64_t offset = 0, stride = 0;  // of the first lane; from one lane to the next
    Sizes strides = {};              // from one to the next, by the step's dimensions
  };
  int64_t kind;
  std::shared_ptr<const Kernel> kernel;  // null: it copies
  int64_t bytes;                         // of an element that is copied
  int64_t lanes;
  Sizes sizes = {};  // of the dimensions
  std::vector<Place> inputs = {}, outputs = {};
  int64_t tasks = 0, systems = 0;  // of systems of equations, as ProgramStep has them

  /// Elements of so many bytes, of the sizes, from one place to another.
  static MemoryStep copy(int64_t bytes, Sizes sizes, Place from, Place to) {
    return {kStepOfCopies, nullptr, bytes, 1, std::move(sizes), {std::move(from)}, {std::move(to)}};
  }
};

struct MemorySteps {
  std::vector<MemoryStep> steps;
  std::vector<int64_t> made = {};  // bytes of what is only there for these steps
  std::vector<Tensor> own = {};    // constants

  size_t make(int64_t bytes) {
    made.push_back(bytes);
    return made.size() - 1;
  }
  /// A copy without gaps of what is `from` there, row by row: where that is.
  MemoryStep::Place make_copy(int64_t bytes, const Sizes& sizes, MemoryStep::Place from) {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    const auto row_by_row = c10::contiguous_strides(sizes);
    MemoryStep::Place copy{MemoryStep::made, make(count * bytes), 0, 0, Sizes(row_by_row.begin(), row_by_row.end())};
    steps.push_back(MemoryStep::copy(bytes, sizes, std::move(from), copy));
    return copy;
  }
};

/// Kernels in a graph whose calls are such steps.
class StepsInMemory {
 public:
  virtual ~StepsInMemory() = default;
  /// A call with operands that lie so, wherever that is. `kernels`: where others are from than the call has.
  virtual MemorySteps steps(c10::ArrayRef<InMemory> operands, Kernels& kernels) const = 0;
  /// Whether the kernel is one of those: its own call is no machine code.
  virtual bool is_another_kernel() const { return false; }
};

}  // namespace tower::compiler
