// One step of a loop over large tensors, as kernels that can compute any part of what it gives.
//
// The elements of each tensor are a row, and a lane of each kernel reads elements at fixed distances from its own place
// (fuse/row_reach.h). So what a tile of a step's results needs of its operands is a tile of these, by some elements
// wider. A tile of a few thousand elements stays in the cache for many steps (fuse/tiled_loop.h).
//
// What one kernel makes for the next does not have to be there for all of a tile: a tile is made in strips, from its
// beginning on. Each kernel is ahead of those that read what it gives by as much as these read further on:
//
//   k1   ■■■■■■■■|■■■■■■■■|·······
//   k2   ■■■■■■|■■■■■■■■|·········     reads k1's elements, some of which are from the strip before
//
// So a strip of all that is on the way stays in the nearest cache, and its memory is used again by the next strip.
#pragma once

#include <c10/core/Allocator.h>

#include <limits>
#include <optional>
#include <vector>

#include "fuse/row_reach.h"
#include "graph/graph.h"
#include "kernels/kernels.h"

namespace tower::compiler {

/// Elements `begin` … `end` − 1 of a row.
struct Tile {
  int64_t begin, end;
};

/// What is needed where a tile is wanted: from so many elements before it to so many behind it.
struct Span {
  static constexpr int64_t kNothing = std::numeric_limits<int64_t>::min() / 4;
  int64_t before = kNothing, after = kNothing;

  bool is_empty() const { return before == kNothing; }
  void join(const Span& other) {
    before = std::max(before, other.before);
    after = std::max(after, other.after);
  }
  /// What has to be there of an operand that is read so.
  Span read(const Reach& reach) const { return is_empty() ? *this : Span{before - reach.first, after + reach.last}; }
};

/// Tiles and strips begin and end with such numbers where they can, and what they are held in with whole lines of the
/// cache, so that vectors are in one line each.
constexpr int64_t kGrid = 16;
constexpr int64_t kLine = 64;  // bytes
inline int64_t down_to_grid(int64_t n) { return n / kGrid * kGrid; }

/// Where an element is, of so many bytes, whose first one would be at `first`, which need not be in any memory.
char* element_at(char* first, int64_t number, int64_t bytes);

class StepInTiles {
 public:
  /// None where something of the step is no such kernel. Throws a CompileError where there is no LLVM.
  static std::optional<StepInTiles> of(const Graph& step, Kernels& kernels);

  /// A tensor that is on the way, or an argument or a constant.
  struct Held {
    int64_t elements, bytes;   // how many, and of each
    bool made = false;         // by a kernel
    at::Tensor constant = {};  // else undefined

    /// What of it is in a span of a tile; all of it, if that is one element.
    Tile part(const Tile& tile, const Span& span) const;
  };
  const std::vector<Held>& held() const { return held_; }
  size_t arguments() const { return arguments_.size(); }
  /// Whether these can be its arguments.
  bool takes(const std::vector<at::Tensor>& arguments) const;
  size_t kernels() const { return steps_.size(); }
  size_t operators() const { return operators_; }
  size_t results() const { return results_.size(); }
  /// Of the result, as it is held.
  const Held& result(size_t k) const { return held_[results_[k].held]; }

  struct Spans {
    std::vector<Span> held, results;
  };
  /// What is needed of all that is held, where these spans of the results are wanted. Arguments are held first, in
  /// their order.
  Spans needed_for(std::vector<Span> results) const;

  /// Memory for a strip of what is on the way, and where it is; of one thread.
  class Room {
   public:
    explicit Room(const StepInTiles& step);

   private:
    friend class StepInTiles;
    // A strip's elements, from a multiple of kGrid on.
    struct Strip {
      int64_t offset;      // in the memory
      int64_t tail;        // elements before those that are made next, which are read with these
      int64_t begin = -1;  // of all that was made in this tile; less than 0: nothing
    };
    void make_place(size_t held, const Held& what, int64_t from, std::vector<char*>& all);

    std::vector<std::optional<Strip>> strips_;  // by what is held
    std::vector<int64_t> done_;                 // up to where each step has come, and each copy of a result
    c10::DataPtr memory_;
  };

  /// Computes `spans` of the results, and what else of them is made with that. `held`: where the first element of each
  /// argument and constant would be, of which only what is needed has to be there; others are set here, those of
  /// results from `results`. Bits of what went wrong go to `fault`.
  void run(const Tile& tile, const Spans& spans, Room& room, std::vector<char*>& held,
           const std::vector<char*>& results, uint8_t* fault) const;

 private:
  // Elements of what is held, from one on.
  struct Part {
    size_t held;
    int64_t from, elements;
  };
  struct Read {
    Part of;
    bool shared;
    Reach reach;  // in what is held
  };
  struct Step {
    std::shared_ptr<const Kernel> kernel;
    int64_t lanes;
    std::vector<Read> reads;
    std::vector<size_t> makes;
    int64_t ahead = 0;  // of the results, in elements
  };
  struct Result : Part {
    bool in_place;  // it is made where it is to be; else copied, as it is another's elements, too
  };
  StepInTiles() = default;
  bool add(const Graph& graph, const Call& call, ById<ValueId, std::optional<Part>>& parts);
  void settle_strips();
  void run_step(const Step& step, int64_t from, int64_t to, const std::vector<char*>& held, uint8_t* fault) const;

  struct Argument {
    Sizes sizes;
    at::ScalarType dtype;
  };
  std::vector<Held> held_;
  std::vector<Argument> arguments_;
  size_t operators_ = 0;
  std::vector<int64_t> ahead_;  // of the results, what is held
  std::vector<int64_t> tail_;   // of what is made, how many elements before those of the next strip it reads
  std::vector<Step> steps_;
  std::vector<Result> results_;
};

}  // namespace tower::compiler
