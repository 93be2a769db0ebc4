// Regions whose lanes are the examples of one vmap (fuse/lane_axes.h): calls on tensors that are small for one example,
// which is unrolled into numbers (fuse/small.h). What no example has to itself is the same in all lanes; other vmaps,
// such as the columns of a Jacobian, are unrolled, too. A region without examples has one lane.
#pragma once

#include <map>

#include "fuse/kernel_calls.h"
#include "fuse/lane_axes.h"
#include "fuse/lane_kernel.h"
#include "fuse/regions.h"

namespace tower::compiler {

/// Which calls of a graph can be in such regions, and the kernels of those that are.
class Unrolled {
 public:
  Unrolled(const Graph& graph, int64_t most_operations, bool is_outside);

  const Joining& joining() const { return joining_; }
  /// Whether a kernel of this call is better than LibTorch's, or may be with others.
  bool takes(size_t call) const;
  /// Whether a kernel of these calls is better than what else there is: they do not only move elements, unless that is
  /// `worth` one, nor are they all of one size and element by element.
  bool are_worth_it(const std::vector<size_t>& calls, Worth worth) const;
  /// The calls that sum what such a kernel makes over its examples: the kernel adds them up itself (NOTE [Sums over
  /// lanes] in kernels/kernel_sums.cpp).
  std::vector<size_t> sums_of(const std::vector<size_t>& calls) const;
  /// Whether the kernel is better for them, where it would not be otherwise: what is summed is then in no memory.
  bool are_worth_their_sums(const std::vector<size_t>& calls) const {
    return calls.size() > 1 && joining_.spaces[calls[0]] && !sums_of(calls).empty();
  }
  /// Settles what lies between the kernels of these groups: what is cheap is computed again where it is read
  /// (fuse/recompute.h), and what only such kernels read has the examples next to each other. Changes the graph that
  /// this was made for, and numbers the groups anew.
  void settle(Graph& graph, std::vector<Regions::Calls>& groups);
  /// The graph's calls have other numbers now: of each, the one that it was, or is a copy of.
  void renumber(const std::vector<size_t>& origin);
  /// The call of a kernel in the place of `calls`, in the graph's order, of which some are sums over its lanes.
  Call write(const std::vector<size_t>& calls, const std::vector<size_t>& summed, const Readers& readers,
             Kernels& kernels, std::vector<Fused>& report) const;

  Unrolled(const Unrolled&) = delete;
  Unrolled& operator=(const Unrolled&) = delete;

 private:
  uint64_t axis_of(size_t call) const;
  bool factors(size_t call) const;
  int64_t most_of_one_lane(size_t call) const;
  int64_t lanes_of(size_t call) const;
  std::optional<int64_t> cost_of(size_t call);
  void lay_out_by_lanes(Graph& graph, const std::vector<Regions::Calls>& groups) const;

  int64_t most_of_matrix(uint64_t axis) const;

  const Graph& graph_;
  const bool is_outside_;  // of the process: Worth::outside
  const LaneAxes axes_;
  ById<ValueId, bool> leaves_, is_read_;
  bool writes_ = false;
  ById<ValueId, size_t> maker_;     // of each value: the call
  std::vector<int64_t> functions_;  // of each call: how many it calls for one lane
  std::vector<int64_t> weights_;    // its operations, where a formula for an element is no more than a function
  Joining joining_;
  // Where several examples are in a lane, much of what one computes is the others', too: what calls cost is what they
  // add to all before.
  std::map<uint64_t, LaneWriter> counted_;
};

}  // namespace tower::compiler
