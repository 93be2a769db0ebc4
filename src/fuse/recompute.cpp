#include "fuse/recompute.h"

#include <algorithm>
#include <map>
#include <set>

#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

class Recomputing {
 public:
  Recomputing(Graph& graph, std::vector<Regions::Calls>& groups, const Costs& costs)
      : graph_(graph),
        groups_(groups),
        costs_(costs),
        of_(graph.calls.size(), kNobody),
        maker_(graph.values.size(), kNobody),
        readers_(graph.values.size()),
        copies_(groups.size()) {
    for (size_t g = 0; g < groups.size(); ++g)
      for (const size_t n : groups[g]) of_[n] = g;
    for (size_t n = 0; n < graph.calls.size(); ++n) {
      for (const ValueId id : graph.calls[n].operands) readers_[id].insert(of_[n]);
      for (const ValueId id : graph.calls[n].results)
        if (id != kNoValue) maker_[id] = n;
    }
    for (const ValueId id : graph.results)
      if (id != kNoValue) readers_[id].insert(kNobody);
    for (const Call& call : graph.calls)
      was_read_.push_back(std::any_of(call.results.begin(), call.results.end(),
                                      [&](ValueId id) { return id != kNoValue && !readers_[id].empty(); }));
  }

  std::vector<size_t> run() {
    for (size_t g = 0; g < groups_.size(); ++g) {
      std::map<size_t, std::set<ValueId>> read;  // by the group that made it
      std::set<size_t> other;
      for (const size_t n : groups_[g])
        for (size_t k = 0; k < graph_.calls[n].operands.size(); ++k) {
          const ValueId id = graph_.calls[n].operands[k];
          const size_t maker = maker_[id];
          if (maker == kNobody || of_[maker] == kNobody || of_[maker] == g) continue;
          read[of_[maker]].insert(id);
          if (!costs_.reads_inside(n, k)) other.insert(of_[maker]);
        }
      for (const auto& [from, values] : read)
        if (!other.count(from)) consider(g, from, values);
    }
    std::vector<size_t> origin = renumber();
    remove_unread(origin);
    return origin;
  }

 private:
  static constexpr size_t kNobody = static_cast<size_t>(-1);

  void consider(size_t g, size_t from, const std::set<ValueId>& values) {
    // The calls that give the values, and what these read.
    std::set<size_t> calls;
    std::set<ValueId> operands;
    std::vector<ValueId> open(values.begin(), values.end());
    int64_t gain = 0;
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      const size_t maker = maker_[id];
      if (maker == kNobody || of_[maker] != from) {
        if (operands.insert(id).second && !readers_[id].count(g)) gain -= of_move_ * elements(id);
        continue;
      }
      if (!calls.insert(maker).second) continue;
      gain -= costs_.operations(maker);
      const auto& read = graph_.calls[maker].operands;
      open.insert(open.end(), read.begin(), read.end());
    }
    for (const ValueId id : values)
      gain += of_move_ * elements(id) * (readers_[id] == std::set{g} || is_only_read_at_home(id, from, g) ? 2 : 1);
    if (gain <= 0) return;
    copies_[g].insert(calls.begin(), calls.end());
    for (const ValueId id : values) readers_[id].erase(g);
    for (const ValueId id : operands) readers_[id].insert(g);
  }

  bool is_only_read_at_home(ValueId id, size_t home, size_t g) const {
    return std::all_of(readers_[id].begin(), readers_[id].end(),
                       [&](size_t reader) { return reader == home || reader == g; });
  }
  int64_t elements(ValueId id) const { return graph_.values[id].origin == Origin::constant ? 0 : costs_.elements(id); }

  // A copy stands behind the call that it is one of.
  std::vector<size_t> renumber() {
    std::map<size_t, std::vector<size_t>> copied;  // call to the groups
    for (size_t g = 0; g < copies_.size(); ++g)
      for (const size_t n : copies_[g]) copied[n].push_back(g);
    std::vector<size_t> origin;
    std::vector<Call> calls;
    std::vector<std::map<ValueId, ValueId>> stands_for(groups_.size());
    for (auto& group : groups_) group.clear();
    for (size_t n = 0; n < graph_.calls.size(); ++n) {
      const auto put = [&](Call call, size_t g) {
        if (g != kNobody) {
          for (ValueId& id : call.operands)
            if (const auto found = stands_for[g].find(id); found != stands_for[g].end()) id = found->second;
          groups_[g].push_back(calls.size());
        }
        origin.push_back(n);
        calls.push_back(std::move(call));
      };
      put(graph_.calls[n], of_[n]);
      const auto found = copied.find(n);
      if (found == copied.end()) continue;
      for (const size_t g : found->second) {
        Call copy = graph_.calls[n];
        for (ValueId& id : copy.results) {
          if (id == kNoValue) continue;
          const ValueId number = graph_.values.add(graph_.values[id]);
          stands_for[g].emplace(id, number);
          id = number;
        }
        put(std::move(copy), g);
      }
    }
    graph_.calls = std::move(calls);
    return origin;
  }

  // Calls in groups whose results nobody reads any more. What nobody has read before is there for what it may raise.
  void remove_unread(std::vector<size_t>& origin) {
    std::vector<bool> in_group(graph_.calls.size());
    ById<ValueId, bool> needed(graph_.values.size());
    for (const auto& group : groups_)
      for (const size_t n : group) in_group[n] = true;
    for (const ValueId id : graph_.results)
      if (id != kNoValue) needed[id] = true;
    std::vector<size_t> number(graph_.calls.size(), kNobody);
    for (size_t n = graph_.calls.size(); n-- > 0;) {
      const Call& call = graph_.calls[n];
      if (in_group[n] && was_read_[origin[n]] &&
          std::none_of(call.results.begin(), call.results.end(),
                       [&](ValueId id) { return id != kNoValue && needed[id]; }))
        continue;
      number[n] = 0;
      for (const ValueId id : call.operands) needed[id] = true;
    }
    size_t next = 0;
    for (size_t n = 0; n < number.size(); ++n) {
      if (number[n] == kNobody) continue;
      number[n] = next;
      origin[next] = origin[n];
      if (next != n) graph_.calls[next] = std::move(graph_.calls[n]);
      ++next;
    }
    origin.resize(next);
    graph_.calls.resize(next);
    for (auto& group : groups_) {
      std::erase_if(group, [&](size_t n) { return number[n] == kNobody; });
      for (size_t& n : group) n = number[n];
    }
    std::erase_if(groups_, [](const auto& group) { return group.empty(); });
  }

  Graph& graph_;
  std::vector<Regions::Calls>& groups_;
  const Costs& costs_;
  const int64_t of_move_ = thresholds().of_move;
  std::vector<size_t> of_;                   // of each call: its group
  ById<ValueId, size_t> maker_;              // of each value: the call
  ById<ValueId, std::set<size_t>> readers_;  // of each value: groups, kNobody for others
  std::vector<std::set<size_t>> copies_;     // of each group: calls
  std::vector<bool> was_read_;               // of each call
};

}  // namespace

std::vector<size_t> compute_again(Graph& graph, std::vector<Regions::Calls>& groups, const Costs& costs) {
  return Recomputing(graph, groups, costs).run();
}

}  // namespace tower::compiler
