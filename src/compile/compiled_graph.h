// A graph that is run as what looks on wants it:
//
//   nobody             fused, as machine code (fuse/fused_plan.h)
//   a transform, or    parts of it as operators, whose images are compiled graphs: mapped over examples, pulled back,
//   LibTorch's autograd    pushed forward (compile/graph_operator.h). All of it is one part, unless it does what has to
//                      be seen in its order: draws random numbers, runs a user's code, writes to tensors it did not
//                      make
//   another trace      its operators, one by one
//
// What comes into this room is a function, and calls of it; what goes out is what the function would have given.
//
//   specialisations.h, compile.cpp      which graph a call is for; the function is traced where there is none
//   compiled_graph.h                    runs it
//   graph_operator.h                    what only computes, as an operator that has images under transforms
//   traced_loop.h, loop_in_kernel.cpp   a while_loop as one call of a graph, and inside of a kernel
//   saved.cpp                           the graphs of a function, and their machine code, in a file and back
//   native.cpp, export_c.cpp            a graph that is kernels alone, by pointers: in the process, and as a C library;
//   export_casadi.cpp                   with its derivatives, as CasADi calls it
//
// What always holds:
//
// - A graph is run only for calls that are equal to the one it was made for in all that it depends on: the kind of each
//   argument (TensorKind), the static arguments, the thread's modes, the shapes of captured tensors, what the function
//   found out or read. That is compared at each call; where it differs, another graph is found, derived (graph/lanes.h)
//   or traced. A function from a file cannot be traced, and has an error for that.
// - The function itself is called to be traced, and where LibTorch's forward mode follows an argument.
// - What is known of a function never changes: a call takes what there is by a pointer, and publishes a new state by
//   another one (NOTE [Nobody else's code under a lock]). Two threads may trace the same; the graph that is there first
//   stays.
// - A graph is there as long as somebody runs it, even if it was forgotten meanwhile.
// - The graphs of a function and their images under transforms share one table of kernels. (A loop that is run step by
//   step has one of its own.)
// - An image is made of the graph, where it is first asked for: the user's function is not called for it.
// - Whether there is LLVM decides what a call costs, and no more of its results than docs/compile.md says of rounding.
#pragma once

#include <memory>
#include <string>

#include "fuse/fused_plan.h"
#include "graph/trace.h"

namespace tower::compiler {

class CompiledGraph {
 public:
  /// `kernels` are shared with other graphs of the same function.
  CompiledGraph(Graph graph, std::shared_ptr<Kernels> kernels, Assumptions assumptions = {}, Reads reads = {});
  ~CompiledGraph();

  const Graph& graph() const { return plan_.graph(); }
  /// Whether the captured tensors still are of the shapes that the graph was made for.
  bool fits() const { return plan_.fits(); }
  /// Whether the graph takes more for granted than the kind of its arguments; and whether that holds for these
  /// arguments.
  bool assumes() const { return !assumptions_.empty() || reads_values(); }
  bool assumptions_hold(const dynamic::Tensors& args) const;
  /// Whether the graph is for certain values that the function read (NOTE [Values that were read]).
  bool reads_values() const { return !read_.empty(); }
  dynamic::Tensors run(const dynamic::Tensors& args) const;
  /// Makes its kernels now, and not when they are first wanted.
  void compile() const { plan_.compile(); }
  /// Its kernels and those of its images, as far as they were made.
  Report report() const;

 private:
  struct InParts;
  const InParts* in_parts() const;
  bool is_looked_at(const dynamic::Tensors& args) const;
  bool meets_originals() const;

  FusedPlan plan_;
  std::shared_ptr<Kernels> kernels_;
  Assumptions assumptions_;
  std::unique_ptr<const CompiledGraph> reading_;  // gives what was read
  std::vector<bool> read_;
  MadeOnce<std::unique_ptr<const InParts>> in_parts_;
};

}  // namespace tower::compiler
