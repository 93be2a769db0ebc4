// Read `fuse` at the end first. It puts each call into a group of its own, joins groups of pointwise calls where one
// reads the other lane by lane (Groups::join), puts the groups in order, and writes a call of a kernel for each group
// of several calls (Writer).
#include "compile/fuse.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/copy.h>

#include <algorithm>
#include <cstdio>
#include <queue>
#include <set>
#include <unordered_set>

#include "compile/element.h"

namespace tower::compiler {
namespace {

constexpr size_t kMostCalls = 1000;   // in a region
constexpr int64_t kShortestRow = 32;  // for which a kernel is started anew

// ---- how a call's lanes read an operand ----

// Where each dimension of the results is in the operand's; −1 where the operand repeats.
using Places = c10::SmallVector<int64_t, 6>;

// The dimensions of the vmaps come first in the results, in order; what one example has is aligned at the end.
Places places_of(const Call& call, size_t operand, int64_t operand_dims, int64_t result_dims) {
  c10::SmallVector<int64_t, 6> left;
  for (int64_t d = 0; d < operand_dims; ++d) left.push_back(d);
  Places places;
  for (const Mapped& vmap : call.vmaps) {
    const int64_t d = vmap.dims[operand];
    places.push_back(d == Mapped::kUnmapped ? -1 : left[static_cast<size_t>(d)]);
    if (d != Mapped::kUnmapped) left.erase(left.begin() + d);
  }
  while (static_cast<int64_t>(places.size() + left.size()) < result_dims) places.push_back(-1);
  places.append(left.begin(), left.end());
  return places;
}

bool one_for_one(const Places& places, const Sizes& operand, const Sizes& lanes) {
  if (operand != lanes) return false;
  for (size_t d = 0; d < places.size(); ++d)
    if (places[d] != static_cast<int64_t>(d) && lanes[d] != 1) return false;
  return true;
}

int64_t count(const Sizes& sizes) {
  int64_t n = 1;
  for (const int64_t s : sizes) n *= s;
  return n;
}

// The order of dimensions in which a tensor lies in memory without gaps; none if it lies otherwise.
std::optional<Places> order_in_memory(const Value& v) {
  Places order;
  for (size_t d = 0; d < v.sizes.size(); ++d) order.push_back(static_cast<int64_t>(d));
  if (count(v.sizes) == 0) return order;
  const auto stride = [&](int64_t d) { return v.strides[static_cast<size_t>(d)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return stride(a) > stride(b); });
  int64_t expected = 1;
  for (size_t k = order.size(); k-- > 0;) {
    const auto d = static_cast<size_t>(order[k]);
    if (v.sizes[d] != 1 && v.strides[d] != expected) return std::nullopt;
    expected *= v.sizes[d];
  }
  return order;
}

// What lies in memory in this order.
Sizes strides_in_order(const Sizes& sizes, const Places& order) {
  Sizes strides(sizes.size(), 1);
  int64_t next = 1;
  for (size_t k = order.size(); k-- > 0;) {
    strides[static_cast<size_t>(order[k])] = next;
    next *= std::max<int64_t>(sizes[static_cast<size_t>(order[k])], 1);
  }
  return strides;
}

template <class T>
T ordered(const T& of_dimensions, const Places& order) {
  T result;
  for (const int64_t d : order) result.push_back(of_dimensions[static_cast<size_t>(d)]);
  return result;
}

// ---- kernels as operators ----

// What a kernel is given for each of its inputs.
struct Reading {
  size_t operand;
  Places places;
  bool repeated;  // one element for each row of lanes
  bool laid_out;  // first written out with all lanes: its rows would be too short
};

// A tensor that it writes: without gaps, in the order of the lanes, and how it was traced.
struct Written {
  Sizes sizes, strides, wanted;
  at::ScalarType dtype;
};

// A kernel as an operator of lists of tensors, plain ones.
class KernelOperator final : public Operator {
 public:
  KernelOperator(std::shared_ptr<const Kernel> kernel, std::vector<Reading> readings, Sizes lanes, size_t outer,
                 std::vector<Written> results)
      : Operator("tower::kernel", c10::FunctionSchema("tower::kernel", "", {list("operands")}, {list("results")})),
        kernel_(std::move(kernel)),
        readings_(std::move(readings)),
        lanes_(std::move(lanes)),
        outer_(outer),
        results_(std::move(results)) {
    rows_.lanes = 1;
    for (size_t d = 0; d < lanes_.size(); ++d) {
      if (d < outer_) rows_.sizes.push_back(lanes_[d]);
      else rows_.lanes *= lanes_[d];
    }
  }

