// Kernels as text: from what one lane computes to LLVM's IR of a loop over lanes, a vector of lanes at a time. Strict:
// no flag allows LLVM to change a result. Fast: a product and a sum may be rounded once, as one operation, and a number
// by which several are divided may be inverted once.
#pragma once

#include <string>
#include <vector>

#include "compile/expression.h"
#include "compile/llvm.h"
#include "tower/compile.h"

namespace tower::compiler {

/// What a kernel computes for each lane, and what it reads for that.
struct Region {
  struct Input {
    Type type;
    bool repeated;  // one element for all lanes; otherwise one for each, next to each other
  };
  Expressions graph;
  std::vector<Input> inputs;     // by the numbers of the graph's inputs
  std::vector<Id> outputs;       // one element for each lane, next to each other
  bool single = false;           // there is one lane only
  std::vector<bool> added = {};  // of each output: to what is in memory; none: all are written
  bool is_added(size_t output) const { return output < added.size() && added[output]; }
};

/// What went wrong in a lane: bits of the byte at `fault`.
enum Fault : uint8_t { kDividedByZero = 1, kNotEnded = 2 };

/// A kernel's text: void name(i64 begin, i64 end, ptr inputs, ptr outputs, ptr fault). It takes whole vectors of lanes
/// only, from lane `begin` to before lane `end`, and sets the bits of a Fault at `fault`: where an integer was divided
/// by zero, and where a loop that must end did not.
struct KernelText {
  Module module;
  int64_t lanes;     // in a vector
  int instructions;  // for a vector, loads and stores included
};
KernelText print_kernel(const Region& region, const std::string& name, int64_t vector_bytes, Math math);

}  // namespace tower::compiler
