#include "fuse/step_in_tiles.h"

#include <ATen/TensorGeometry.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cstring>

#include "core/bind.h"
#include "fuse/elsewhere.h"
#include "fuse/fuse.h"

namespace tower::compiler {
namespace {

bool lies_row_by_row(const Value& v) {
  return v.device.is_cpu() && type_of(v.dtype) && at::geometry_is_contiguous(v.sizes, v.strides);
}

}  // namespace

char* element_at(char* first, int64_t number, int64_t bytes) {
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(first) + static_cast<uintptr_t>(number * bytes));
}

std::optional<StepInTiles> StepInTiles::of(const Graph& step, Kernels& kernels) {
  // What a call moves where is found by running it on numbers of elements.
  DispatchGuard keys;
  keys.see_no_operator();
  const Graph graph = fuse(step, kernels, 1).graph;
  StepInTiles made;
  made.operators_ = step.calls.size();
  ById<ValueId, std::optional<Part>> parts(graph.values.size());
  const auto hold = [&](ValueId id) {
    const Value& v = graph.values[id];
    const int64_t n = count(v.sizes);
    parts[id] = Part{made.held_.size(), 0, n};
    made.held_.push_back({n, static_cast<int64_t>(c10::elementSize(v.dtype)), v.origin == Origin::result, v.tensor});
    return n > 0 && lies_row_by_row(v);
  };
  for (const ValueId id : graph.arguments) {
    if (id == kNoValue || !hold(id)) return std::nullopt;
    made.arguments_.push_back({graph.values[id].sizes, graph.values[id].dtype});
  }
  for (const ValueId id : graph.values.ids())
    if (const Value& v = graph.values[id]; v.tensor.defined() && !parts[id] && (!hold(id) || !v.tensor.is_contiguous()))
      return std::nullopt;
  for (const Call& call : graph.calls) {
    if (const auto from = part_of_operand(graph, call)) {
      const auto of = parts[call.operands[0]];
      if (!of) return std::nullopt;
      parts[call.results[0]] = Part{of->held, of->from + *from, count(graph.values[call.results[0]].sizes)};
      continue;
    }
    for (const ValueId id : call.results)
      if (id == kNoValue || !hold(id)) return std::nullopt;
    if (!made.add(graph, call, parts)) return std::nullopt;
  }
  std::vector<bool> is_given(made.held_.size());
  for (const ValueId id : graph.results) {
    if (id == kNoValue || !parts[id]) return std::nullopt;
    const Part& part = *parts[id];
    const Held& held = made.held_[part.held];
    const bool in_place = held.made && part.from == 0 && part.elements == held.elements && !is_given[part.held];
    is_given[part.held] = is_given[part.held] || in_place;
    made.results_.push_back({{part}, in_place});
  }
  return made;
}

bool StepInTiles::add(const Graph& graph, const Call& call, ById<ValueId, std::optional<Part>>& parts) {
  const auto* kernel = dynamic_cast<const ReachingKernel*>(call.op);
  if (!kernel) return false;
  std::vector<InMemory> operands;
  std::vector<at::DimVector> strides;
  strides.reserve(call.operands.size());
  for (const ValueId id : call.operands) {
    const Value& v = graph.values[id];
    strides.push_back(c10::contiguous_strides(v.sizes));
    operands.push_back({nullptr, v.sizes, strides.back(), v.dtype});
    if (!parts[id]) return false;
  }
  const auto reach = kernel->reach(operands);
  if (!reach) return false;
  Step step{reach->kernel, reach->lanes, {}, {}};
  for (const RowReach::Read& read : reach->reads) {
    const Part& part = *parts[call.operands[read.operand]];
    const bool one = held_[part.held].elements == 1;
    if (read.shared && !one) return false;
    step.reads.push_back({part, read.shared, {read.reach.first + part.from, read.reach.last + part.from}});
  }
  for (const ValueId id : call.results) step.makes.push_back(parts[id]->held);
  steps_.push_back(std::move(step));
  return true;
}

bool StepInTiles::takes(const std::vector<at::Tensor>& arguments) const {
  return std::equal(arguments.begin(), arguments.end(), arguments_.begin(), arguments_.end(),
                    [](const at::Tensor& t, const Argument& argument) {
                      return t.sizes().equals(argument.sizes) && t.scalar_type() == argument.dtype;
                    });
}

Tile StepInTiles::Held::part(const Tile& tile, const Span& span) const {
  if (elements == 1) return {0, 1};
  if (span.is_empty()) return {0, 0};
  const auto within = [this](int64_t place) { return std::clamp<int64_t>(place, 0, elements); };
  return {within(tile.begin - span.before), within(tile.end + span.after)};
}

StepInTiles::Spans StepInTiles::needed_for(std::vector<Span> results) const {
  Spans spans{std::vector<Span>(held_.size()), std::move(results)};
  for (size_t k = 0; k < results_.size(); ++k)
    spans.held[results_[k].held].join(spans.results[k].read({results_[k].from, results_[k].from}));
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    Span all;
    for (const size_t made : step->makes) all.join(spans.held[made]);
    // A kernel makes the same part of all its results.
    for (const size_t made : step->makes) spans.held[made] = all;
    for (const Read& read : step->reads) spans.held[read.of.held].join(read.shared ? all : all.read(read.reach));
  }
  return spans;
}

void StepInTiles::run(const Tile& tile, const Spans& spans, std::vector<char*>& held, const std::vector<char*>& results,
                      uint8_t* fault) const {
  for (size_t k = 0; k < results_.size(); ++k)
    if (results_[k].in_place) held[results_[k].held] = results[k];
  c10::SmallVector<const void*, 16> from;
  c10::SmallVector<void*, 8> to;
  for (const Step& step : steps_) {
    const size_t first = step.makes[0];
    const Tile part = held_[first].part(tile, spans.held[first]);
    if (part.begin >= part.end || spans.held[first].is_empty()) continue;
    from.clear();
    to.clear();
    for (const Read& read : step.reads)
      from.push_back(element_at(held[read.of.held], read.of.from, held_[read.of.held].bytes));
    for (const size_t made : step.makes) to.push_back(held[made]);
    step.kernel->run_part(part.begin, part.end, from, to, fault);
  }
  for (size_t k = 0; k < results_.size(); ++k) {
    const Result& part = results_[k];
    if (part.in_place) continue;
    const int64_t bytes = held_[part.held].bytes;
    const Tile copied = Held{part.elements, bytes}.part(tile, spans.results[k]);
    if (copied.begin < copied.end)
      std::memcpy(element_at(results[k], copied.begin, bytes),
                  element_at(held[part.held], part.from + copied.begin, bytes),
                  static_cast<size_t>((copied.end - copied.begin) * bytes));
  }
}

}  // namespace tower::compiler
