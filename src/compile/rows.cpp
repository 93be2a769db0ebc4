#include "compile/rows.h"

#include <ATen/EmptyTensor.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/copy.h>

#include <algorithm>
#include <unordered_set>

#include "compile/pointwise.h"

namespace tower::compiler {
namespace {

constexpr int64_t kMostCalls = 3000;  // in a region
constexpr int64_t kShortestRow = 32;  // for which a kernel is started anew
constexpr int64_t kMostAdded = 16;    // in a sum, one after the other, as LibTorch does

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
  Places places;  // of each dimension of the lanes; −1: summed over
  bool is_sum;
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
    size_t alone = outer_;  // dimensions in which no sum goes on
    for (const Written& w : written_) {
      rows_.of_outputs.emplace_back();
      for (size_t d = 0; d < outer_; ++d) {
        const int64_t at = w.places[d];
        rows_.of_outputs.back().push_back(at < 0 ? 0 : w.strides[static_cast<size_t>(at)]);
        if (at < 0 && lanes_[d] != 1) alone = std::min(alone, d);
      }
    }
    for (size_t d = alone; d < outer_; ++d) rows_.together *= lanes_[d];
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
      if (written_[k].is_sum) results[k]->zero_();
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

}  // namespace

// ---- writing ----

class RowWriter {
 public:
  explicit RowWriter(const Rows& rows) : rows_(rows), graph_(rows.graph_), pointwise_{rows.graph_} {}

  Call write(const std::vector<size_t>& calls, const Readers& readers, Kernels& kernels, std::vector<Fused>& report) {
    const std::vector<ValueId> results = readers.elsewhere(calls);
    settle_lanes(calls, results);
    Fused fused;
    for (const size_t n : calls) {
      add(graph_.calls[n]);
      fused.operators.push_back(graph_.calls[n].op->name());
    }
    std::vector<Written> written;
    for (const ValueId id : results) written.push_back(give(id));
    fused.kernel = kernels.get(region_);
    fused.lanes = count(lanes_);
    auto op = c10::make_intrusive<RowKernel>(fused.kernel, std::move(readings_), lanes_, outer_, std::move(written));
    report.push_back(std::move(fused));
    return KernelOperator::call_of(std::move(op), std::move(operands_), results);
  }

 private:
  // Lanes are in the order in which what leaves lies in memory, if that can be.
  void settle_lanes(const std::vector<size_t>& calls, const std::vector<ValueId>& results) {
    const Rows::Sum* first = rows_.sum(results.at(0));
    const Value& model = pointwise_.value(first ? first->terms : results.at(0));
    order_ = *order_in_memory(model);
    const auto summed = [&](int64_t d) {
      return model.sizes[static_cast<size_t>(d)] != 1 && std::any_of(results.begin(), results.end(), [&](ValueId id) {
               const Rows::Sum* sum = rows_.sum(id);
               return sum && sum->places[static_cast<size_t>(d)] < 0;
             });
    };
    // A row is not summed over.
    const auto last = std::find_if(order_.rbegin(), order_.rend(),
                                   [&](int64_t d) { return model.sizes[static_cast<size_t>(d)] != 1; });
    if (last != order_.rend() && summed(*last)) std::stable_partition(order_.begin(), order_.end(), summed);
    lanes_ = ordered(model.sizes, order_);
    outer_ = outer_dimensions(calls, results);
  }

  void add(const Call& call) {
    const auto element = [&](size_t k) {
      const auto it = made_.find(call.operands[k]);
      return it == made_.end() ? outside(call, k) : it->second;
    };
    if (rows_.sum(call.results[0])) {
      made_.emplace(call.results[0], element(0));
      return;
    }
    const std::vector<Id> ids = pointwise_.elements_of(region_.graph, call, element);
    for (size_t k = 0; k < ids.size(); ++k) made_.emplace(call.results[k], ids[k]);
  }

