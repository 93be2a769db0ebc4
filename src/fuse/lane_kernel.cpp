#include "fuse/lane_kernel.h"

#include <ATen/Functions.h>
#include <ATen/TensorGeometry.h>

#include <algorithm>

#include "fuse/memory_steps.h"
#include "numbers/reports.h"
#include "numbers/thresholds.h"

namespace tower::compiler {

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

std::optional<int64_t> dims_of_tables(const Graph& graph, const Call& call, size_t k, uint64_t axis) {
  if (call.places[k].arg != 0 || !looks_up(*call.op)) return std::nullopt;
  const Value& v = graph.values[call.operands[k]];
  const auto [lane, of_vmaps, of_example] = seen(call, k, v.sizes.size(), axis);
  const int64_t dims = std::count_if(of_vmaps.begin(), of_vmaps.end(), [](int64_t d) { return d >= 0; });
  const bool in_front = std::all_of(of_vmaps.begin(), of_vmaps.end(), [&](int64_t d) { return d < dims; });
  const auto order = order_in_memory(v);
  if (lane != kNoLane || !in_front || !v.device.is_cpu() || !type_of(v.dtype) || v.dtype == at::kBool || !order ||
      !std::is_sorted(order->begin(), order->end()))
    return std::nullopt;
  int64_t of_one = 1;
  for (const int64_t d : of_example) of_one *= along(v.sizes, d);
  return of_one > 1 && count(v.sizes) > thresholds().most_of_lane ? std::optional(dims) : std::nullopt;
}

// ---- the kernel ----

int64_t offset_of(const Sizes& place, at::IntArrayRef strides, int64_t lane) {
  int64_t offset = 0;
  size_t d = 0;
  for (size_t k = 0; k < place.size(); ++k, ++d) {
    d += static_cast<int64_t>(d) == lane;
    offset += place[k] * strides[d];
  }
  return offset;
}

namespace {

std::vector<MemoryKernel::Result> made_by(const std::vector<LaneWritten>& written) {
  std::vector<MemoryKernel::Result> made;
  for (const LaneWritten& w : written) made.push_back(w.made);
  return made;
}

class LaneKernel final : public MemoryKernel, public StepsInMemory {
 public:
  LaneKernel(std::shared_ptr<const Kernel> kernel, int64_t lanes, std::vector<LaneRead> reads,
             std::vector<LaneWritten> written)
      : MemoryKernel(made_by(written)),
        kernel_(std::move(kernel)),
        lanes_(lanes),
        reads_(std::move(reads)),
        written_(std::move(written)) {}

  void run_in(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results) const override {
    std::vector<Tensor> tables;
    const LaneCode& code = kernel_->lane_code();
    if (lanes_ == 1) {
      c10::SmallVector<const void*, 64> from(static_cast<size_t>(code.inputs));
      c10::SmallVector<void*, 64> to(static_cast<size_t>(code.outputs));
      const void** source = from.data();
      void** target = to.data();
      for_each_place(
          operands, results, tables, [&](const char* memory, int64_t) { *source++ = memory; },
          [&](char* memory, int64_t) { *target++ = memory; });
      return kernel_->run(1, from, to);
    }
    c10::SmallVector<Kernel::Source, 64> from(static_cast<size_t>(code.inputs));
    c10::SmallVector<Kernel::Target, 64> to(static_cast<size_t>(code.outputs));
    Kernel::Source* source = from.data();
    Kernel::Target* target = to.data();
    for_each_place(
        operands, results, tables,
        [&](const char* memory, int64_t stride) {
          *source++ = {memory, stride};
        },
        [&](char* memory, int64_t stride) {
          *target++ = {memory, stride};
        });
    if (lanes_ > 0) kernel_->run(lanes_, from, to);
  }

