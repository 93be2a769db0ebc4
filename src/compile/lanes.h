// Graphs that differ in nothing but the number of examples.
//
// Which numbers in a graph follow from it shows where a function was traced with two: sizes, strides and attributes
// that are a·n in both. The rest has to be equal, and so do all constants. That tells nothing of a third number unless
// each call does the same for any: so calls are mapped over the examples, or pointwise, or views.
#pragma once

#include <optional>

#include "compile/call_kind.h"
#include "compile/graph.h"

namespace tower::compiler {

/// Two numbers of examples, and which others follow from them.
struct Lanes {
  int64_t first,
      second;  // not equal, and more than one: tensors of one example, or of none, broadcast or lie otherwise

  /// What is `a` with the first number and `b` with the second, with `n`; none if it is not a multiple of it.
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

  Graph with(int64_t n) const;

 private:
  LaneGraph(Graph a, Graph b, Lanes lanes) : first_(std::move(a)), second_(std::move(b)), lanes_(lanes) {}

  Graph first_, second_;
  Lanes lanes_;
};

}  // namespace tower::compiler
