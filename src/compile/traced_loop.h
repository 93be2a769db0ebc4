// A loop as a call of a graph: an operator whose predicate and step are graphs of one example. Where they are small
// enough for a kernel, the loop is one inside it (NOTE [Loops in a kernel]); a known number of steps over large tensors
// may be made tile by tile (fuse/tiled_loop.h); elsewhere it is run step by step, by two plans. One whose number of
// steps is known (fori_loop, scan) has no predicate; of a scan's inputs and outputs each step has its own
// (NOTE [Stacked numbers] in numbers/expression.h), and it is a call only where kernels can make it.
//
// Under transforms it is a higher-order operator as any: mapped, it is the loop over a batch; pushed forward, a loop
// over state and tangents, which is traced in turn. Its pullback is a call of compile/loop_backwards.h.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "core/once.h"
#include "fuse/own_kernels.h"
#include "fuse/small.h"
#include "fuse/tiled_loop.h"
#include "graph/plan.h"
#include "numbers/thresholds.h"
#include "tower/loops.h"

namespace tower::compiler {

class ByteReader;
class CompiledGraph;
class GraphReader;

class Loop final : public CodeInNumbers, public HasOwnKernels, public std::enable_shared_from_this<Loop> {
 public:
  /// `predicate` and `step` are functions of the state and, behind it, of the tensors that either captures.
  Loop(Graph predicate, Graph step, size_t states, const WhileOptions& options, bool must_end);
  /// Of the first operands behind the state, `stacked`, each step has its own elements, and so of results behind the
  /// state.
  struct Steps {
    int64_t count;
    size_t stacked;
    bool reverse;
    bool operator==(const Steps&) const = default;
  };
  Loop(Graph step, size_t states, const Steps& steps);
  ~Loop() override;

  dynamic::Tensors run(const dynamic::Tensors& operands) const;
  dynamic::Tensors push_forward(const dynamic::Tensors& operands, const dynamic::Tensors& tangents) const;

  SmallResults in_numbers(const SmallCall& call) const override {
    return results_in_numbers(call.graph, call.operands);
  }
  std::optional<Kinds> kinds() const override;
  /// The same of its step.
  Kinds kinds_of_step() const;
  std::optional<dynamic::Tensors> run_at_once(const Call& call, const dynamic::Tensors& operands) const override;
  SmallResults results_in_numbers(Expressions& graph, c10::ArrayRef<const Small*> operands) const;
  std::optional<OwnKernels> own_kernels() const override { return of_tiles(in_tiles_.if_made()); }
  static std::optional<OwnKernels> of_tiles(const std::unique_ptr<const TiledLoop>* made) {
    return made && *made ? std::optional(OwnKernels{(*made)->kernels(), (*made)->operators()}) : std::nullopt;
  }
  bool is_stacked_operand(size_t k) const override { return k >= states_ && k < states_ + stacked(); }
  bool is_stacked_result(size_t k) const override { return k >= states_; }
  /// The loop in a kernel, but for what its steps give of their own; none where it does not fit.
  struct InNumbers {
    LoopId loop;
    SmallResults last;     // state
    Id steps;              // how many were made, of i32; none where they are not counted
    SmallResults outputs;  // of a step, as they are inside
  };
  /// The first of `operands` are the loop's.
  std::optional<InNumbers> steps_in_numbers(Expressions& graph, c10::ArrayRef<const Small*> operands,
                                            bool counted) const;
  /// In a loop that is open, what the present step has of a stacked operand; none where that cannot be read so.
  std::optional<Small> element(Expressions& graph, const Small& stacked) const;
  /// Of a loop that is closed and left the number `left`, what a step's `output` was in each.
  Small in_steps(Expressions& graph, LoopId loop, const Small& output, Id left) const;

  const char* name() const { return has_stacked() ? "scan" : makes_known_steps() ? "fori_loop" : "while_loop"; }
  size_t operands() const { return step_.graph().arguments.size(); }
  size_t results() const { return step_.graph().results.size(); }
  size_t states() const { return states_; }
  size_t stacked() const { return steps_ ? steps_->stacked : 0; }
  /// Whether its steps are so many that a kernel is made faster than they are.
  bool is_long() const { return steps_ && steps_->count >= thresholds().many_steps; }
  bool makes_known_steps() const { return steps_.has_value(); }
  /// The loop over large tensors, tile by tile; null where it is none, or where there is no LLVM. It is made when it is
  /// first asked for.
  const TiledLoop* in_tiles() const;
  /// Whether kernels of a tile may make steps: those of known number, of large tensors, which share all but their
  /// state.
  bool may_be_in_tiles() const;
  int64_t known_steps() const { return steps_->count; }
  /// The steps, one after the other, as ordinary code.
  dynamic::Tensors run_written_out(const dynamic::Tensors& operands) const;
  /// Whether a kernel can make the loop, of such operands.
  bool fits_kernel(const dynamic::Tensors& operands) const;
  bool has_stacked() const { return stacked() > 0 || results() > states_; }
  const Plan& step() const { return step_; }
  /// From now on, predicate and step are compiled where the loop runs step by step.
  void compile_itself() const override { compiles_ = true; }
  bool does_the_same(const KnownCode& other) const override;
  bool store(GraphWriter& out) const override;
  /// What `store` wrote. Throws as GraphReader does.
  static std::shared_ptr<const Loop> read(GraphReader& graphs, ByteReader& in);

 private:
  // The last state; `predicate` and `step` are functions of the state and of the `fixed` tensors. Where steps may be
  // recorded, the fixed tensors are part of the state: what a backward pass runs again captures no tensors.
  dynamic::Tensors repeat(const dynamic::Function& predicate, const dynamic::Function& step,
                          const dynamic::Tensors& start, const dynamic::Tensors& fixed) const;
  // The last state and the outputs of a known number of steps, functions of state, elements and `fixed`.
  dynamic::Tensors repeat(const dynamic::Function& step, size_t states, const dynamic::Tensors& operands,
                          const dynamic::Tensors& fixed) const;
  const CompiledGraph& compiled(bool step) const;

  std::optional<Plan> predicate_;
  Plan step_;
  size_t states_;
  std::optional<Steps> steps_;  // none: while the predicate holds
  WhileOptions options_;
  bool must_end_;
  mutable std::atomic<bool> compiles_ = false;
  MadeOnce<std::unique_ptr<const TiledLoop>> in_tiles_;
  MadeOnce<std::array<std::unique_ptr<const CompiledGraph>, 2>> compiled_;  // of the predicate, and of a step
};

inline bool has_derivative(at::ScalarType dtype) { return at::isFloatingType(dtype) || at::isComplexType(dtype); }
inline bool has_derivative(const Tensor& t) { return has_derivative(t.scalar_type()); }

/// What a call gives, by a kernel; none where no kernel takes it.
std::optional<dynamic::Tensors> run_in_kernel(const Call& call, const dynamic::Tensors& operands);

/// The graph of a step, or of what else is known of one, of tensors like these. Throws where it writes.
Graph traced_step(const dynamic::Function& f, const dynamic::Tensors& state);
/// Whether they compute the same of the same arguments.
bool same_graph(const Graph& a, const Graph& b);

}  // namespace tower::compiler
