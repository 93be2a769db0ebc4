// A plan that runs fused where nobody looks on: on plain CPU tensors that no transform and no autograd follows, from
// its second run on. Everywhere else, and where there is no LLVM, it runs operator by operator.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "compile/fuse.h"
#include "compile/plan.h"

namespace tower::compiler {

class FusedPlan {
 public:
  /// `kernels` are shared with other plans of the same function.
  FusedPlan(Graph graph, std::shared_ptr<Kernels> kernels);

  bool fits() const { return plain_.fits(); }
  dynamic::Tensors run(const dynamic::Tensors& args) const;
  /// What is fused: a line for each kernel. Compiles it if that has not been done.
  std::string report() const;

 private:
  struct Fast {
    Plan plan;
    std::vector<Fused> kernels;
    std::string report;
  };
  const Fast* fast() const;

  Plan plain_;
  std::vector<Tensor> held_;  // what the graph holds: captured tensors and constants
  std::shared_ptr<Kernels> kernels_;
  mutable std::once_flag once_;
  mutable std::optional<Fast> fast_;
};

}  // namespace tower::compiler
