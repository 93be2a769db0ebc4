#include "fuse/unrolled.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <set>

#include "fuse/lane_kernel.h"
#include "fuse/recompute.h"
#include "fuse/small_graph.h"
#include "graph/operand_dims.h"
#include "graph/raises.h"
#include "numbers/fold.h"
#include "numbers/look_up.h"
#include "numbers/reports.h"
#include "numbers/slow_calls.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

constexpr int64_t kOfLoop = 10000;  // functions that its steps stand for: it is not computed again

bool is_stacked_operand(const Call& call, size_t k) {
  const CodeInNumbers* code = code_in_numbers(*call.op);
  return code && code->is_stacked_operand(k);
}
bool is_stacked_result(const Call& call, ValueId id) {
  const CodeInNumbers* code = code_in_numbers(*call.op);
  for (size_t k = 0; code && k < call.results.size(); ++k)
    if (call.results[k] == id && code->is_stacked_result(k)) return true;
  return false;
}

// Whether a call looks its operand up in memory, where that is too large to be numbers: for all lanes in the same
// tensor.
bool is_table(const Graph& graph, const Call& call, size_t k, uint64_t axis) {
  if (call.places[k].arg != 0 || !looks_up(*call.op)) return false;
  const Value& v = graph.values[call.operands[k]];
  const Seen in_call = seen(call, k, v.sizes.size(), axis);
  const bool is_shared = in_call.lane == kNoLane &&
                         std::all_of(in_call.of_vmaps.begin(), in_call.of_vmaps.end(), [](int64_t d) { return d < 0; });
  const auto order = order_in_memory(v);
  return is_shared && v.device.is_cpu() && type_of(v.dtype) && v.dtype != at::kBool &&
         count(v.sizes) > thresholds().most_of_lane && order && std::is_sorted(order->begin(), order->end());
}

// Whether elements, or rows of them, can be the lanes of a kernel as they lie.
bool is_in_rows(const Operator& op) {
  return !has_small_form(op) || fold_rule(op) || op.moves == Moves::broadcast || op.moves == Moves::in_order ||
         op.moves == Moves::nothing;
}

}  // namespace

// ---- what can be in a region ----

Unrolled::Unrolled(const Graph& graph) : graph_(graph), leaves_(values_that_leave(graph)), maker_(graph.values.size()) {
  std::set<uint64_t> inner;
  for (const Call& call : graph.calls) {
    writes_ = writes_ || call.effect;
    for (size_t v = 1; v < call.vmaps.size(); ++v) inner.insert(call.vmaps[v].axis);
  }
  is_read_.resize(graph.values.size());
  for (const Call& call : graph.calls)
    for (const ValueId id : call.operands) is_read_[id] = true;
  for (const ValueId id : graph.results)
    if (id != kNoValue) is_read_[id] = true;
  std::fill(maker_.begin(), maker_.end(), graph.calls.size());
  joining_.most = thresholds().most_operations;
  for (size_t n = 0; n < graph.calls.size(); ++n) {
    const Call& call = graph.calls[n];
    Space space{{}, true};
    if (!call.vmaps.empty() && inner.count(call.vmaps[0].axis) == 0)
      space = {{static_cast<int64_t>(call.vmaps[0].axis), call.vmaps[0].batch_size}, false};
    joining_.spaces.push_back(space);
    joining_.costs.push_back(0);
    functions_.push_back(0);
    weights_.push_back(0);
    if (const auto cost = cost_of(n)) joining_.costs.back() = *cost;
    else joining_.spaces.back().reset();
    for (const ValueId id : call.results)
      if (id != kNoValue) maker_[id] = n;
  }
  joining_.reads_inside = [this](const Call& call, size_t k) {
    const ValueId id = call.operands[k];
    const size_t maker = maker_[id];
    if (is_stacked_operand(call, k)) return false;
    if (maker == graph_.calls.size()) return true;
    if (is_stacked_result(graph_.calls[maker], id)) return false;
    const uint64_t axis = axis_of(static_cast<size_t>(&call - graph_.calls.data())), made_over = axis_of(maker);
    const int64_t lane = seen(call, k, graph_.values[id].sizes.size(), axis).lane;
    const int64_t made = lane_of_results(graph_.calls[maker], made_over);
    return lane == made && (lane == kNoLane || axis == made_over);
  };
}