  // The element of a value from outside.
  Id outside(const Call& call, size_t k) {
    const ValueId id = call.operands[k];
    const Value& v = pointwise_.value(id);
    const Type type = *type_of(v.dtype);
    if (const auto number = same_everywhere(v))
      return number->isFloatingPoint() ? region_.graph.constant(type, number->toDouble())
                                       : region_.graph.constant(type, number->toLong());
    const std::pair key(id, places(call, k));
    for (const auto& [known, element] : read_)
      if (known == key) return element;
    const Row row = row_of(v.sizes, key.second);
    const auto operand = std::find(operands_.begin(), operands_.end(), id);
    readings_.push_back(
        {static_cast<size_t>(operand - operands_.begin()), key.second, row == Row::repeated, row == Row::mixed});
    if (operand == operands_.end()) operands_.push_back(id);
    const Id element = region_.graph.input(type, region_.inputs.size());
    region_.inputs.push_back({type, row == Row::repeated});
    read_.emplace_back(key, element);
    return element;
  }

  Written give(ValueId id) {
    const Value& v = pointwise_.value(id);
    const Rows::Sum* sum = rows_.sum(id);
    region_.outputs.push_back(made_.at(id));
    region_.added.push_back(sum != nullptr);
    const Places places = sum ? ordered(sum->places, order_) : order_;
    // What has no place among the lanes has one element.
    Places order;
    for (size_t d = 0; d < v.sizes.size(); ++d)
      if (std::find(places.begin(), places.end(), static_cast<int64_t>(d)) == places.end())
        order.push_back(static_cast<int64_t>(d));
    std::copy_if(places.begin(), places.end(), std::back_inserter(order), [](int64_t d) { return d >= 0; });
    return {v.sizes,
            strides_in_order(v.sizes, order),
            strides_in_order(v.sizes, *order_in_memory(v)),
            v.dtype,
            places,
            sum != nullptr};
  }

  // Where the lanes are in an operand.
  Places places(const Call& call, size_t k) const {
    return rows_.sum(call.results[0]) ? order_ : ordered(pointwise_.places(call, k), order_);
  }

  // How an operand goes along with the lanes of a row.
  enum class Row : uint8_t { whole, repeated, mixed };
  Row row_of(const Sizes& sizes, const Places& places) const {
    bool varies = false, repeats = false;
    for (size_t d = outer_; d < lanes_.size(); ++d) {
      if (lanes_[d] == 1) continue;
      const bool has = places[d] >= 0 && sizes[static_cast<size_t>(places[d])] != 1;
      (has ? varies : repeats) = true;
    }
    return varies && repeats ? Row::mixed : repeats ? Row::repeated : Row::whole;
  }

  // As few dimensions of rows as will do for rows in which no operand is mixed, and over which nothing is summed;
  // none, if the rows would be short.
  size_t outer_dimensions(const std::vector<size_t>& calls, const std::vector<ValueId>& results) {
    outer_ = 0;
    for (const ValueId id : results)
      if (const Rows::Sum* sum = rows_.sum(id)) {
        const Places places = ordered(sum->places, order_);
        for (size_t d = 0; d < lanes_.size(); ++d)
          if (places[d] < 0 && lanes_[d] != 1) outer_ = std::max(outer_, d + 1);
      }
    const size_t for_sums = outer_;
    std::unordered_set<ValueId> made;
    for (const size_t n : calls) {
      const Call& call = graph_.calls[n];
      for (size_t k = 0; k < call.operands.size(); ++k) {
        const ValueId id = call.operands[k];
        if (made.count(id)) continue;
        const Places at = places(call, k);
        while (row_of(pointwise_.value(id).sizes, at) == Row::mixed) ++outer_;
      }
      made.insert(call.results.begin(), call.results.end());
    }
    int64_t row = 1;
    for (size_t d = outer_; d < lanes_.size(); ++d) row *= lanes_[d];
    return row >= kShortestRow ? outer_ : for_sums;
  }

