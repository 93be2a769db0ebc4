#include "fuse/regions.h"

#include <algorithm>
#include <queue>

#include "kernels/compile_error.h"

namespace tower::compiler {

std::vector<Regions::Calls> Regions::in_order(const Graph& graph, const Joining& joining,
                                              const std::vector<Calls>& made) {
  for (const bool exact : {false, true})
    if (auto ordered = Regions(graph, joining, made, exact).in_order(); !ordered.empty() || graph.calls.empty())
      return ordered;
  throw CompileError("groups of calls wait for each other");
}

Regions::Regions(const Graph& graph, const Joining& joining, const std::vector<Calls>& made, bool exact)
    : graph_(graph), joining_(joining), exact_(exact), maker_(graph.values.size(), kNobody) {
  std::vector<bool> taken(graph.calls.size());
  for (const Calls& calls : made)
    for (const size_t n : calls) taken[n] = true;
  int epoch = 0;
  size_t last_ordered = kNobody;
  for (size_t n = 0; n < graph.calls.size(); ++n) {
    const Call& call = graph.calls[n];
    // What is read before a write to memory is read before it, and what after, after.
    epoch += call.effect;
    groups_.push_back({{n}, {}, {}, epoch, taken[n] ? std::nullopt : joining.spaces[n], joining.costs[n], n, n});
    of_.push_back(n);
    epoch += call.effect;
    for (size_t k = 0; k < call.operands.size(); ++k) {
      const size_t maker = maker_[call.operands[k]];
      if (maker == kNobody) continue;
      groups_[n].reads.insert(maker);
      if (!groups_[n].space || !joining.reads_inside(call, k)) groups_[n].waits_for.insert(maker);
    }
    // Calls that draw random numbers, and those of unknown code, go on to follow each other.
    if (call.effect || call.random() || call.opaque()) {
      if (last_ordered != kNobody) groups_[n].reads.insert(last_ordered);
      last_ordered = n;
    }
    for (const ValueId id : call.results)
      if (id != kNoValue) maker_[id] = n;
  }
  for (const Calls& calls : made)
    for (const size_t n : calls) join(root(calls[0]), root(n));
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (groups_[root(n)].space) join_what_is_read(n);
}

std::vector<Regions::Calls> Regions::in_order() {
  std::vector<size_t> waits_for(groups_.size(), 0);
  std::vector<std::vector<size_t>> read_by(groups_.size());
  using Place = std::tuple<int, size_t, size_t>;  // epoch, first call, group
  std::priority_queue<Place, std::vector<Place>, std::greater<>> ready;
  const auto place = [&](size_t g) { return Place(groups_[g].epoch, groups_[g].first, g); };
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (root(g) != g) continue;
    std::sort(groups_[g].calls.begin(), groups_[g].calls.end());
    std::set<size_t> reads = roots(groups_[g].reads);
    reads.erase(g);
    waits_for[g] = reads.size();
    for (const size_t r : reads) read_by[r].push_back(g);
    if (reads.empty()) ready.push(place(g));
  }
  std::vector<Calls> ordered;
  size_t calls = 0;
  while (!ready.empty()) {
    const size_t g = std::get<2>(ready.top());
    ready.pop();
    ordered.push_back(groups_[g].calls);
    calls += ordered.back().size();
    for (const size_t reader : read_by[g])
      if (--waits_for[reader] == 0) ready.push(place(reader));
  }
  if (calls < graph_.calls.size()) ordered.clear();
  return ordered;
}

size_t Regions::root(size_t g) {
  while (of_[g] != g) g = of_[g] = of_[of_[g]];
  return g;
}
std::set<size_t> Regions::roots(const std::set<size_t>& groups) {
  std::set<size_t> result;
  for (const size_t g : groups) result.insert(root(g));
  return result;
}

void Regions::join_what_is_read(size_t n) {
  const Call& call = graph_.calls[n];
  for (size_t k = 0; k < call.operands.size(); ++k) {
    if (!joining_.reads_inside(call, k)) continue;
    const ValueId id = call.operands[k];
    if (maker_[id] != kNobody) try_join(maker_[id], n);
    // A neighbour that reads the same.
    const auto [neighbour, is_first] = reader_.try_emplace(id, n);
    if (!is_first) try_join(neighbour->second, n);
    neighbour->second = n;
  }
}

void Regions::try_join(size_t a, size_t b) {
  a = root(a);
  b = root(b);
  if (a == b) return;
  const Group &first = groups_[a], &second = groups_[b];
  if (first.space && second.space && first.space->joins(*second.space) && first.epoch == second.epoch &&
      first.cost + second.cost <= joining_.most && !reaches(b, a) && !reaches(a, b))
    join(a, b);
}

void Regions::join(size_t a, size_t b) {
  if (a == b) return;
  Group &first = groups_[a], &second = groups_[b];
  first.calls.insert(first.calls.end(), second.calls.begin(), second.calls.end());
  first.reads.insert(second.reads.begin(), second.reads.end());
  first.waits_for.insert(second.waits_for.begin(), second.waits_for.end());
  if (first.space && first.space->any) first.space = second.space;
  else if (first.space && second.space && !first.space->rows) first.space->rows = second.space->rows;
  first.cost += second.cost;
  first.first = std::min(first.first, second.first);
  first.last = std::max(first.last, second.last);
  second = Group{};
  of_[b] = a;
  first.reads = roots(first.reads);
  first.reads.erase(a);
}

// Whether group `from` can read group `to` only when that has ended, or reads it by way of other groups: joined, the
// two would wait for those groups, and those for the two. A group that ends before `to` begins is on such a way only if
// it reads one that goes on longer: that is seldom, and looked for (`exact_`) once it has been seen to matter.
bool Regions::reaches(size_t from, size_t to) {
  const std::set<size_t> waits_for = roots(groups_[from].waits_for);
  if (waits_for.count(to)) return true;
  std::set<size_t> seen;
  std::vector<size_t> open;
  const auto visit = [&](size_t g) {
    if ((exact_ || groups_[g].last > groups_[to].first) && seen.insert(g).second) open.push_back(g);
  };
  for (const size_t r : roots(groups_[from].reads))
    if (r != to) visit(r);
  while (!open.empty()) {
    const size_t g = open.back();
    open.pop_back();
    for (const size_t r : groups_[g].reads) {
      if (root(r) == to) return true;
      if (root(r) != from) visit(root(r));
    }
  }
  return false;
}

}  // namespace tower::compiler