uint64_t Unrolled::axis_of(size_t call) const {
  const auto& space = joining_.spaces[call];
  return space && !space->any ? static_cast<uint64_t>(space->key[0]) : kNoAxis;
}

// Whether it factors matrices, or solves with factors: LibTorch calls LAPACK for each, which takes microseconds, and no
// elements are lanes to that.
bool Unrolled::factors(size_t call) const {
  const Operator& op = *graph_.calls[call].op;
  return op.depends == Depends::on_matrices && small_rule(op);
}

bool Unrolled::takes(size_t call) const {
  if (!joining_.spaces[call]) return false;
  if (factors(call)) return joining_.costs[call] <= joining_.most;
  return is_slow_call(*graph_.calls[call].op) || !graph_.calls[call].vmaps.empty() ||
         joining_.costs[call] <= most_of_one_lane(call);
}

// Without examples there is one lane. Where elements can be lanes, they are the better ones, unless there are few.
int64_t Unrolled::most_of_one_lane(size_t call) const {
  const Operator& op = *graph_.calls[call].op;
  return is_in_rows(op) || look_up_rule(op) ? thresholds().most_of_one_lane : thresholds().most_of_lone_call;
}

std::optional<int64_t> Unrolled::cost_of(size_t n) {
  const Call& call = graph_.calls[n];
  const Operator& op = *call.op;
  if (call.effect || call.opaque() || call.random() || call.operands.empty() ||
      (!is_known_in_numbers(op) && !code_in_numbers(op)))
    return std::nullopt;
  const uint64_t axis = axis_of(n);
  for (const Mapped& vmap : call.vmaps)
    if (vmap.batch_size == 0 && vmap.axis != axis) return std::nullopt;
  const CodeInNumbers* code = code_in_numbers(op);
  const int64_t most_of_lane = thresholds().most_of_lane;
  const int64_t most =
      axis != kNoAxis && factors(n) ? std::max(most_of_lane, thresholds().most_of_system) : most_of_lane;
  const auto fits = [&](const Value& v, int64_t lane, bool stacked) {
    return fits_lane(v, lane, stacked ? kMostStacked : code ? kMostOfLoop : most);
  };
  const int64_t made = lane_of_results(call, axis);
  bool leaves = false, read = false;
  for (const ValueId id : call.results) {
    if (id == kNoValue) continue;
    const Value& v = graph_.values[id];
    // What was not asked for is there without elements.
    if (!fits(v, made, is_stacked_result(call, id)) && (is_read_[id] || count(without(v.sizes, made)) > 0))
      return std::nullopt;
    leaves = leaves || leaves_[id];
    read = read || is_read_[id];
  }
  if (std::all_of(call.results.begin(), call.results.end(), [](ValueId id) { return id == kNoValue; }))
    return std::nullopt;
  if (!read && may_raise(graph_, call)) return std::nullopt;  // a kernel computes what is read
  // A view that leaves has to share memory, and so has a view of memory that is written to.
  if (gives_view(call) && (leaves || writes_)) return std::nullopt;

  Expressions trial;
  std::vector<Small> operands;
  for (size_t k = 0; k < call.operands.size(); ++k) {
    const Value& v = graph_.values[call.operands[k]];
    const int64_t lane = seen(call, k, v.sizes.size(), axis).lane;
    Small t{without(v.sizes, lane), {}, v.dtype, v.number};
    if (is_table(graph_, call, k, axis)) {
      t.ids.push_back(trial.input(*type_of(v.dtype), trial.size()));
      operands.push_back(std::move(t));
      continue;
    }
    if (!fits(v, lane, is_stacked_operand(call, k))) return std::nullopt;
    for (int64_t i = 0; i < count(t.sizes); ++i) t.ids.push_back(trial.input(*type_of(v.dtype), trial.size()));
    operands.push_back(std::move(t));
  }
  const Id first = trial.next_id();
  std::vector<const Small*> pointers;
  for (const Small& t : operands) pointers.push_back(&t);
  const SmallResults results = results_of_lane(trial, graph_, call, axis, pointers);
  if (results.size() != call.results.size()) return std::nullopt;
  // What is larger than a lane holds is not written out.
  const auto is_large = [&](const Small& t) { return std::ssize(t.ids) > most_of_lane; };
  if (!code && std::any_of(operands.begin(), operands.end(), is_large) && trial.systems().empty()) return std::nullopt;
  for (size_t k = 0; k < results.size(); ++k) {
    const ValueId id = call.results[k];
    if (id == kNoValue) continue;
    if (results[k].ids.empty() ? is_read_[id] : results[k].sizes != without(graph_.values[id].sizes, made))
      return std::nullopt;
  }
  for (const Id id : trial.ids(first)) functions_[n] += is_function(trial[id].op);
  if (code || trial.loops().size() > 0 || !trial.systems().empty()) functions_[n] += kOfLoop;
  const int64_t cost = plain(trial.next_id()) - plain(first);
  weights_[n] = cost;
  // A special function's formula is long for lanes that are elements, too.
  if (!has_small_form(op) && !code) {
    int64_t made = 0;
    for (const Small& t : results) made += static_cast<int64_t>(t.ids.size());
    weights_[n] = std::min(cost, made * thresholds().of_function);
  }
  return cost;
}

