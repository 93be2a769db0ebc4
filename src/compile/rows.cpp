#include "compile/rows.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/copy.h>

#include <algorithm>
#include <unordered_set>

#include "compile/pointwise.h"

namespace tower::compiler {
namespace {

constexpr int64_t kMostCalls = 3000;  // in a region
constexpr int64_t kShortestRow = 32;  // for which a kernel is started anew

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

// A kernel over all elements of its results.
class RowKernel final : public KernelOperator {
 public:
  RowKernel(std::shared_ptr<const Kernel> kernel, std::vector<Reading> readings, Sizes lanes, size_t outer,
            std::vector<Written> results)
      : kernel_(std::move(kernel)),
        readings_(std::move(readings)),
        lanes_(std::move(lanes)),
        outer_(outer),
        written_(std::move(results)) {
    rows_.lanes = 1;
    for (size_t d = 0; d < lanes_.size(); ++d) {
      if (d < outer_) rows_.sizes.push_back(lanes_[d]);
      else rows_.lanes *= lanes_[d];
    }
  }

  void compute(c10::ArrayRef<const Tensor*> operands, c10::ArrayRef<Tensor*> results) const override {
    Kernel::Rows rows = rows_;
    c10::SmallVector<Tensor, 8> copies;
    c10::SmallVector<const void*, 8> from;
    for (const Reading& reading : readings_) {
      auto [t, strides] = as_read(*operands[reading.operand], reading);
      from.push_back(t.const_data_ptr());
      if (!t.is_same(*operands[reading.operand])) copies.push_back(std::move(t));
      if (outer_) rows.strides.emplace_back(strides.begin(), strides.begin() + static_cast<int64_t>(outer_));
    }
    c10::SmallVector<void*, 4> to;
    for (size_t k = 0; k < written_.size(); ++k) {
      *results[k] = at::detail::empty_strided_cpu(written_[k].sizes, written_[k].strides, written_[k].dtype);
      to.push_back(results[k]->mutable_data_ptr());
    }
    if (std::find(lanes_.begin(), lanes_.end(), 0) == lanes_.end()) kernel_->run(rows, from, to);
    for (size_t k = 0; k < written_.size(); ++k)
      if (written_[k].wanted != written_[k].strides) *results[k] = in_wanted_order(*results[k], written_[k]);
  }

 private:
  static Tensor in_wanted_order(const Tensor& t, const Written& result) {
    const Tensor made = at::detail::empty_strided_cpu(result.sizes, result.wanted, result.dtype);
    return made.copy_(t);
  }

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
  std::vector<Written> written_;
  Kernel::Rows rows_;
};

// ---- writing ----

class RowWriter {
 public:
  explicit RowWriter(const Graph& graph) : graph_(graph), pointwise_{graph} {}

  Call write(const std::vector<size_t>& calls, const Readers& readers, Kernels& kernels,
             std::vector<Fused>& report) const {
    Region region;
    std::vector<Reading> readings;
    std::vector<ValueId> operands;
    const std::vector<ValueId> results = readers.elsewhere(calls);
    std::unordered_map<ValueId, Id> made;
    std::vector<std::pair<std::pair<ValueId, Places>, Id>> read;
    // Lanes are in the order in which what leaves lies in memory.
    const Value& model = pointwise_.value(results.at(0));
    const Places order = *order_in_memory(model);
    const Sizes lanes = ordered(model.sizes, order);
    const size_t outer = outer_dimensions(calls, lanes, order);

    // The element of a value from outside.
    const auto outside = [&](const Call& call, size_t k) {
      const ValueId id = call.operands[k];
      const Value& v = pointwise_.value(id);
      const Type type = *type_of(v.dtype);
      if (const auto number = same_everywhere(v))
        return number->isFloatingPoint() ? region.graph.constant(type, number->toDouble())
                                         : region.graph.constant(type, number->toLong());
      const std::pair key(id, ordered(pointwise_.places(call, k), order));
      for (const auto& [known, element] : read)
        if (known == key) return element;
      const Row row = row_of(v.sizes, key.second, lanes, outer);
      const auto operand = std::find(operands.begin(), operands.end(), id);
      readings.push_back(
          {static_cast<size_t>(operand - operands.begin()), key.second, row == Row::repeated, row == Row::mixed});
      if (operand == operands.end()) operands.push_back(id);
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
    for (const ValueId id : results) {
      const Value& v = pointwise_.value(id);
      region.outputs.push_back(made.at(id));
      written.push_back(
          {v.sizes, strides_in_order(v.sizes, order), strides_in_order(v.sizes, *order_in_memory(v)), v.dtype});
    }
    fused.kernel = kernels.get(region);
    fused.lanes = count(lanes);
    auto op = c10::make_intrusive<RowKernel>(fused.kernel, std::move(readings), lanes, outer, std::move(written));
    report.push_back(std::move(fused));
    return KernelOperator::call_of(std::move(op), std::move(operands), results);
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
};

}  // namespace

Joining joining_of_rows(const Graph& graph) {
  const Pointwise pointwise{graph};
  Joining joining;
  for (const Call& call : graph.calls) {
    joining.spaces.push_back(pointwise.serves(call) ? std::optional(Space{pointwise.lanes(call)}) : std::nullopt);
    joining.costs.push_back(1);
  }
  joining.most = kMostCalls;
  joining.reads_inside = [pointwise](const Call& call, size_t k) { return pointwise.reads_lane_by_lane(call, k); };
  return joining;
}

Call write_rows(const Graph& graph, const std::vector<size_t>& calls, const Readers& readers, Kernels& kernels,
                std::vector<Fused>& report) {
  return RowWriter(graph).write(calls, readers, kernels, report);
}

}  // namespace tower::compiler
