// A fused graph that is kernels alone, as one function of memory: what a plan does between them, a tensor for each
// value, lists of where operands are, sizes compared, is settled beforehand (fuse/pointer_program.h). A call makes
// tensors of the results, and no others.
//
//   const auto whole = OneFunction::of(fused.graph, kernels);
//   if (whole)
//     if (auto results = whole->run(args)) …   // else the plan runs
//
// NOTE [Small graphs]
// Of small tensors what lies between kernels costs more than what they compute: LibTorch's call of `cat` on two vectors
// of four is some hundred times a kernel that moves eight numbers. So in a graph all of whose values are small each
// call is worth a kernel, also one alone or what only moves elements (Worth::any), and where no other calls are left
// they run as one function.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fuse/pointer_program.h"
#include "tower/dynamic.h"

namespace tower::compiler {

/// NOTE [Small graphs]: whether the graph is one.
bool is_small_graph(const Graph& graph);

class OneFunction {
 public:
  /// Null where a call is no kernel that is there, or where results share memory with each other or with what they are
  /// computed from.
  static std::unique_ptr<const OneFunction> of(const Graph& fused, const std::shared_ptr<Kernels>& kernels);

  /// On the calling thread. None where an argument or a captured tensor lies otherwise than in the graph, and where a
  /// kernel has work for several threads, if there are any. Throws what kernels throw.
  std::optional<dynamic::Tensors> run(const dynamic::Tensors& args) const;

 private:
  // What is returned without being computed, or what of that which is.
  struct Source {
    enum From : uint8_t { computed, argument, held } from;
    size_t number;  // of the program's results, of the arguments, or of a value
  };
  // How a tensor is allocated.
  struct Made {
    Sizes sizes, strides;
    at::ScalarType dtype;
  };
  OneFunction(Graph computed, std::vector<Source> sources, const std::shared_ptr<Kernels>& kernels);
  bool lies_as_traced() const;

  Graph graph_;  // of its results those that are computed
  std::vector<Source> sources_;
  std::unique_ptr<const PointerProgram> program_;
  std::vector<Made> made_;
  std::vector<ValueId> captured_;
  bool is_for_threads_ = false, all_computed_ = true;
};

}  // namespace tower::compiler