// ---- what lies between kernels ----

void Unrolled::settle(Graph& graph, std::vector<Regions::Calls>& groups) {
  if (groups.size() < 2) return;
  // Where there are writes, a call that is computed again would read what was written meanwhile.
  if (!writes_) {
    Costs costs;
    costs.operations = [this](size_t n) { return joining_.costs[n] + thresholds().of_function * functions_[n]; };
    costs.elements = [this](ValueId id) {
      const Value& v = graph_.values[id];
      const size_t maker = maker_[id];
      if (maker == graph_.calls.size()) return int64_t{0};
      return count(without(v.sizes, lane_of_results(graph_.calls[maker], axis_of(maker))));
    };
    costs.reads_inside = [this](size_t n, size_t k) { return joining_.reads_inside(graph_.calls[n], k); };
    const std::vector<size_t> origin = compute_again(graph, groups, costs);
    Joining joined = joining_;
    joined.spaces.clear();
    joined.costs.clear();
    for (const size_t n : origin) {
      joined.spaces.push_back(joining_.spaces[n]);
      joined.costs.push_back(joining_.costs[n]);
    }
    joining_ = std::move(joined);
  }
  lay_out_by_lanes(graph, groups);
}

void Unrolled::lay_out_by_lanes(Graph& graph, const std::vector<Regions::Calls>& groups) const {
  std::vector<bool> in_group(graph.calls.size());
  ById<ValueId, bool> elsewhere(graph.values.size());
  for (const auto& group : groups)
    for (const size_t n : group) in_group[n] = true;
  for (const ValueId id : graph.results)
    if (id != kNoValue) elsewhere[id] = true;
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (!in_group[n])
      for (const ValueId id : graph.calls[n].operands) elsewhere[id] = true;
  for (const auto& group : groups)
    for (const size_t n : group)
      for (const ValueId id : graph.calls[n].results) {
        const int64_t lane = lane_of_results(graph.calls[n], axis_of(n));
        if (id == kNoValue || elsewhere[id] || lane == kNoLane) continue;
        Value& v = graph.values[id];
        Places order;
        for (size_t d = 0; d < v.sizes.size(); ++d)
          if (static_cast<int64_t>(d) != lane) order.push_back(static_cast<int64_t>(d));
        order.push_back(lane);
        v.strides = strides_in_order(v.sizes, order);
      }
}

