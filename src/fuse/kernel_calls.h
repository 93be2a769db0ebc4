// What a pass that puts kernels into a graph notes of it: who reads its values, and for reports, which kernels there
// are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/kernel_operator.h"
#include "kernels/kernels.h"

namespace tower::compiler {

/// Which calls are worth a kernel, where there can be one.
enum class Worth : uint8_t {
  joined,  // several that compute, where it is the better way
  any,     // also one alone, and what only moves elements, where it is the better way
  all,     // there are no other calls than kernels
  outside  // the same where there is no LibTorch, which takes larger systems of equations in the process
};

/// For reports: one kernel of a graph.
struct Fused {
  std::vector<std::string> operators;  // by name, in order
  int64_t lanes;
  std::shared_ptr<const Kernel> kernel;
};

/// Who reads the values of a graph.
class Readers {
 public:
  explicit Readers(const Graph& graph);
  /// What these calls give and somebody else reads; at least one value.
  std::vector<ValueId> elsewhere(const std::vector<size_t>& calls) const;

 private:
  const Graph& graph_;
  ById<ValueId, size_t> uses_;
};

}  // namespace tower::compiler