  MemorySteps steps(c10::ArrayRef<InMemory> operands, Kernels& /*kernels*/) const override {
    MemorySteps all;
    MemoryStep step{kStepOfLanes, kernel_, 0, lanes_};
    for (const LaneRead& read : reads_) {
      const InMemory& t = operands[read.operand];
      const MemoryStep::Place whole{MemoryStep::operand, read.operand, 0, 0, Sizes(t.strides)};
      if (read.table) {
        const bool row_by_row = at::geometry_is_contiguous(t.sizes, t.strides);
        MemoryStep::Place at = row_by_row ? whole : all.make_copy(t.element_size(), Sizes(t.sizes), whole);
        for (const int64_t offset : read.offsets) step.inputs.push_back({at.in, at.number, offset, 0});
        continue;
      }
      for_each_element(read, t.strides, [&](int64_t offset, int64_t stride) {
        step.inputs.push_back({whole.in, whole.number, offset, stride});
      });
    }
    for (size_t k = 0; k < written_.size(); ++k)
      for (const int64_t offset : written_[k].offsets)
        step.outputs.push_back(
            {MemoryStep::result, k, offset, stride_of_lanes(written_[k].lane, written_[k].made.strides)});
    all.steps.push_back(std::move(step));
    return all;
  }

 private:
  static int64_t stride_of_lanes(int64_t lane, at::IntArrayRef strides) {
    return lane == kNoLane ? 0 : along(strides, lane);
  }

  // In a loop: there are few, and a call of memcmp takes longer.
  static bool lies_as_traced(const LaneRead& read, at::IntArrayRef strides) {
    bool same = strides.size() == read.strides.size();
    for (size_t d = 0; same && d < strides.size(); ++d) same = strides[d] == read.strides[d];
    return same;
  }

  // `element` is told how many elements of memory there are before the first lane, and from one lane to the next.
  template <class F>
  static void for_each_element(const LaneRead& read, at::IntArrayRef strides, F element) {
    const int64_t stride = stride_of_lanes(read.lane, strides);
    if (lies_as_traced(read, strides)) {
      for (const int64_t offset : read.offsets) element(offset, stride);
    } else {
      for (const Sizes& place : read.elements) element(offset_of(place, strides, read.lane), stride);
    }
  }

  // `source` and `target` are told where the first lane is of each input and output, and how many elements the lanes
  // are apart. `tables` keeps those that lay otherwise in memory than row by row.
  template <class S, class T>
  void for_each_place(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results, std::vector<Tensor>& tables,
                      S source, T target) const {
    const LaneElement* element = kernel_->lane_code().elements;
    for (const LaneRead& read : reads_) {
      const InMemory& t = operands[read.operand];
      const int64_t bytes = element->bytes;
      element += read.offsets.size();
      if (read.table) {
        const auto* first = static_cast<const char*>(tables.emplace_back(t.tensor().contiguous()).const_data_ptr());
        for (const int64_t offset : read.offsets) source(first + offset * bytes, 0);
        continue;
      }
      const auto* memory = static_cast<const char*>(t.data);
      for_each_element(read, t.strides,
                       [&](int64_t offset, int64_t stride) { source(memory + offset * bytes, stride); });
    }
    for (size_t k = 0; k < written_.size(); ++k) {
      auto* memory = static_cast<char*>(results[k].data);
      const int64_t bytes = element->bytes, stride = stride_of_lanes(written_[k].lane, results[k].strides);
      element += written_[k].offsets.size();
      for (const int64_t offset : written_[k].offsets) target(memory + offset * bytes, stride);
    }
  }