std::vector<size_t> Unrolled::sums_of(const std::vector<size_t>& calls) const {
  const auto with_lanes = std::find_if(calls.begin(), calls.end(), [&](size_t n) { return axis_of(n) != kNoAxis; });
  if (with_lanes == calls.end() ||
      graph_.calls[*with_lanes].vmaps[0].batch_size < std::max<int64_t>(thresholds().fewest_summed, 2))
    return {};
  std::unordered_map<ValueId, size_t> made;
  for (const size_t n : calls)
    for (const ValueId id : graph_.calls[n].results)
      if (id != kNoValue) made.emplace(id, n);
  std::vector<size_t> sums;
  for (size_t n = 0; n < graph_.calls.size(); ++n) {
    const Call& call = graph_.calls[n];
    if (!call.vmaps.empty() || call.effect || call.operands.size() != 1 || call.results.size() != 1) continue;
    const ValueId from = call.operands[0];
    if (call.results[0] == kNoValue || !made.count(from) || is_stacked_result(graph_.calls[made[from]], from)) continue;
    const Value &terms = graph_.values[from], &sum = graph_.values[call.results[0]];
    const int64_t lane = lane_of_results(graph_.calls[made[from]], axis_of(made[from]));
    if (lane == kNoLane || !is_summed_in_itself(terms.dtype) || sum.dtype != terms.dtype || !order_in_memory(sum) ||
        simple_fold(*call.op, call.args, *type_of(terms.dtype)) != SimpleFold::sum)
      continue;
    const auto dims = static_cast<int64_t>(terms.sizes.size());
    if (fold_rule(*call.op)->dims(call.args, dims) == std::vector<int64_t>{lane}) sums.push_back(n);
  }
  return sums;
}

bool Unrolled::are_worth_it(const std::vector<size_t>& calls, size_t fewest) const {
  if (!joining_.spaces[calls[0]]) return false;
  if (std::any_of(calls.begin(), calls.end(), [&](size_t n) { return code_in_numbers(*graph_.calls[n].op); }))
    return true;
  const bool has_lanes = std::any_of(calls.begin(), calls.end(), [&](size_t n) { return axis_of(n) != kNoAxis; });
  const auto most_of = [&](size_t n) { return has_lanes ? thresholds().most_of_call : most_of_one_lane(n); };
  bool same = true, computes = false, in_rows = true, has_matrices = false, is_slow = false;
  int64_t cost = 0, most = 0;
  const auto sizes = [&](size_t n) -> const Sizes& { return graph_.values[first_result(graph_.calls[n])].sizes; };
  for (const size_t n : calls) {
    const Operator& op = *graph_.calls[n].op;
    same = same && !has_small_form(op) && sizes(n) == sizes(calls[0]);
    computes = computes || op.moves == Moves::no;
    has_matrices = has_matrices || factors(n);
    is_slow = is_slow || is_slow_call(op);
    in_rows = in_rows && is_in_rows(op);
    cost += is_slow_call(op) ? std::min(weights_[n], most_of(n)) : weights_[n];
    most += most_of(n);
  }
  if (has_matrices && (has_lanes || calls.size() >= fewest)) return cost <= joining_.most;
  if (calls.size() < fewest && !is_slow) return false;
  if (fewest == 1) return has_lanes ? !same : !in_rows;
  // One example: where kernels of rows can be, elements are better lanes than numbers of one lane.
  return (has_lanes ? !same : !in_rows) && computes && cost <= most;
}

// ---- writing ----

namespace {

// A region and the kernel's operands while they are put together.
class LaneWriter {
 public:
  LaneWriter(const Graph& graph, uint64_t axis) : graph_(graph), axis_(axis) {}

