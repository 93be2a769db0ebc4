#include "fuse/unrolled.h"

#include <algorithm>

#include "fuse/lane_kernel.h"
#include "fuse/recompute.h"
#include "graph/raises.h"
#include "kernels/compile_error.h"
#include "numbers/fold.h"
#include "numbers/look_up.h"
#include "numbers/slow_calls.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

constexpr int64_t kOfLoop = 10000;      // functions that its steps stand for: it is not computed again
constexpr int64_t kCountsOfKernel = 4;  // times what one may have, that are counted together

// Elements of a matrix that is solved with outside of the process. Each is a load of its own, for which an export of
// the largest took 1.6 s with many examples and 2.2 s with one; and the stack has the matrix: of vectors of examples,
// 150 KB where they have 64 bytes; of one example, 33 KB.
constexpr int64_t kMostOfMatrix = 2304, kMostOfLoneMatrix = 4096;

// Whether elements, or rows of them, can be the lanes of a kernel as they lie.
bool is_in_rows(const Operator& op) {
  return !has_small_form(op) || fold_rule(op) || op.moves == Moves::broadcast || op.moves == Moves::in_order ||
         op.moves == Moves::nothing;
}

}  // namespace

// ---- what can be in a region ----

Unrolled::Unrolled(const Graph& graph, int64_t most_operations, bool is_outside)
    : graph_(graph),
      is_outside_(is_outside),
      axes_(graph),
      leaves_(values_that_leave(graph)),
      maker_(graph.values.size()) {
  for (const Call& call : graph.calls) writes_ = writes_ || call.effect;
  is_read_.resize(graph.values.size());
  for (const Call& call : graph.calls)
    for (const ValueId id : call.operands) is_read_[id] = true;
  for (const ValueId id : graph.results)
    if (id != kNoValue) is_read_[id] = true;
  std::fill(maker_.begin(), maker_.end(), graph.calls.size());
  joining_.most = most_operations;
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
  for (size_t n = 0; n < graph.calls.size(); ++n) {
    const Call& call = graph.calls[n];
    const Mapped* lanes = axes_.of(call);
    joining_.spaces.push_back(lanes ? Space{{static_cast<int64_t>(lanes->axis), lanes->batch_size}} : Space{{}, true});
    joining_.costs.push_back(0);
    functions_.push_back(0);
    weights_.push_back(0);
    if (const auto cost = cost_of(n)) joining_.costs.back() = *cost;
    else joining_.spaces.back().reset();
    for (const ValueId id : call.results)
      if (id != kNoValue) maker_[id] = n;
  }
  counted_.clear();
}

uint64_t Unrolled::axis_of(size_t call) const {
  const auto& space = joining_.spaces[call];
  return space && !space->any ? static_cast<uint64_t>(space->key[0]) : kNoAxis;
}
int64_t Unrolled::lanes_of(size_t call) const { return axis_of(call) == kNoAxis ? 1 : joining_.spaces[call]->key[1]; }

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

// Elements of a matrix that a lane factors, or solves with.
int64_t Unrolled::most_of_matrix(uint64_t axis) const {
  const int64_t most_of_lane = thresholds().most_of_lane;
  if (is_outside_) return axis == kNoAxis ? kMostOfLoneMatrix : kMostOfMatrix;
  return axis == kNoAxis ? most_of_lane : std::max(most_of_lane, thresholds().most_of_system);
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
  const int64_t most = factors(n) ? most_of_matrix(axis) : most_of_lane;
  const auto fits = [&](const Value& v, int64_t lane, bool stacked) {
    // What directions have in common is a constant.
    const bool may_be_large = code || (axes_.is_inside(axis) && is_constant_of_lanes(v, lane));
    return fits_lane(v, lane, stacked ? kMostStacked : may_be_large ? kMostOfLoop : most);
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
  bool is_large = false;
  for (size_t k = 0; k < call.operands.size(); ++k) {
    const Value& v = graph_.values[call.operands[k]];
    const int64_t lane = seen(call, k, v.sizes.size(), axis).lane;
    if (dims_of_tables(graph_, call, k, axis)) continue;
    if (!fits(v, lane, is_stacked_operand(call, k))) return std::nullopt;
    is_large = is_large || (factors(n) && count(without(v.sizes, lane)) > most_of_lane);
  }

  // What was counted long ago is in other kernels.
  if (const auto found = counted_.find(axis);
      found != counted_.end() && plain(found->second.region().graph.next_id()) > kCountsOfKernel * joining_.most)
    counted_.erase(found);
  LaneWriter alone(graph_, axis);
  LaneWriter& trial = axes_.is_inside(axis) ? counted_.try_emplace(axis, graph_, axis).first->second : alone;
  if (!trial.add(call)) return std::nullopt;
  const LaneWriter::Added& added = trial.added();
  // What is larger than a lane holds is not written out, unless nobody else has it.
  if (!code && is_large && !added.systems && !is_outside_) return std::nullopt;
  if (code && axis == kNoAxis && added.operations > thresholds().most_of_lone_loop) return std::nullopt;
  int64_t elements = 0;
  for (const ValueId id : call.results) {
    if (id == kNoValue) continue;
    const Small& result = trial.made(id);
    if (result.ids.empty() ? is_read_[id] : result.sizes != without(graph_.values[id].sizes, made)) return std::nullopt;
    elements += std::ssize(result.ids);
  }
  functions_[n] = added.functions + (code || added.loops || added.systems ? kOfLoop : 0);
  // A special function's formula is long for lanes that are elements, too.
  weights_[n] =
      has_small_form(op) || code ? added.operations : std::min(added.operations, elements * thresholds().of_function);
  return added.operations;
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
    renumber(compute_again(graph, groups, costs));
  }
  lay_out_by_lanes(graph, groups);
}