  const Rows& rows_;
  const Graph& graph_;
  const Pointwise pointwise_;
  Places order_;
  Sizes lanes_;
  size_t outer_ = 0;
  Region region_;
  std::vector<Reading> readings_;
  std::vector<ValueId> operands_;
  std::unordered_map<ValueId, Id> made_;
  std::vector<std::pair<std::pair<ValueId, Places>, Id>> read_;
};

// ---- what can be in a region ----

Rows::Rows(const Graph& graph) : graph_(graph) {
  const Pointwise pointwise{graph};
  for (const Call& call : graph.calls) {
    std::optional<Space> space;
    if (pointwise.serves(call)) {
      space = Space{pointwise.lanes(call)};
    } else if (auto sum = sum_of(call)) {
      space = Space{pointwise.value(sum->terms).sizes};
      sums_.emplace(call.results[0], std::move(*sum));
    }
    joining_.spaces.push_back(std::move(space));
    joining_.costs.push_back(1);
  }
  joining_.most = kMostCalls;
  joining_.reads_inside = [this, pointwise](const Call& call, size_t k) {
    if (!call.results.empty() && sum(call.results[0])) return true;
    return !sum(call.operands[k]) && pointwise.reads_lane_by_lane(call, k);
  };
}

const Rows::Sum* Rows::sum(ValueId id) const {
  const auto found = sums_.find(id);
  return found == sums_.end() ? nullptr : &found->second;
}

std::optional<Rows::Sum> Rows::sum_of(const Call& call) const {
  const Pointwise pointwise{graph_};
  if (call.op->name() != "aten::sum.dim_IntList" || !call.args[3].isNone() || call.args[1].isNone())
    return std::nullopt;
  const Value &from = pointwise.value(call.operands[0]), &to = pointwise.value(call.results[0]);
  const Sum* before = sum(call.operands[0]);
  const Value& terms = before ? pointwise.value(before->terms) : from;
  const auto order = order_in_memory(terms);
  if (!pointwise.fits(from) || !at::isFloatingType(from.dtype) || from.dtype != to.dtype || !order ||
      !order_in_memory(to) || count(terms.sizes) == 0)
    return std::nullopt;
  // Where the operand's dimensions are in the result.
  const Seen s = seen(call, 0, from.sizes.size(), kNoAxis);
  const auto dims = static_cast<int64_t>(s.of_example.size());
  const bool keep = call.args[2].toBool();
  std::vector<bool> gone(s.of_example.size(), call.args[1].toIntVector().empty());
  for (const int64_t d : call.args[1].toIntVector()) {
    if (dims == 0) return std::nullopt;
    gone[static_cast<size_t>(at::maybe_wrap_dim(d, dims))] = true;
  }
  Places places(from.sizes.size(), -1);
  int64_t next = 0;
  for (const int64_t d : s.of_vmaps) {
    if (d < 0) return std::nullopt;
    places[static_cast<size_t>(d)] = next++;
  }
  for (size_t d = 0; d < gone.size(); ++d) {
    if (!gone[d]) places[static_cast<size_t>(s.of_example[d])] = next;
    if (!gone[d] || keep) ++next;
  }
  Sum result{before ? before->terms : call.operands[0], places};
  if (before) {
    result.places = before->places;
    for (int64_t& d : result.places)
      if (d >= 0) d = places[static_cast<size_t>(d)];
  }
  // Few are added, and rows between are long.
  int64_t added = 1, row = 1;
  for (size_t k = order->size(); k-- > 0;) {
    const auto d = static_cast<size_t>((*order)[k]);
    if (result.places[d] < 0) added *= terms.sizes[d];
    else if (added == 1) row *= terms.sizes[d];
  }
  if (added > kMostAdded || row < kShortestRow) return std::nullopt;
  return result;
}

// A sum of a sum is one of its terms only where these are.
bool Rows::serves(const std::vector<size_t>& calls) const {
  std::unordered_set<ValueId> made;
  for (const size_t n : calls) {
    const Call& call = graph_.calls[n];
    if (!joining_.spaces[n]) return false;
    if (sum(call.results[0]) && sum(call.operands[0]) && !made.count(call.operands[0])) return false;
    made.insert(call.results.begin(), call.results.end());
  }
  return true;
}

Call Rows::write(const std::vector<size_t>& calls, const Readers& readers, Kernels& kernels,
                 std::vector<Fused>& report) const {
  return RowWriter(*this).write(calls, readers, kernels, report);
}

}  // namespace tower::compiler
