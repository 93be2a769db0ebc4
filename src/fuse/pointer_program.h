// A graph as a program of kernels on memory that pointers name (kernels/by_pointers.h): what `native` runs in the
// process, and `export_c` writes.
//
//   graph of one call      → the kernels of its fusion, in order         for n = 1
//   graph for any number   → those for three numbers, of which two say how each place and size grows with the number
//     of examples            of examples, and the third is held against that
//
// All that the graph calls must be kernels that read and write memory step by step (fuse/memory_steps.h). What they
// leave for each other has places in a workspace by its lifetime, as a plan's block has (graph/plan.h), but for groups
// of examples: the places of 64 examples are the layout, which n examples need n / 64 times.
#pragma once

#include "fuse/fuse.h"
#include "graph/lanes.h"
#include "kernels/by_pointers.h"

namespace tower::compiler {

class PointerProgram {
 public:
  struct Draft;  // how it is made: program_draft.h
  struct Options {
    bool frozen = false;       // captured tensors are constants, of which kernels have the numbers
    int64_t loop_steps = -1;   // of loops that others go back through, for which the workspace has memory, unless it is
                               // known how many these can make; negative: it has none, and `run` has the thread's
    bool numbers_stay = true;  // of memories: kernels may know them. Not where captured tensors become arguments
  };
  /// With kernels of `kernels`, which need not be such as run here (kernels/code_source.h). Throws UnsupportedError,
  /// for `who`, where a call is no such kernel, and says which and why.
  PointerProgram(const Graph& graph, const std::shared_ptr<Kernels>& kernels, const char* who, const Options& options);
  PointerProgram(const LaneGraph& graph, const std::shared_ptr<Kernels>& kernels, const char* who,
                 const Options& options);
  /// Of one number of examples, as it was drafted, with the kernels that the draft has.
  explicit PointerProgram(Draft draft);
  ~PointerProgram();
  PointerProgram(const PointerProgram&) = delete;
  PointerProgram& operator=(const PointerProgram&) = delete;

  const ProgramTables& tables() const { return tables_; }

  /// A tensor that the caller gives or gets, as the trace had it.
  struct Operand {
    at::ScalarType dtype;  // Undefined: an argument that was not defined, and is not read
    std::vector<Extent> sizes, strides;
  };
  const std::vector<Operand>& arguments() const { return arguments_; }
  const std::vector<Operand>& results() const { return results_; }
  /// In the order of the tables: captured tensors and constants.
  struct Constant {
    Tensor tensor;
    bool captured;
  };
  const std::vector<Constant>& constants() const { return constants_; }
  /// Of each step; null: it copies.
  const std::vector<std::shared_ptr<const Kernel>>& kernels() const { return kernels_; }
  /// What it was made of, if that is of one number of examples: for derivatives of it.
  const Graph& graph() const { return graph_; }
  /// How many values have a place in the workspace.
  size_t made() const { return made_.size(); }

  /// Runs the tables on a workspace of the thread. Throws what a compiled function throws for what goes wrong in a
  /// lane, and ArgumentError for a number of examples that there cannot be.
  void run(int64_t n, const void* const* x, void* const* y) const;
  /// For n = 1, on memory for this call alone. `constants`: where those are now; null: where they were.
  void run_once(const void* const* x, void* const* y, const void* const* constants) const;

 private:
  void settle(Draft draft, int64_t fewest, bool any, int64_t loop_steps);

  Graph graph_;
  ProgramTables tables_{};
  std::vector<Operand> arguments_, results_;
  std::vector<Constant> constants_;
  std::vector<std::shared_ptr<const Kernel>> kernels_;
  std::vector<const void*> constant_memory_;
  std::vector<Extent> made_;
  std::vector<ProgramPlace> places_;
  std::vector<ProgramPointer> pointers_;
  std::vector<Extent> extents_;
  std::vector<ProgramStep> steps_;
};

}  // namespace tower::compiler
