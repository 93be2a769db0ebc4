// Calls of a graph put into groups that can each run as one: as large as they can be without one waiting for itself.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace tower::compiler {

/// What calls of one group have in common: equal keys, and equal rows where they have any. A call that goes with `any`
/// key takes that of the group that it joins.
struct Space {
  Sizes key;
  bool any = false;
  std::optional<Sizes> rows = std::nullopt;
  bool joins(const Space& other) const {
    return any || other.any || (key == other.key && (!rows || !other.rows || *rows == *other.rows));
  }
};

/// Which calls may be in one group.
struct Joining {
  /// By call; none: it stays alone.
  std::vector<std::optional<Space>> spaces;
  /// Whether a call in the same group as the one that gives its operand can read it there.
  std::function<bool(const Call& call, size_t operand)> reads_inside;
  /// By call, and of all in a group at most.
  std::vector<int64_t> costs;
  int64_t most;
};

class Regions {
 public:
  using Calls = std::vector<size_t>;

  /// The groups, in an order in which each finds what it reads; the calls of each in the graph's order. `made`: groups
  /// that there already are, which are joined to no others. Throws a CompileError where groups wait for each other.
  static std::vector<Calls> in_order(const Graph& graph, const Joining& joining, const std::vector<Calls>& made);

 private:
  // `exact`: sees every way by which groups wait for each other, which takes long in large graphs. Else nearly every.
  Regions(const Graph& graph, const Joining& joining, const std::vector<Calls>& made, bool exact);
  // The groups in order; empty where some wait for each other.
  std::vector<Calls> in_order();

  static constexpr size_t kNobody = static_cast<size_t>(-1);
  struct Group {
    Calls calls;
    std::set<size_t> reads;      // groups, as they were numbered then
    std::set<size_t> waits_for;  // of those that it reads: the ones that must have ended
    int epoch;
    std::optional<Space> space;  // none: joined no more
    int64_t cost;
    size_t first, last;  // calls
  };

  size_t root(size_t g);
  std::set<size_t> roots(const std::set<size_t>& groups);
  void join_what_is_read(size_t n);
  void try_join(size_t a, size_t b);
  void join(size_t a, size_t b);
  bool reaches(size_t from, size_t to);

  const Graph& graph_;
  const Joining& joining_;
  bool exact_;
  std::vector<Group> groups_;
  std::vector<size_t> of_;                      // of each group: itself, or a group that it was joined to
  ById<ValueId, size_t> maker_;                 // of each value: the call
  std::unordered_map<ValueId, size_t> reader_;  // of a value, inside: the last call
};

}  // namespace tower::compiler
