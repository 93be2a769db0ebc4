#include "fuse/shared_numbers.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

constexpr int64_t kBytesOfNumber = 8;  // the widest

// Whether it is a plain number of its operands, which may be computed anywhere.
bool is_plain(const Node& n) {
  const bool is_looked_up = n.op == Op::input && n.args[0] != kNone,
             may_fault = n.op == Op::quotient || n.op == Op::rest;
  return is_function(n.op) || (n.op < Op::carry && !is_looked_up && !may_fault);
}
bool is_computed(const Node& n) { return n.op != Op::input && n.op != Op::constant; }

// Nodes of a region in another, whose inputs are those of the first that it reads, and numbers that it is handed.
class Part {
 public:
  Part(const Region& of, bool single, int64_t lanes) : of_(of), moved_(of.graph.size(), kNone) {
    part_.single = single;
    part_.placed = {lanes, {}};
  }

  void hand(Id id, const Region::Place& place) {
    moved_[id] = part_.graph.input(of_.graph[id].type, part_.inputs.size());
    part_.inputs.push_back({of_.graph[id].type, /*repeated=*/true});
    part_.placed->places.push_back(place);
  }
  void add(Id id) {
    const Node& n = of_.graph[id];
    if (moved_[id] != kNone) return;
    if (n.op == Op::input) {
      const auto [number, is_new] = inputs_.try_emplace(n.bits, part_.inputs.size());
      if (is_new) {
        part_.inputs.push_back(of_.inputs[n.bits]);
        part_.placed->places.push_back(of_.placed->places[n.bits]);
      }
      moved_[id] = part_.graph.input(n.type, number->second);
      return;
    }
    std::array<Id, 3> args = n.args;
    for (Id& a : args)
      if (a != kNone) a = moved_[a];
    moved_[id] = part_.graph.again(n, args);
  }
  // Behind all inputs.
  void give(Id id, const Region::Place& place) {
    part_.outputs.push_back(moved_[id]);
    part_.placed->places.push_back(place);
  }
  const Region& region() const { return part_; }

 private:
  const Region& of_;
  ById<Id, Id> moved_;
  std::unordered_map<uint64_t, uint64_t> inputs_;
  Region part_;
};

}  // namespace

std::optional<SharedApart> shared_apart(const Region& placed, int64_t memory, int64_t offset) {
  const Expressions& graph = placed.graph;
  if (placed.single || graph.loops().size() > 0) return std::nullopt;
  const ById<Id, bool> live = placed.needed();
  ById<Id, bool> shared(graph.size()), handed(graph.size());
  int64_t computed = 0;
  for (const Id id : graph.ids()) {
    const Node& n = graph[id];
    if (!live[id]) continue;
    if (!is_plain(n)) return std::nullopt;
    shared[id] =
        placed.is_repeated(n) ||
        (n.op != Op::input && std::all_of(n.args.begin(), n.args.end(), [&](Id a) { return a == kNone || shared[a]; }));
    computed += shared[id] && is_computed(n);
    for (const Id a : n.args)
      if (a != kNone && !shared[id] && shared[a] && is_computed(graph[a])) handed[a] = true;
  }
  if (computed < thresholds().fewest_shared) return std::nullopt;
  const auto place_of = [&](size_t output) { return placed.placed->places[placed.inputs.size() + output]; };
  const auto is_of_shared = [&](size_t output) {
    const Id id = placed.outputs[output];
    return shared[id] && is_computed(graph[id]) && place_of(output).stride == 0;
  };
  bool has_lanes = false;
  for (size_t k = 0; k < placed.outputs.size(); ++k) {
    if (is_of_shared(k)) continue;
    has_lanes = true;
    const Id id = placed.outputs[k];
    if (shared[id] && is_computed(graph[id])) handed[id] = true;
  }

  Part one(placed, /*single=*/true, 1), lanes(placed, /*single=*/false, placed.placed->lanes);
  SharedApart apart{{}, {}, 0};
  std::vector<std::pair<Id, Region::Place>> given;
  for (const Id id : graph.ids()) {
    if (!live[id]) continue;
    if (shared[id]) one.add(id);
    if (handed[id]) {
      given.emplace_back(id, Region::Place{memory, offset + apart.bytes, 0});
      lanes.hand(id, given.back().second);
      apart.bytes += kBytesOfNumber;
    } else if (!shared[id] || !is_computed(graph[id])) {
      lanes.add(id);
    }
  }
  for (const auto& [id, place] : given) one.give(id, place);
  for (size_t k = 0; k < placed.outputs.size(); ++k)
    (is_of_shared(k) ? one : lanes).give(placed.outputs[k], place_of(k));
  apart.shared = one.region();
  if (has_lanes) apart.lanes = lanes.region();
  return apart;
}

}  // namespace tower::compiler
