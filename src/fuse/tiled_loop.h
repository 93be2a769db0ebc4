// Loops of a known number of steps over large tensors, tile by tile: all steps of a tile, then the next tile.
//
//   tile          ······[■■■■■■■■]······      after the last step
//                 ····[■■■■■■■■■■■■]····      what that needs of the state before, and so on:
//                 ··[■■■■■■■■■■■■■■■■]··      each step reads some elements further than it gives
//
// So a loop passes over memory once, and not in each step, for the price of what neighbouring tiles both compute. Where
// steps are so many that this would be a large part of a tile, the loop is made in blocks of steps, between which
// states are whole. Tiles have memory that is taken once, and what a step's kernels read and write is settled
// beforehand. Tiles are shared out to LibTorch's threads.
//
// The way back is made alike: a block's states are made once more for a tile and kept, and then its steps' pullbacks go
// through them. Of the whole loop the states between blocks are kept.
#pragma once

#include <memory>

#include "fuse/step_in_tiles.h"
#include "tower/dynamic.h"

namespace tower::compiler {

class TiledLoop {
 public:
  /// `step` makes of states and of tensors that all steps share, in this order, the next states. Null where it is no
  /// step in tiles, or where tiles would be too small for what steps read of neighbours.
  static std::unique_ptr<const TiledLoop> of(const Graph& step, size_t states, int64_t count, Kernels& kernels);
  /// With its pullback: of the states before the step, what is shared, cotangents of states, and sums, `back` makes
  /// cotangents and sums of before the step.
  static std::unique_ptr<const TiledLoop> of(const Graph& step, size_t states, int64_t count, const Graph& back,
                                             Kernels& kernels);

  /// Of states and what is shared, the last states; of a pullback, which is given `back`'s operands, its last results.
  dynamic::Tensors run(const dynamic::Tensors& operands) const;
  /// How many there are for a step and its pullback, and how many operators they stand for.
  size_t kernels() const { return step_.kernels() + (back_ ? back_->kernels() : 0); }
  size_t operators() const { return step_.operators() + (back_ ? back_->operators() : 0); }
  /// Whether these can be its operands.
  bool takes(const dynamic::Tensors& operands) const { return (back_ ? *back_ : step_).takes(operands); }

 private:
  // So many steps of a tile.
  struct Block {
    int64_t steps = 0;
    std::vector<StepInTiles::Spans> forwards, backwards;  // by steps
    Span widest;
  };
  // A tile's memory: of each tensor, what there is of it in the widest span.
  class Windows;
  TiledLoop(StepInTiles step, std::optional<StepInTiles> back, size_t states, int64_t count);
  bool settle_tiles();
  Block forward_block(int64_t steps) const;
  Block backward_block(int64_t steps) const;
  dynamic::Tensors run_forward(const Block& block, const dynamic::Tensors& operands) const;
  dynamic::Tensors run_backward(const Block& block, const dynamic::Tensors& operands) const;
  template <class F>
  void in_tiles(F run) const;

  StepInTiles step_;
  std::optional<StepInTiles> back_;
  size_t states_;
  int64_t count_, elements_, tile_ = 0;
  std::vector<Block> forwards_, backwards_;  // in the order of steps: all but the last are alike
};

}  // namespace tower::compiler
