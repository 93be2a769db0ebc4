// Graphs that differ in nothing but the number of examples.
//
// A function is traced with two numbers. A size, a stride, or an element of a list of sizes that is a·n in both graphs
// is taken to follow, and all else has to be equal. That two graphs agree tells nothing of a third number (x[:8] of 16
// and of 32 rows), so each call has to be one that gives such sizes whatever the number is, by what its operator's
// record says:
//
//   mapped over the examples                 one example is the same
//   pointwise                                sizes are those of the operands, broadcast
//   views                                    keep the examples' dimension whole (Operator::view_keeps), or have the
//                                            sizes that they are told, with as many elements
//   what makes constants of one number       has the sizes that it is told, or those of an operand
//
// Other calls are the same in both graphs, and read and give nothing whose sizes differ. That holds for the calls that
// made the constants, too (Graph::makers), and of those C++ numbers that the function computes from a size itself are
// all that nobody can see.
#pragma once

#include <optional>

#include "graph/call_kind.h"
#include "graph/graph.h"

namespace tower::compiler {

/// Two numbers of examples, and which others follow from them.
struct Lanes {
  int64_t first,
      second;  // not equal, and more than one: tensors of one example, or of none, broadcast or lie otherwise

  /// With `n` examples, the size that is `a` with the first number of examples and `b` with the second; none where it
  /// is neither the same in both nor the same multiple of the number.
  std::optional<int64_t> follow(int64_t a, int64_t b, int64_t n) const {
    if (a == b) return a;
    if (a % first != 0 || b % second != 0 || a / first != b / second) return std::nullopt;
    return a / first * n;
  }
  bool agree(int64_t a, int64_t b) const { return follow(a, b, 1).has_value(); }
};

/// The arguments of two calls that differ in the number of examples alone.
class LaneKinds {
 public:
  static std::optional<LaneKinds> of(const std::vector<TensorKind>& a, const std::vector<TensorKind>& b);

  const Lanes& lanes() const { return lanes_; }
  /// How many examples a third call has; none if it differs in something else.
  std::optional<int64_t> count(const std::vector<TensorKind>& c) const;

 private:
  std::vector<TensorKind> first_, second_;
  Lanes lanes_{};
};

/// A graph for any number of examples.
class LaneGraph {
 public:
  static std::optional<LaneGraph> of(const Graph& a, const Graph& b, Lanes lanes);

  /// Of graphs from a file, which has not how their constants were made: it says of which this was known, and for how
  /// many examples at least.
  static std::optional<LaneGraph> from_file(const Graph& a, const Graph& b, Lanes lanes, int64_t fewest);

  int64_t fewest() const { return fewest_; }
  /// Whether the graph is known to be right for `n` examples. It may not be for none: LibTorch does not find the size
  /// that a view leaves open (−1) where the tensor is empty.
  bool serves(int64_t n) const { return n >= fewest_; }
  Graph with(int64_t n) const;

 private:
  LaneGraph(Graph a, Graph b, Lanes lanes, int64_t fewest);

  Graph first_, second_;
  Lanes lanes_;
  int64_t fewest_;
};

}  // namespace tower::compiler
