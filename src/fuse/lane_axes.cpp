#include "fuse/lane_axes.h"

#include <algorithm>
#include <map>

#include "fuse/small_graph.h"
#include "numbers/thresholds.h"

namespace tower::compiler {

LaneAxes::LaneAxes(const Graph& graph) {
  std::set<uint64_t> refused;
  for (const Call& call : graph.calls) {
    int64_t around = 1;
    for (const Mapped& vmap : call.vmaps) {
      if (&vmap != &call.vmaps[0]) {
        inside_.insert(vmap.axis);
        const bool few_around_many =
            around > 0 && around <= thresholds().most_directions && vmap.batch_size > thresholds().most_of_lane;
        (few_around_many ? lanes_inside_ : refused).insert(vmap.axis);
      }
      around *= vmap.batch_size;
    }
  }
  for (const uint64_t axis : refused) lanes_inside_.erase(axis);
}

const Mapped* LaneAxes::of(const Call& call) const {
  for (const Mapped& vmap : call.vmaps)
    if (is_inside(vmap.axis)) return &vmap;
  return call.vmaps.empty() || inside_.count(call.vmaps[0].axis) ? nullptr : &call.vmaps[0];
}

namespace {

class JoinedAxes {
 public:
  explicit JoinedAxes(const Graph& graph) {
    for (const Call& call : graph.calls)
      for (const Mapped& a : call.vmaps)
        for (const Mapped& b : call.vmaps)
          if (a.axis != b.axis) together_.emplace(a.axis, b.axis);
  }

  uint64_t operator()(uint64_t axis) const {
    for (auto found = joined_.find(axis); found != joined_.end(); found = joined_.find(axis)) axis = found->second;
    return axis;
  }
  // No call may be over both.
  void join(uint64_t a, uint64_t b) {
    const auto& joined = *this;
    a = joined(a), b = joined(b);
    if (a == b || std::any_of(together_.begin(), together_.end(),
                              [&](const auto& pair) { return joined(pair.first) == a && joined(pair.second) == b; }))
      return;
    joined_.emplace(b, a);
  }

 private:
  std::set<std::pair<uint64_t, uint64_t>> together_;
  std::map<uint64_t, uint64_t> joined_;
};

}  // namespace

void join_axes(Graph& graph) {
  const LaneAxes axes(graph);
  JoinedAxes joined(graph);
  ById<ValueId, const Call*> maker(graph.values.size(), nullptr);
  for (const Call& call : graph.calls) {
    const Mapped* lanes = axes.of(call);
    for (size_t k = 0; lanes && k < call.operands.size(); ++k) {
      const Call* from = maker[call.operands[k]];
      const Mapped* made = from ? axes.of(*from) : nullptr;
      if (!made || made->axis == lanes->axis || made->batch_size != lanes->batch_size) continue;
      if (seen(call, k, graph.values[call.operands[k]].sizes.size(), lanes->axis).lane ==
          lane_of_results(*from, made->axis))
        joined.join(made->axis, lanes->axis);
    }
    for (const ValueId id : call.results)
      if (id != kNoValue) maker[id] = &call;
  }
  for (Call& call : graph.calls)
    for (Mapped& vmap : call.vmaps) vmap.axis = joined(vmap.axis);
}

}  // namespace tower::compiler