  void add(const Call& call) {
    std::vector<const Small*> operands;
    for (size_t k = 0; k < call.operands.size(); ++k) {
      const auto found = made_.find(call.operands[k]);
      operands.push_back(found == made_.end() ? &outside(call, k) : &found->second);
    }
    SmallResults results = results_of_lane(region_.graph, graph_, call, axis_, operands);
    for (size_t k = 0; k < results.size(); ++k) {
      if (call.results[k] == kNoValue) continue;
      made_lane_.emplace(call.results[k], lane_of_results(call, axis_));
      made_.emplace(call.results[k], std::move(results[k]));
    }
  }

  LaneWritten give(ValueId id) {
    const Value& v = graph_.values[id];
    const Small& t = made_.at(id);
    region_.outputs.insert(region_.outputs.end(), t.ids.begin(), t.ids.end());
    Places order;
    for (size_t d = 0; d < v.sizes.size(); ++d) order.push_back(static_cast<int64_t>(d));
    if (const auto traced = order_in_memory(v)) order = *traced;
    LaneWritten written{{v.sizes, strides_in_order(v.sizes, order), v.dtype}, made_lane_.at(id), {}};
    for (const Sizes& place : places_in(t.sizes))
      written.offsets.push_back(offset_of(place, written.made.strides, written.lane));
    return written;
  }

  /// The sum over the lanes of what was added before.
  LaneWritten give_sum(ValueId id, ValueId of) {
    const Value& v = graph_.values[id];
    const Small& t = made_.at(of);
    region_.summed.resize(region_.outputs.size());
    region_.outputs.insert(region_.outputs.end(), t.ids.begin(), t.ids.end());
    region_.summed.resize(region_.outputs.size(), true);
    LaneWritten written{{v.sizes, strides_in_order(v.sizes, *order_in_memory(v)), v.dtype}, kNoLane, {}};
    // Where the dimension is kept, its only element is at zero.
    const int64_t kept = v.sizes.size() == t.sizes.size() ? kNoLane : made_lane_.at(of);
    for (const Sizes& place : places_in(t.sizes))
      written.offsets.push_back(offset_of(place, written.made.strides, kept));
    return written;
  }

  /// Removes from the region what no output needs. Gives what is left to read of each operand.
  std::vector<LaneRead> finish() {
    keep_reports(region_.graph, region_.outputs);
    const ById<Id, bool> needed = region_.graph.needed(region_.outputs);
    std::vector<std::vector<bool>> kept;
    for (const LaneRead& read : reads_) kept.emplace_back(read.elements.size());
    // Inputs in the order in which they are read from the operands.
    for (const Id id : region_.graph.ids())
      if (needed[id] && region_.graph[id].op == Op::input) {
        const auto [read, element] = inputs_[region_.graph[id].bits];
        kept[read][element] = true;
      }
    std::vector<uint64_t> number(inputs_.size());
    std::vector<Region::Input> inputs;
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (kept[inputs_[i].first][inputs_[i].second]) {
        number[i] = inputs.size();
        inputs.push_back(region_.inputs[i]);
      }
    region_.graph = region_.graph.pruned(region_.outputs, number);
    region_.inputs = std::move(inputs);
    std::vector<LaneRead> reads;
    for (size_t r = 0; r < reads_.size(); ++r) {
      LaneRead read{reads_[r].operand, reads_[r].lane, reads_[r].strides, {}, {}, reads_[r].table};
      for (size_t e = 0; e < kept[r].size(); ++e) {
        if (!kept[r][e]) continue;
        read.elements.push_back(reads_[r].elements[e]);
        read.offsets.push_back(reads_[r].offsets[e]);
      }
      if (!read.elements.empty()) reads.push_back(std::move(read));
    }
    return reads;
  }

  Region& region() { return region_; }
  std::vector<ValueId> operands;

