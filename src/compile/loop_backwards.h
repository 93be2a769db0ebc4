// The pullback of a while_loop as a call of a graph. Where a kernel can compute the loop's steps and their pullbacks,
// it is inside of one: the loop, whose states are kept in memory, and a loop backwards through them (NOTE [Loops
// backwards] in numbers/expression.h). Elsewhere the steps are made again, one by one.
#pragma once

#include "compile/traced_loop.h"

namespace tower::compiler {

/// Operands: those of the loop, and the cotangents that are there of its results. Results: the gradients of the
/// operands of the loop that are asked for.
class LoopBackwards final : public CodeInNumbers, public HasOwnKernels {
 public:
  /// `cotangents`: of which results there are some; `needs`: the gradients of which operands are asked for. While a
  /// function is traced; `operands` are those of the loop.
  LoopBackwards(std::shared_ptr<const Loop> loop, std::vector<bool> cotangents, std::vector<bool> needs,
                const dynamic::Tensors& operands);

  /// Whether it is made tile by tile, if the loop is; where it is not, the loop's steps are better written out.
  bool is_in_tiles() const { return in_tiles() != nullptr; }
  /// The gradients, tile by tile; none where that cannot be.
  std::optional<dynamic::Tensors> run_in_tiles(const dynamic::Tensors& operands) const;

  SmallResults in_numbers(const SmallCall& call) const override;
  std::optional<OwnKernels> own_kernels() const override { return Loop::of_tiles(in_tiles_.if_made()); }
  bool is_stacked_operand(size_t k) const override;
  bool is_stacked_result(size_t k) const override;
  std::optional<Kinds> kinds() const override;
  std::optional<dynamic::Tensors> run_at_once(const Call& call, const dynamic::Tensors& operands) const override;
  void compile_itself() const override { loop_->compile_itself(); }
  bool does_the_same(const KnownCode& other) const override;
  bool raises_for(const KnownCode& other) const override { return loop_->does_the_same(other); }
  bool store(GraphWriter& out) const override;
  /// The operator of what `store` wrote. Throws as GraphReader does.
  static c10::intrusive_ptr<const Operator> read(GraphReader& graphs, ByteReader& in);

 private:
  const TiledLoop* in_tiles() const;
  std::unique_ptr<const TiledLoop> made_in_tiles() const;
  LoopBackwards(std::shared_ptr<const Loop> loop, std::vector<bool> cotangents, std::vector<bool> needs);
  // What `step_` has to be.
  Kinds kinds_of_step() const;

  std::shared_ptr<const Loop> loop_;
  std::vector<bool> cotangents_, needs_;
  std::vector<bool> moves_;    // of the states: there are derivatives by them
  std::optional<Graph> step_;  // of the operands and a cotangent of each state that moves: the cotangents before the
                               // step, and what it adds to the gradients of the other operands that need theirs
  MadeOnce<std::unique_ptr<const TiledLoop>> in_tiles_;
};

}  // namespace tower::compiler
