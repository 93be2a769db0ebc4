// A loop as a call of a graph: an operator whose predicate and step are graphs of one example. Where they are small
// enough for a kernel, the loop is one inside it (NOTE [Loops in a kernel]); elsewhere it is run
// step by step, by two plans.
//
// Under transforms it is a higher-order operator as any: mapped, it is the loop over a batch; pushed forward, a loop
// over state and tangents, which is traced in turn. Its pullback is a call of compile/loop_backwards.h.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>

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
  /// The loop in a kernel; none where it does not fit.
  struct InNumbers {
    LoopId loop;
    SmallResults last;  // state
    Id steps;           // how many were made, of i32; none where they are not counted
  };
  /// The first operands of `call` are the loop's.
  std::optional<InNumbers> steps_in_numbers(const SmallCall& call, bool counted) const;

  size_t operands() const { return step_.graph().arguments.size(); }
  size_t states() const { return states_; }
  const Plan& step() const { return step_; }
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

inline bool has_derivative(const Tensor& t) { return t.is_floating_point() || t.is_complex(); }

/// A function of the operands of `f` and of those cotangents of its results that are `given`, behind them: the
/// gradients of the operands that `needs` says.
dynamic::Function pullback_of(const dynamic::Function& f, const std::vector<bool>& given,
                              const std::vector<bool>& needs);

/// The graph of a step, or of what else is known of one, of tensors like these. Throws where it writes.
Graph traced_step(const dynamic::Function& f, const dynamic::Tensors& state);

}  // namespace tower::compiler