void Unrolled::renumber(const std::vector<size_t>& origin) {
  Joining joined = joining_;
  joined.spaces.clear();
  joined.costs.clear();
  for (const size_t n : origin) {
    joined.spaces.push_back(joining_.spaces[n]);
    joined.costs.push_back(joining_.costs[n]);
  }
  joining_ = std::move(joined);
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
  if (with_lanes == calls.end() || lanes_of(*with_lanes) < std::max<int64_t>(thresholds().fewest_summed, 2)) return {};
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

bool Unrolled::are_worth_it(const std::vector<size_t>& calls, Worth worth) const {
  const size_t fewest = worth == Worth::joined ? 2 : 1;
  if (!joining_.spaces[calls[0]]) return false;
  if (std::any_of(calls.begin(), calls.end(), [&](size_t n) { return code_in_numbers(*graph_.calls[n].op); }))
    return true;
  const bool has_lanes = std::any_of(calls.begin(), calls.end(), [&](size_t n) { return axis_of(n) != kNoAxis; });
  // Examples that directions are around are lanes where directions are computed; elsewhere elements are.
  const auto has_no_directions = [&](size_t n) { return lane_of_results(graph_.calls[n], axis_of(n)) <= 0; };
  const auto is_inside = [&](size_t n) { return axes_.is_inside(axis_of(n)); };
  if (std::any_of(calls.begin(), calls.end(), is_inside) && std::all_of(calls.begin(), calls.end(), has_no_directions))
    return false;
  const auto most_of = [&](size_t n) { return has_lanes ? thresholds().most_of_call : most_of_one_lane(n); };
  bool same = true, computes = false, in_rows = true, has_small_forms = false, has_matrices = false, is_slow = false;
  int64_t cost = 0, most = 0;
  // From the lanes on: what is the same along all directions is not of another size.
  const auto sizes = [&](size_t n) {
    const Sizes& all = graph_.values[first_result(graph_.calls[n])].sizes;
    return Sizes(all.begin() + std::max<int64_t>(lane_of_results(graph_.calls[n], axis_of(n)), 0), all.end());
  };
  for (const size_t n : calls) {
    const Operator& op = *graph_.calls[n].op;
    has_small_forms = has_small_forms || has_small_form(op);
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
  // One example: where kernels of rows can be, elements are better lanes than numbers of one lane.
  if (has_lanes ? same : in_rows) return false;
  if (worth == Worth::all || worth == Worth::outside) return !has_lanes || has_small_forms || cost <= most;
  return (computes || worth == Worth::any) && cost <= most;
}

Call Unrolled::write(const std::vector<size_t>& calls, const std::vector<size_t>& summed, const Readers& readers,
                     Kernels& kernels, std::vector<Fused>& report) const {
  uint64_t axis = kNoAxis;
  int64_t lanes = 1;
  for (const size_t n : calls) {
    if (axis_of(n) == kNoAxis) continue;
    axis = axis_of(n);
    lanes = lanes_of(n);
  }
  LaneWriter writer(graph_, axis);
  Fused fused;
  std::unordered_map<ValueId, ValueId> sums;  // of what
  for (const size_t n : calls) {
    const Call& call = graph_.calls[n];
    fused.operators.push_back(call.op->name());
    if (std::binary_search(summed.begin(), summed.end(), n)) sums.emplace(call.results[0], call.operands[0]);
    else if (!writer.add(call)) throw CompileError("no kernel computes " + call.op->name());
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