  void call(Stack& stack) const override {
    const c10::List<Tensor> operands = stack[0].toTensorList();
    Kernel::Rows rows = rows_;
    c10::SmallVector<Tensor, 8> held;
    c10::SmallVector<const void*, 8> from;
    for (const Reading& reading : readings_) {
      auto [t, strides] = as_read(operands.get(reading.operand), reading);
      from.push_back(t.const_data_ptr());
      held.push_back(std::move(t));
      if (outer_) rows.strides.emplace_back(strides.begin(), strides.begin() + static_cast<int64_t>(outer_));
    }
    c10::List<Tensor> results;
    c10::SmallVector<void*, 4> to;
    for (const Written& result : results_) {
      Tensor t = at::detail::empty_strided_cpu(result.sizes, result.strides, result.dtype);
      to.push_back(t.mutable_data_ptr());
      results.push_back(std::move(t));
    }
    if (std::find(lanes_.begin(), lanes_.end(), 0) == lanes_.end()) kernel_->run(rows, from, to);
    for (size_t k = 0; k < results_.size(); ++k)
      if (results_[k].wanted != results_[k].strides) results.set(k, in_wanted_order(results.get(k), results_[k]));
    stack.assign(1, IValue(std::move(results)));
  }

 private:
  static Tensor in_wanted_order(const Tensor& t, const Written& result) {
    const Tensor made = at::detail::empty_strided_cpu(result.sizes, result.wanted, result.dtype);
    return made.copy_(t);
  }
  static c10::Argument list(const char* name) { return c10::Argument(name, c10::ListType::ofTensors()); }

  Sizes strides_of(const Tensor& t, const Places& places) const {
    Sizes strides;
    for (const int64_t d : places) strides.push_back(d < 0 || t.size(d) == 1 ? 0 : t.stride(d));
    return strides;
  }

  // The operand, or a copy of it, whose rows can be read; and its strides over all lanes.
  std::pair<Tensor, Sizes> as_read(Tensor t, const Reading& reading) const {
    Sizes strides = strides_of(t, reading.places);
    if (reading.laid_out) {
      t = t.as_strided(lanes_, strides).contiguous();
      return {t, Sizes(t.strides())};
    }
    if (reading.repeated || rows_are_whole(strides)) return {std::move(t), std::move(strides)};
    // In the order in which it is read.
    c10::SmallVector<int64_t, 6> order;
    for (const int64_t d : reading.places)
      if (d >= 0) order.push_back(d);
    t = t.permute(order).contiguous();
    Places places = reading.places;
    int64_t next = 0;
    for (int64_t& d : places)
      if (d >= 0) d = next++;
    return {t, strides_of(t, places)};
  }

  // Whether the lanes of a row lie next to each other.
  bool rows_are_whole(const Sizes& strides) const {
    int64_t expected = 1;
    for (size_t d = lanes_.size(); d-- > outer_;) {
      if (lanes_[d] != 1 && strides[d] != expected) return false;
      expected *= lanes_[d];
    }
    return true;
  }

  std::shared_ptr<const Kernel> kernel_;
  std::vector<Reading> readings_;
  Sizes lanes_;
  size_t outer_;  // dimensions of rows; the others are the lanes in one
  std::vector<Written> results_;
  Kernel::Rows rows_;
};

// ---- what can be computed in a kernel ----

struct Pointwise {
  const Graph& graph;

