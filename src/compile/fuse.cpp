// Read `fuse` at the end first. It puts each call into a group of its own, joins groups of pointwise calls where one
// reads the other lane by lane (Groups::join), puts the groups in order, and writes a call of a kernel for each group
// of several calls (Writer).
#include "compile/fuse.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstdio>
#include <queue>
#include <set>

#include "compile/element.h"

namespace tower::compiler {
namespace {

constexpr size_t kMostCalls = 1000;  // in a region

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

bool is_contiguous(const Value& v) {
  int64_t expected = 1;
  for (size_t d = v.sizes.size(); d-- > 0;) {
    if (v.sizes[d] != 1 && v.strides[d] != expected) return false;
    expected *= v.sizes[d];
  }
  return true;
}

// ---- kernels as operators ----

// What a kernel is given for each of its inputs.
struct Reading {
  size_t operand;
  bool repeated;  // one element
  Places places;  // otherwise
};

// A kernel as an operator of lists of tensors, plain ones.
class KernelOperator final : public Operator {
 public:
  KernelOperator(std::shared_ptr<const Kernel> kernel, std::vector<Reading> readings, Sizes lanes,
                 std::vector<at::ScalarType> results)
      : Operator("tower::kernel", c10::FunctionSchema("tower::kernel", "", {list("operands")}, {list("results")})),
        kernel_(std::move(kernel)),
        readings_(std::move(readings)),
        lanes_(std::move(lanes)),
        count_(count(lanes_)),
        results_(std::move(results)) {}

  void call(Stack& stack) const override {
    const c10::List<Tensor> operands = stack[0].toTensorList();
    c10::SmallVector<Tensor, 8> held;
    c10::SmallVector<const void*, 8> from;
    for (const Reading& reading : readings_) {
      Tensor t = operands.get(reading.operand);
      if (!reading.repeated) t = laid_out(t, reading.places);
      from.push_back(t.const_data_ptr());
      held.push_back(std::move(t));
    }
    c10::List<Tensor> results;
    c10::SmallVector<void*, 4> to;
    for (const at::ScalarType dtype : results_) {
      Tensor t = at::detail::empty_cpu(lanes_, dtype);
      to.push_back(t.mutable_data_ptr());
      results.push_back(std::move(t));
    }
    kernel_->run(count_, from, to);
    stack.assign(1, IValue(std::move(results)));
  }

 private:
  static c10::Argument list(const char* name) { return c10::Argument(name, c10::ListType::ofTensors()); }

  // One element for each lane, next to each other.
  Tensor laid_out(const Tensor& t, const Places& places) const {
    if (t.sizes().equals(lanes_) && t.is_contiguous()) {
      bool in_order = true;
      for (size_t d = 0; d < places.size(); ++d)
        in_order = in_order && (places[d] == static_cast<int64_t>(d) || lanes_[d] == 1);
      if (in_order) return t;
    }
    Sizes strides;
    for (size_t d = 0; d < lanes_.size(); ++d)
      strides.push_back(places[d] < 0 || t.size(places[d]) == 1 ? 0 : t.stride(places[d]));
    return t.as_strided(lanes_, strides).contiguous();
  }

  std::shared_ptr<const Kernel> kernel_;
  std::vector<Reading> readings_;
  Sizes lanes_;
  int64_t count_;
  std::vector<at::ScalarType> results_;
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
      if (id == kNoValue || !fits(value(id)) || value(id).sizes != lanes(call) || !is_contiguous(value(id)))
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
    std::unordered_map<ValueId, size_t> inside;  // uses within the region
    const Sizes& lanes = pointwise_.lanes(graph_.calls[calls[0]]);

    // The element of a value from outside.
    const auto outside = [&](const Call& call, size_t k) {
      const ValueId id = call.operands[k];
      const Value& v = pointwise_.value(id);
      const Type type = *type_of(v.dtype);
      const bool repeated = count(v.sizes) == 1 && count(lanes) != 1;
      if (v.origin == Origin::constant && count(v.sizes) == 1) {
        const at::Scalar number = v.tensor.item();
        return number.isFloatingPoint() ? region.graph.constant(type, number.toDouble())
                                        : region.graph.constant(type, number.toLong());
      }
      const std::pair key(id, repeated ? Places() : pointwise_.places(call, k));
      for (const auto& [known, element] : read)
        if (known == key) return element;
      const auto operand = std::find(result.operands.begin(), result.operands.end(), id);
      readings.push_back({static_cast<size_t>(operand - result.operands.begin()), repeated, key.second});
      if (operand == result.operands.end()) result.operands.push_back(id);
      const Id element = region.graph.input(type, region.inputs.size());
      region.inputs.push_back({type, repeated});
      read.emplace_back(key, element);
      return element;
    };
    Fused fused;
    for (const size_t n : calls) {
      const Call& call = graph_.calls[n];
      const std::vector<Id> ids = pointwise_.elements_of(region.graph, call, [&](size_t k) {
        const auto it = made.find(call.operands[k]);
        if (it == made.end()) return outside(call, k);
        ++inside[call.operands[k]];
        return it->second;
      });
      for (size_t k = 0; k < ids.size(); ++k) made.emplace(call.results[k], ids[k]);
      fused.operators.push_back(call.op->name());
    }
    // What others read leaves the region.
    std::vector<at::ScalarType> dtypes;
    for (const size_t n : calls) {
      for (const ValueId id : graph_.calls[n].results) {
        if (uses_[static_cast<size_t>(id)] <= inside[id]) continue;
        result.results.push_back(id);
        region.outputs.push_back(made.at(id));
        dtypes.push_back(pointwise_.value(id).dtype);
      }
    }
    fused.kernel = kernels_.get(region);
    fused.lanes = count(lanes);
    auto op = c10::make_intrusive<KernelOperator>(fused.kernel, std::move(readings), lanes, std::move(dtypes));
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
  auto& known = known_[text_of(region)];
  if (!known) known = std::make_shared<const Kernel>(region);
  return known;
}

FusedGraph fuse(const Graph& graph, Kernels& kernels) {
  FusedGraph fused{graph, {}};
  fused.graph.calls.clear();
  Writer writer(graph, kernels);
  for (const std::vector<size_t>& calls : Groups(graph).in_order()) {
    if (calls.size() == 1) fused.graph.calls.push_back(graph.calls[calls[0]]);
    else fused.graph.calls.push_back(writer.write(calls, fused.kernels));
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
