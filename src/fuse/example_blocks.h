// Graphs over many examples, block by block.
//
// A call over ten thousand examples leaves megabytes for the next one, which finds them in no cache any more: where
// kernels and products of matrices take turns, a processor waits for memory most of the time. What maps over examples
// gives the same for a part of them, so here all calls are made for some hundred examples, and then for the next ones:
// what lies between two calls is still in the cache. What is summed over the examples is summed over the block, and the
// sums of blocks are added up in their order.
//
//     y = tanh(W x), gW = Σ y xᵀ      10,000 examples     →     25 times: y = tanh(W x), s = Σ y xᵀ; gW += s   of 400
//
// Which dimension of a value counts the examples is followed from call to call (NOTE [Which calls are in blocks]).
// Calls before and after these remain calls of the graph, around one that goes over the blocks.
#pragma once

#include <optional>

#include "fuse/fuse.h"

namespace tower::compiler {

/// The graph with its calls over examples in blocks, fused; `whole` is the same graph fused without blocks. None where
/// there is nothing to gain: what the calls hand on is less than a cache has, or is mostly read by others.
std::optional<FusedGraph> fuse_in_blocks(const Graph& graph, const FusedGraph& whole, Kernels& kernels);

/// When it is worth it: numbers as those of numbers/thresholds.h, of which the rows PINN and Hessian of
/// script/bench compile tell.
struct BlockThresholds {
  /// Bytes that the calls over all examples hand on to each other: with more, calls are made for one block of examples
  /// after the other …
  int64_t fewest_bytes = int64_t{1} << 24;
  /// … in which they hand on so many, which the cache of a core has room for …
  int64_t bytes_of_block = int64_t{1} << 21;
  /// … or so many for each call, if that is more: with fewer, to call takes longer than to read …
  int64_t bytes_of_call = int64_t{1} << 15;
  /// … and for each byte that all blocks read, such as those of a weight: with fewer, they are mostly read again …
  int64_t bytes_of_shared_byte = 4;
  /// … and for each instruction of kernels: with fewer, these do not wait for memory.
  int64_t bytes_of_instruction = 4;
};
/// Others while it lives, for tests, while nothing else compiles.
class OtherBlockThresholds {
 public:
  explicit OtherBlockThresholds(const BlockThresholds& numbers);
  ~OtherBlockThresholds();
  OtherBlockThresholds(const OtherBlockThresholds&) = delete;
  OtherBlockThresholds& operator=(const OtherBlockThresholds&) = delete;
};

/// Of a graph that fuse_in_blocks gave: the call that goes over the blocks.
class GoesOverBlocks {
 public:
  virtual ~GoesOverBlocks() = default;
};

}  // namespace tower::compiler