  const Value& value(ValueId id) const { return graph.values[static_cast<size_t>(id)]; }
  const Sizes& lanes(const Call& call) const { return value(call.results[0]).sizes; }

  bool fits(const Value& v) const { return v.device.is_cpu() && type_of(v.dtype).has_value(); }

  /// Whether a kernel can compute the call.
  bool serves(const Call& call) const {
    if (call.effect || call.opaque() || call.random() || !element_rule(*call.op) || call.results.empty()) return false;
    for (const ValueId id : call.results)
      if (id == kNoValue || !fits(value(id)) || value(id).sizes != lanes(call) || !order_in_memory(value(id)))
        return false;
    for (const ValueId id : call.operands)
      if (!fits(value(id))) return false;
    // The rule may have something against the attributes.
    Expressions trial;
    return !elements_of(trial, call, [&](size_t k) {
              return trial.input(*type_of(value(call.operands[k]).dtype), k);
            }).empty();
  }

  /// The elements of a call's results; `element(k)`: that of operand k.
  template <class F>
  std::vector<Id> elements_of(Expressions& expressions, const Call& call, F element) const {
    std::vector<ElementArgument> arguments(call.args.size());
    for (size_t k = 0; k < call.operands.size(); ++k) {
      const Value& v = value(call.operands[k]);
      int64_t dims = static_cast<int64_t>(v.sizes.size());
      for (const Mapped& vmap : call.vmaps) dims -= vmap.dims[k] != Mapped::kUnmapped;
      arguments[call.places[k].arg] = {element(k), v.dtype, dims == 0, v.number};
    }
    std::vector<at::ScalarType> results;
    for (const ValueId id : call.results) results.push_back(value(id).dtype);
    return elements(expressions, *call.op, call.args, arguments, results);
  }

  Places places(const Call& call, size_t k) const {
    return places_of(call, k, static_cast<int64_t>(value(call.operands[k]).sizes.size()),
                     static_cast<int64_t>(lanes(call).size()));
  }
  bool reads_lane_by_lane(const Call& call, size_t k) const {
    return one_for_one(places(call, k), value(call.operands[k]).sizes, lanes(call));
  }
};

// ---- groups of calls ----

class Groups {
 public:
  explicit Groups(const Graph& graph) : graph_(graph), pointwise_{graph}, maker_(graph.values.size(), kNobody) {
    int epoch = 0;
    size_t last_ordered = kNobody;
    for (size_t n = 0; n < graph.calls.size(); ++n) {
      const Call& call = graph.calls[n];
      // What is read before a write to memory is read before it, and what after, after.
      epoch += call.effect;
      groups_.push_back({{n}, {}, epoch, pointwise_.serves(call)});
      of_.push_back(n);
      epoch += call.effect;
      for (const ValueId id : call.operands)
        if (maker_[static_cast<size_t>(id)] != kNobody) groups_[n].reads.insert(maker_[static_cast<size_t>(id)]);
      // Calls that draw random numbers, and those of unknown code, go on to follow each other.
      if (call.effect || call.random() || call.opaque()) {
        if (last_ordered != kNobody) groups_[n].reads.insert(last_ordered);
        last_ordered = n;
      }
      for (const ValueId id : call.results)
        if (id != kNoValue) maker_[static_cast<size_t>(id)] = n;
      if (groups_[n].pointwise) join_what_is_read(n);
    }
  }

  bool is_pointwise(const std::vector<size_t>& calls) { return groups_[root(calls[0])].pointwise; }