 private:
  const Small& outside(const Call& call, size_t k) {
    const ValueId id = call.operands[k];
    const Value& v = graph_.values[id];
    const int64_t lane = seen(call, k, v.sizes.size(), axis_).lane;
    const bool stacked = is_stacked_operand(call, k);
    const auto [entry, is_new] = read_.try_emplace({id, lane, stacked});
    Small& t = entry->second;
    if (!is_new) return t;
    t = {without(v.sizes, lane), {}, v.dtype, v.number};
    const Type type = *type_of(v.dtype);
    const bool table = is_table(graph_, call, k, axis_);
    // What steps read of their own is in memory.
    if (!table && (!stacked || same_everywhere(v)) && add_constant(region_.graph, v, lane, t)) return t;
    const auto operand = std::find(operands.begin(), operands.end(), id);
    // A table has one element: all of it.
    LaneRead read{static_cast<size_t>(operand - operands.begin()),
                  lane,
                  v.strides,
                  table ? std::vector<Sizes>{Sizes(v.sizes.size(), 0)} : places_in(t.sizes),
                  {},
                  table};
    if (operand == operands.end()) operands.push_back(id);
    for (const Sizes& place : read.elements) {
      read.offsets.push_back(offset_of(place, v.strides, lane));
      t.ids.push_back(region_.graph.input(type, inputs_.size()));
      inputs_.emplace_back(reads_.size(), read.offsets.size() - 1);
      region_.inputs.push_back({type, lane == kNoLane});
    }
    reads_.push_back(std::move(read));
    return t;
  }

  const Graph& graph_;
  const uint64_t axis_;
  Region region_;
  std::vector<LaneRead> reads_;
  std::vector<std::pair<size_t, size_t>> inputs_;  // of each input: which of the reads, and which element
  std::unordered_map<ValueId, Small> made_;
  std::unordered_map<ValueId, int64_t> made_lane_;
  std::map<std::tuple<ValueId, int64_t, bool>, Small> read_;  // by lane, and whether it is stacked
};

}  // namespace

Call Unrolled::write(const std::vector<size_t>& calls, const std::vector<size_t>& summed, const Readers& readers,
                     Kernels& kernels, std::vector<Fused>& report) const {
  uint64_t axis = kNoAxis;
  int64_t lanes = 1;
  for (const size_t n : calls) {
    if (axis_of(n) == kNoAxis) continue;
    axis = axis_of(n);
    lanes = graph_.calls[n].vmaps[0].batch_size;
  }
  LaneWriter writer(graph_, axis);
  Fused fused;
  std::unordered_map<ValueId, ValueId> sums;  // of what
  for (const size_t n : calls) {
    const Call& call = graph_.calls[n];
    fused.operators.push_back(call.op->name());
    if (std::binary_search(summed.begin(), summed.end(), n)) sums.emplace(call.results[0], call.operands[0]);
    else writer.add(call);
  }
  const std::vector<ValueId> results = readers.elsewhere(calls);
  std::vector<LaneWritten> written;
  for (const ValueId id : results) {
    const auto sum = sums.find(id);
    written.push_back(sum == sums.end() ? writer.give(id) : writer.give_sum(id, sum->second));
  }
  std::vector<LaneRead> reads = writer.finish();
  // One lane is better computed as single numbers; but where there is a kernel for many alone, it will do.
  writer.region().single = true;
  if (axis != kNoAxis && (lanes != 1 || !kernels.knows(writer.region()))) {
    writer.region().single = false;
    writer.region().single = lanes == 1 && !kernels.knows(writer.region());
  }
  fused.kernel = kernels.get(writer.region());
  fused.lanes = lanes;
  report.push_back(fused);
  auto op = lane_kernel(fused.kernel, lanes, std::move(reads), std::move(written));
  return KernelOperator::call_of(std::move(op), graph_, std::move(writer.operands), results, fused.operators);
}

}  // namespace tower::compiler
