// Which examples are the lanes of a kernel, where a call is under several vmaps.
//
// As a rule those of the outermost one: what is inside, such as the columns of a Jacobian, is unrolled. It is the other
// way round where few examples are outside of many, as directions are along which a function that is mapped over
// thousands of points is differentiated. Of those inside there are then more than a lane has room for; and with these
// as lanes, a kernel computes all directions of a point, and what does not depend on the direction once.
#pragma once

#include <set>

#include "graph/graph.h"

namespace tower::compiler {

class LaneAxes {
 public:
  explicit LaneAxes(const Graph& graph);

  /// The vmap whose examples are the lanes of a kernel with this call; null where all lanes do the same.
  const Mapped* of(const Call& call) const;
  /// Whether the lanes are examples that others are around.
  bool is_inside(uint64_t axis) const { return lanes_inside_.count(axis) > 0; }

 private:
  std::set<uint64_t> inside_;        // of vmaps that are inside of others
  std::set<uint64_t> lanes_inside_;  // those of them whose examples are lanes all the same
};

/// Gives vmaps one axis where the examples that are lanes of one are, in the same order, the lanes of another, which
/// reads what the first gives: one kernel may compute both.
void join_axes(Graph& graph);

}  // namespace tower::compiler