  /// In an order in which each finds what it reads; the calls of each in the graph's order.
  std::vector<std::vector<size_t>> in_order() {
    std::vector<size_t> waits_for(groups_.size(), 0);
    std::vector<std::vector<size_t>> read_by(groups_.size());
    using Place = std::tuple<int, size_t, size_t>;  // epoch, first call, group
    std::priority_queue<Place, std::vector<Place>, std::greater<>> ready;
    const auto place = [&](size_t g) { return Place(groups_[g].epoch, groups_[g].calls.front(), g); };
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (root(g) != g) continue;
      std::sort(groups_[g].calls.begin(), groups_[g].calls.end());
      const std::set<size_t> reads = roots(groups_[g].reads);
      waits_for[g] = reads.size();
      for (const size_t r : reads) read_by[r].push_back(g);
      if (reads.empty()) ready.push(place(g));
    }
    std::vector<std::vector<size_t>> ordered;
    while (!ready.empty()) {
      const size_t g = std::get<2>(ready.top());
      ready.pop();
      ordered.push_back(groups_[g].calls);
      for (const size_t reader : read_by[g])
        if (--waits_for[reader] == 0) ready.push(place(reader));
    }
    return ordered;
  }

 private:
  static constexpr size_t kNobody = static_cast<size_t>(-1);
  struct Group {
    std::vector<size_t> calls;
    std::set<size_t> reads;  // groups, as they were numbered then
    int epoch;
    bool pointwise;
  };

  size_t root(size_t g) {
    while (of_[g] != g) g = of_[g] = of_[of_[g]];
    return g;
  }
  std::set<size_t> roots(const std::set<size_t>& groups) {
    std::set<size_t> result;
    for (const size_t g : groups) result.insert(root(g));
    return result;
  }

  void join_what_is_read(size_t n) {
    const Call& call = graph_.calls[n];
    for (size_t k = 0; k < call.operands.size(); ++k) {
      if (!pointwise_.reads_lane_by_lane(call, k)) continue;
      const auto id = static_cast<size_t>(call.operands[k]);
      if (maker_[id] != kNobody) join(maker_[id], n);
      // A neighbour that reads the same.
      const auto [neighbour, is_first] = reader_.try_emplace(id, n);
      if (!is_first) join(neighbour->second, n);
      neighbour->second = n;
    }
  }

  void join(size_t a, size_t b) {
    a = root(a);
    b = root(b);
    if (a == b) return;
    Group &first = groups_[a], &second = groups_[b];
    if (!first.pointwise || !second.pointwise || first.epoch != second.epoch ||
        first.calls.size() + second.calls.size() > kMostCalls ||
        pointwise_.lanes(graph_.calls[first.calls[0]]) != pointwise_.lanes(graph_.calls[second.calls[0]]) ||
        reaches(b, a) || reaches(a, b))
      return;
    first.calls.insert(first.calls.end(), second.calls.begin(), second.calls.end());
    first.reads.insert(second.reads.begin(), second.reads.end());
    of_[b] = a;
    first.reads = roots(first.reads);
    first.reads.erase(a);
  }

  // Whether `from` reads `to` by way of others: joined, they would wait for these, and these for them.
  bool reaches(size_t from, size_t to) {
    std::vector<bool> seen(groups_.size());
    std::vector<size_t> open;
    for (const size_t r : roots(groups_[from].reads))
      if (r != to) open.push_back(r);
    while (!open.empty()) {
      const size_t g = open.back();
      open.pop_back();
      if (g == to) return true;
      if (seen[g]) continue;
      seen[g] = true;
      for (const size_t r : groups_[g].reads) open.push_back(root(r));
    }
    return false;
  }

  const Graph& graph_;
  const Pointwise pointwise_;
  std::vector<Group> groups_;
  std::vector<size_t> of_;
  std::vector<size_t> maker_;                  // of each value: the call
  std::unordered_map<size_t, size_t> reader_;  // of a value, lane by lane: the last call
};

// ---- writing ----

class Writer {
 public:
  Writer(const Graph& graph, Kernels& kernels) : graph_(graph), pointwise_{graph}, kernels_(kernels) {
    uses_.resize(graph.values.size(), 0);
    for (const Call& call : graph.calls)
      for (const ValueId id : call.operands) ++uses_[static_cast<size_t>(id)];
    for (const ValueId id : graph.results) ++uses_[static_cast<size_t>(id)];
  }