  std::shared_ptr<const Kernel> kernel_;
  int64_t lanes_;
  std::vector<LaneRead> reads_;
  std::vector<LaneWritten> written_;
};

}  // namespace

c10::intrusive_ptr<KernelOperator> lane_kernel(std::shared_ptr<const Kernel> kernel, int64_t lanes,
                                               std::vector<LaneRead> reads, std::vector<LaneWritten> written) {
  return c10::make_intrusive<LaneKernel>(std::move(kernel), lanes, std::move(reads), std::move(written));
}

// ---- writing ----

bool LaneWriter::add(const Call& call) {
  std::vector<const Small*> given;
  SmallResults results = known_results(region_.graph, graph_, call, axis_);
  for (size_t k = 0; results.empty() && k < call.operands.size(); ++k) given.push_back(&operand(call, k));
  const Id first = region_.graph.next_id();
  const size_t loops = region_.graph.loops().size(), systems = region_.graph.systems().size();
  if (results.empty()) results = results_of_lane(region_.graph, graph_, call, axis_, given);
  if (results.size() != call.results.size()) return false;
  added_ = {plain(region_.graph.next_id()) - plain(first), 0, region_.graph.loops().size() > loops,
            region_.graph.systems().size() > systems};
  for (const Id id : region_.graph.ids(first)) added_.functions += is_function(region_.graph[id].op);
  for (size_t k = 0; k < results.size(); ++k) {
    const ValueId id = call.results[k];
    if (id == kNoValue) continue;
    made_.insert_or_assign(id, Made{std::move(results[k]), lane_of_results(call, axis_), is_stacked_result(call, id)});
  }
  return true;
}

LaneWritten LaneWriter::give(ValueId id) {
  const Value& v = graph_.values[id];
  const auto& [t, lane, stacked] = made_.at(id);
  region_.outputs.insert(region_.outputs.end(), t.ids.begin(), t.ids.end());
  Places order;
  for (size_t d = 0; d < v.sizes.size(); ++d) order.push_back(static_cast<int64_t>(d));
  if (const auto traced = order_in_memory(v)) order = *traced;
  LaneWritten written{{v.sizes, strides_in_order(v.sizes, order), v.dtype}, lane, {}};
  for (const Sizes& place : places_in(t.sizes))
    written.offsets.push_back(offset_of(place, written.made.strides, written.lane));
  return written;
}

LaneWritten LaneWriter::give_sum(ValueId id, ValueId of) {
  const Value& v = graph_.values[id];
  const auto& [t, lane, stacked] = made_.at(of);
  region_.summed.resize(region_.outputs.size());
  region_.outputs.insert(region_.outputs.end(), t.ids.begin(), t.ids.end());
  region_.summed.resize(region_.outputs.size(), true);
  LaneWritten written{{v.sizes, strides_in_order(v.sizes, *order_in_memory(v)), v.dtype}, kNoLane, {}};
  // Where the dimension is kept, its only element is at zero.
  const int64_t kept = v.sizes.size() == t.sizes.size() ? kNoLane : lane;
  for (const Sizes& place : places_in(t.sizes)) written.offsets.push_back(offset_of(place, written.made.strides, kept));
  return written;
}

std::vector<LaneRead> LaneWriter::finish() {
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

// What was added before may be read here in another way, if the calls are only counted.
const Small& LaneWriter::operand(const Call& call, size_t k) {
  const ValueId id = call.operands[k];
  const auto found = made_.find(id);
  const bool inside = found != made_.end() && !found->second.stacked && !is_stacked_operand(call, k) &&
                      found->second.lane == seen(call, k, graph_.values[id].sizes.size(), axis_).lane;
  return inside ? found->second.numbers : outside(call, k);
}

const Small& LaneWriter::outside(const Call& call, size_t k) {
  const ValueId id = call.operands[k];
  const Value& v = graph_.values[id];
  const int64_t lane = seen(call, k, v.sizes.size(), axis_).lane;
  const bool stacked = is_stacked_operand(call, k);
  const std::optional<int64_t> tables = dims_of_tables(graph_, call, k, axis_);
  const auto [entry, is_new] = read_.try_emplace({id, lane, stacked, tables});
  Small& t = entry->second;
  if (!is_new) return t;
  t = {without(v.sizes, lane), {}, v.dtype, v.number};
  const Type type = *type_of(v.dtype);
  // What steps read of their own is in memory.
  if (!tables && (!stacked || same_everywhere(v)) && add_constant(region_.graph, v, lane, t)) return t;
  Sizes each = t.sizes;  // of a table there is one input, for where it begins
  for (size_t d = tables ? static_cast<size_t>(*tables) : each.size(); d < each.size(); ++d) each[d] = 1;
  const auto operand = std::find(operands.begin(), operands.end(), id);
  LaneRead read{
      static_cast<size_t>(operand - operands.begin()), lane, v.strides, places_in(each), {}, tables.has_value()};
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

}  // namespace tower::compiler
