// A loop as a call of a graph: an operator whose predicate and step are graphs of one example. Where they are small
// enough for a kernel, the loop is one inside it (NOTE [Loops in a kernel]); elsewhere it is run
// step by step, by two plans.
//
// Under transforms it is a higher-order operator as any: mapped, it is the loop over a batch; pushed forward, a loop
// over state and tangents, which is traced in turn. Its pullback is a call that makes the steps again, one by one.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "core/once.h"
#include "fuse/small.h"
#include "graph/plan.h"
#include "tower/loops.h"

namespace tower::compiler {

class CompiledGraph;

class Loop final : public CodeInNumbers, public std::enable_shared_from_this<Loop> {
 public:
  /// `predicate` and `step` are functions of the state and, behind it, of the tensors that either captures.
  Loop(Graph predicate, Graph step, size_t states, const WhileOptions& options, bool must_end);
  ~Loop() override;

  dynamic::Tensors run(const dynamic::Tensors& operands) const;
  dynamic::Tensors push_forward(const dynamic::Tensors& operands, const dynamic::Tensors& tangents) const;

  SmallResults in_numbers(const SmallCall& call) const override;
  /// From now on, predicate and step are compiled where the loop runs step by step.
  void compile_itself() const override { compiles_ = true; }
  bool does_the_same(const KnownCode& other) const override;

 private:
  // The last state; `predicate` and `step` are functions of the state and of the `fixed` tensors. Where steps may be
  // recorded, the fixed tensors are part of the state: what a backward pass runs again captures no tensors.
  dynamic::Tensors repeat(const dynamic::Function& predicate, const dynamic::Function& step,
                          const dynamic::Tensors& start, const dynamic::Tensors& fixed) const;
  const CompiledGraph& compiled(bool step) const;

  Plan predicate_, step_;
  size_t states_;
  WhileOptions options_;
  bool must_end_;
  mutable std::atomic<bool> compiles_ = false;
  MadeOnce<std::array<std::unique_ptr<const CompiledGraph>, 2>> compiled_;  // of the predicate, and of a step
};

}  // namespace tower::compiler