  Call write(const std::vector<size_t>& calls, std::vector<Fused>& report) {
    Region region;
    std::vector<Reading> readings;
    Call result;
    std::unordered_map<ValueId, Id> made;
    std::vector<std::pair<std::pair<ValueId, Places>, Id>> read;
    result.results = read_elsewhere(calls);
    // Lanes are in the order in which what leaves lies in memory.
    const Value& model = pointwise_.value(result.results.at(0));
    const Places order = *order_in_memory(model);
    const Sizes lanes = ordered(model.sizes, order);
    const size_t outer = outer_dimensions(calls, lanes, order);

    // The element of a value from outside.
    const auto outside = [&](const Call& call, size_t k) {
      const ValueId id = call.operands[k];
      const Value& v = pointwise_.value(id);
      const Type type = *type_of(v.dtype);
      if (v.origin == Origin::constant && count(v.sizes) == 1) {
        const at::Scalar number = v.tensor.item();
        return number.isFloatingPoint() ? region.graph.constant(type, number.toDouble())
                                        : region.graph.constant(type, number.toLong());
      }
      const std::pair key(id, ordered(pointwise_.places(call, k), order));
      for (const auto& [known, element] : read)
        if (known == key) return element;
      const Row row = row_of(v.sizes, key.second, lanes, outer);
      const auto operand = std::find(result.operands.begin(), result.operands.end(), id);
      readings.push_back({static_cast<size_t>(operand - result.operands.begin()), key.second, row == Row::repeated,
                          row == Row::mixed});
      if (operand == result.operands.end()) result.operands.push_back(id);
      const Id element = region.graph.input(type, region.inputs.size());
      region.inputs.push_back({type, row == Row::repeated});
      read.emplace_back(key, element);
      return element;
    };
    Fused fused;
    for (const size_t n : calls) {
      const Call& call = graph_.calls[n];
      const std::vector<Id> ids = pointwise_.elements_of(region.graph, call, [&](size_t k) {
        const auto it = made.find(call.operands[k]);
        return it == made.end() ? outside(call, k) : it->second;
      });
      for (size_t k = 0; k < ids.size(); ++k) made.emplace(call.results[k], ids[k]);
      fused.operators.push_back(call.op->name());
    }
    std::vector<Written> written;
    for (const ValueId id : result.results) {
      const Value& v = pointwise_.value(id);
      region.outputs.push_back(made.at(id));
      written.push_back(
          {v.sizes, strides_in_order(v.sizes, order), strides_in_order(v.sizes, *order_in_memory(v)), v.dtype});
    }
    fused.kernel = kernels_.get(region);
    fused.lanes = count(lanes);
    auto op = c10::make_intrusive<KernelOperator>(fused.kernel, std::move(readings), lanes, outer, std::move(written));
    report.push_back(std::move(fused));

    c10::List<Tensor> holes;
    const Tensor hole = at::detail::empty_cpu({0}, at::kFloat);
    for (size_t k = 0; k < result.operands.size(); ++k) {
      holes.push_back(hole);
      result.places.push_back({0, static_cast<uint16_t>(k)});
    }
    result.args.assign(1, IValue(std::move(holes)));
    result.op = result.bound = op.get();
    result.owner = std::move(op);
    return result;
  }

 private:
  // How an operand goes along with the lanes of a row.
  enum class Row : uint8_t { whole, repeated, mixed };
  static Row row_of(const Sizes& sizes, const Places& places, const Sizes& lanes, size_t outer) {
    bool varies = false, repeats = false;
    for (size_t d = outer; d < lanes.size(); ++d) {
      if (lanes[d] == 1) continue;
      const bool has = places[d] >= 0 && sizes[static_cast<size_t>(places[d])] != 1;
      (has ? varies : repeats) = true;
    }
    return varies && repeats ? Row::mixed : repeats ? Row::repeated : Row::whole;
  }

