// A plan that runs fused where nobody looks on: on plain CPU tensors that no transform and no autograd follows, from
// its second run on. Everywhere else, and where there is no LLVM, it runs operator by operator.
#pragma once

#include <optional>
#include <string>

#include "core/once.h"
#include "fuse/fuse.h"
#include "fuse/one_function.h"
#include "graph/plan.h"

namespace tower::compiler {

/// Whether somebody wants to see LibTorch's operators as they are called, or tensors stand for others in them.
bool listens_to_operators();

/// Whether kernels may compute with these tensors here and now: nobody looks on, and they are values in memory.
bool is_plain(const dynamic::Tensors& tensors);

class FusedPlan {
 public:
  /// `kernels` are shared with other plans of the same function.
  FusedPlan(Graph graph, std::shared_ptr<Kernels> kernels);

  bool fits() const { return plain_.fits(); }
  dynamic::Tensors run(const dynamic::Tensors& args) const {
    auto results = run_fused(args);
    return results ? std::move(*results) : plain_.run(args);
  }
  /// None where somebody looks on, or where there is nothing to fuse.
  std::optional<dynamic::Tensors> run_fused(const dynamic::Tensors& args) const;
  /// What runs operator by operator.
  const Plan& plain() const { return plain_; }
  const Graph& graph() const { return plain_.graph(); }
  const std::vector<Tensor>& captured() const { return captured_; }
  /// Makes the kernels now, and not when they are first wanted.
  void compile() const { fast(); }
  /// What is fused, and what is not; or that nothing was compiled so far.
  Report report() const;

 private:
  struct Fast {
    Plan plan;
    std::vector<Fused> kernels;
    std::unique_ptr<const OneFunction> whole;  // null: there is only the plan
  };
  struct Compiled {
    std::optional<Fast> fast;  // none where there is nothing to fuse, or no LLVM
    std::string why_not;       // there is no LLVM
    Report report = {};
  };
  Compiled compiled() const;
  const Fast* fast() const;

  Plan plain_;
  std::vector<Tensor> captured_;
  bool has_effects_ = false;
  std::shared_ptr<Kernels> kernels_;
  MadeOnce<Compiled> compiled_;
};

}  // namespace tower::compiler
