#include "fuse/row_recompute.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "fuse/recompute.h"
#include "graph/pointwise.h"
#include "numbers/small.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

constexpr size_t kNowhere = static_cast<size_t>(-1);
// Bytes of a value, with fewer of which it stays near by: it costs nothing to read.
constexpr int64_t kFewBytes = int64_t{1} << 16;
// Operations that it takes to read an element elsewhere than at the lane's place.
constexpr int64_t kOfPlace = 2;
// Of calls that are not computed again: more than all of a graph's costs, and so little that a graph's calls of it fit.
constexpr int64_t kNever = int64_t{1} << 50;

class RowRecompute {
 public:
  RowRecompute(const Graph& graph, const Joining& joining, const std::vector<Regions::Calls>& groups,
               const std::vector<bool>& of_rows)
      : graph_(graph), joining_(joining), of_(graph.calls.size(), kNowhere), maker_(graph.values.size(), kNowhere) {
    for (size_t g = 0; g < groups.size(); ++g) {
      std::set<Sizes> rows;
      for (const size_t n : groups[g]) {
        if (of_rows[g]) of_[n] = g;
        if (of_rows[g] && joining.spaces[n]->rows) rows.insert(*joining.spaces[n]->rows);
        for (const ValueId id : graph.calls[n].results)
          if (id != kNoValue) maker_[id] = n;
      }
      rows_.push_back(std::move(rows));
    }
  }

  Costs costs() const {
    Costs costs;
    costs.operations = [this](size_t n) { return operations(graph_.calls[n], n); };
    costs.elements = [this](ValueId id) { return elements(graph_.values[id]); };
    costs.reads_inside = [this](size_t n, size_t k) { return reads_inside(n, k); };
    return costs;
  }

 private:
  const Value& value(ValueId id) const { return graph_.values[id]; }

  // Of all lanes.
  int64_t operations(const Call& call, size_t n) const {
    if (call.results.size() != 1 || call.random() || call.effect || call.opaque() || gives_view(call) ||
        joining_.spaces[n]->key != value(call.results[0]).sizes)
      return kNever;
    const int64_t lanes = count(value(call.results[0]).sizes);
    if (!element_rule(*call.op)) return call.op->moves != Moves::no || looks_up(*call.op) ? kOfPlace * lanes : kNever;
    const Pointwise pointwise{graph_};
    if (!pointwise.serves(call)) return kNever;
    Expressions trial;
    uint64_t inputs = 0;
    pointwise.elements_of(trial, call,
                          [&](size_t k) { return trial.input(*type_of(value(call.operands[k]).dtype), inputs++); });
    int64_t cost = 0;
    ById<Id, bool> all(trial.size());
    for (const Id id : all.ids()) {
      const Op op = trial[id].op;
      if (is_function(op)) cost += thresholds().of_function;
      else if (op == Op::div || op == Op::sqrt) cost += thresholds().of_move;
      else if (op != Op::input && op != Op::constant) cost += 1;
    }
    return cost * lanes;
  }

  // Of which no two are in one place.
  static int64_t elements(const Value& v) {
    int64_t n = 1;
    for (size_t d = 0; d < v.sizes.size(); ++d)
      if (v.strides[d] != 0) n *= v.sizes[d];
    return n * static_cast<int64_t>(c10::elementSize(v.dtype)) < kFewBytes ? 0 : n;
  }

  // Whether all of the maker's group could be in the call's.
  bool reads_inside(size_t n, size_t k) const {
    const size_t maker = maker_[graph_.calls[n].operands[k]];
    const size_t from = of_[maker], g = of_[n];
    return from != kNowhere && g != kNowhere && joining_.spaces[n]->key == joining_.spaces[maker]->key &&
           (rows_[from].empty() || rows_[from] == rows_[g]) && joining_.reads_inside(graph_.calls[n], k);
  }

  const Graph& graph_;
  const Joining& joining_;
  std::vector<size_t> of_;             // of each call: its group, if that is of rows
  ById<ValueId, size_t> maker_;        // of each value: the call
  std::vector<std::set<Sizes>> rows_;  // of each group: which its calls are over
};

}  // namespace

std::vector<size_t> compute_rows_again(Graph& graph, const Joining& joining, std::vector<Regions::Calls>& groups,
                                       const std::vector<bool>& of_rows) {
  const Graph before = graph;
  const RowRecompute recompute(before, joining, groups, of_rows);
  std::vector<Regions::Calls> kernels;
  std::vector<size_t> group_of(graph.calls.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    if (of_rows[g]) kernels.push_back(groups[g]);
    for (const size_t n : groups[g]) group_of[n] = g;
  }
  const std::vector<size_t> origin = compute_again(graph, kernels, recompute.costs());
  const std::vector<size_t> now = places_now(origin, before.calls.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    if (of_rows[g]) groups[g].clear();
    for (size_t& n : groups[g]) n = now[n];
  }
  // The last call is no copy: what reads a copy is in its group, and comes later.
  for (Regions::Calls& calls : kernels) groups[group_of[origin[calls.back()]]] = std::move(calls);
  std::erase_if(groups, [](const Regions::Calls& calls) { return calls.empty(); });
  return origin;
}

std::vector<size_t> places_now(const std::vector<size_t>& origin, size_t calls_before) {
  std::vector<size_t> now(calls_before, kNowhere);
  for (size_t n = origin.size(); n-- > 0;) now[origin[n]] = n;
  return now;
}

}  // namespace tower::compiler