  // What the calls give and somebody else reads.
  std::vector<ValueId> read_elsewhere(const std::vector<size_t>& calls) const {
    std::unordered_map<ValueId, size_t> here;
    for (const size_t n : calls)
      for (const ValueId id : graph_.calls[n].operands) ++here[id];
    std::vector<ValueId> ids;
    for (const size_t n : calls)
      for (const ValueId id : graph_.calls[n].results)
        if (uses_[static_cast<size_t>(id)] > here[id]) ids.push_back(id);
    // Nobody reads anything: what is computed last stands for it.
    if (ids.empty()) ids.push_back(graph_.calls[calls.back()].results[0]);
    return ids;
  }

  // As few dimensions of rows as will do for rows in which no operand is mixed; none, if the rows would be short.
  size_t outer_dimensions(const std::vector<size_t>& calls, const Sizes& lanes, const Places& order) const {
    size_t outer = 0;
    std::unordered_set<ValueId> made;
    for (const size_t n : calls) {
      const Call& call = graph_.calls[n];
      for (size_t k = 0; k < call.operands.size(); ++k) {
        const ValueId id = call.operands[k];
        if (made.count(id)) continue;
        const Places places = ordered(pointwise_.places(call, k), order);
        while (row_of(pointwise_.value(id).sizes, places, lanes, outer) == Row::mixed) ++outer;
      }
      made.insert(call.results.begin(), call.results.end());
    }
    int64_t row = 1;
    for (size_t d = outer; d < lanes.size(); ++d) row *= lanes[d];
    return row >= kShortestRow ? outer : 0;
  }

  const Graph& graph_;
  const Pointwise pointwise_;
  Kernels& kernels_;
  std::vector<size_t> uses_;
};

// A region's text: equal for equal kernels.
std::string text_of(const Region& region) {
  std::string text = region.graph.print(region.outputs);
  for (const Region::Input& input : region.inputs) text += input.repeated ? 'r' : 'l';
  for (const Id id : region.outputs) text += " " + std::to_string(id);
  return text;
}

}  // namespace

std::shared_ptr<const Kernel> Kernels::get(const Region& region) {
  const std::lock_guard lock(mutex_);
  std::string text = text_of(region);
  if (const auto found = known_.find(text); found != known_.end())
    if (auto kernel = found->second.lock()) return kernel;
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  auto kernel = std::make_shared<const Kernel>(region);
  known_.emplace(std::move(text), kernel);
  return kernel;
}

FusedGraph fuse(const Graph& graph, Kernels& kernels, size_t fewest) {
  FusedGraph fused{graph, {}};
  fused.graph.calls.clear();
  Writer writer(graph, kernels);
  Groups groups(graph);
  for (const std::vector<size_t>& calls : groups.in_order()) {
    if (calls.size() >= fewest && groups.is_pointwise(calls))
      fused.graph.calls.push_back(writer.write(calls, fused.kernels));
    else
      for (const size_t n : calls) fused.graph.calls.push_back(graph.calls[n]);
  }
  return fused;
}

std::string FusedGraph::report() const {
  std::string text;
  char line[256];
  for (size_t n = 0; n < kernels.size(); ++n) {
    const Fused& k = kernels[n];
    const Kernel::Facts& facts = k.kernel->facts();
    std::snprintf(line, sizeof line,
                  "kernel %zu: %zu operators, %lld lanes, %d instructions for %lld lanes, %lld bytes a lane, %.1f ms\n",
                  n, k.operators.size(), static_cast<long long>(k.lanes), facts.instructions,
                  static_cast<long long>(facts.vector_lanes), static_cast<long long>(facts.bytes_a_lane),
                  facts.milliseconds);
    text += line;
  }
  return text;
}

}  // namespace tower::compiler
