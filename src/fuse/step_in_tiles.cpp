#include "fuse/step_in_tiles.h"

#include <ATen/TensorGeometry.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cstring>

#include "core/bind.h"
#include "fuse/elsewhere.h"
#include "fuse/fuse.h"

namespace tower::compiler {
namespace {

// Elements of a strip: few kilobytes of what is read and made there are in use at a time. With much fewer, to call
// kernels would take as long as these.
constexpr int64_t kStrip = 512;

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
  const Graph graph = fuse(step, kernels, Worth::all).graph;
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
  made.settle_strips();
  return made;
}

// How far each step is ahead of the results, so that all finds what it reads.
void StepInTiles::settle_strips() {
  ahead_.assign(held_.size(), 0);
  tail_.assign(held_.size(), 0);
  for (const Result& result : results_)
    if (!result.in_place) ahead_[result.held] = std::max(ahead_[result.held], result.from);
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    for (const size_t made : step->makes) step->ahead = std::max(step->ahead, ahead_[made]);
    step->ahead = down_to_grid(step->ahead + kGrid - 1);
    for (const size_t made : step->makes) ahead_[made] = step->ahead;
    for (const Read& read : step->reads)
      if (!read.shared) ahead_[read.of.held] = std::max(ahead_[read.of.held], step->ahead + read.reach.last);
  }
  const auto reads = [this](size_t held, int64_t ahead, int64_t first) {
    tail_[held] = std::max(tail_[held], ahead_[held] - ahead - first);
  };
  for (const Step& step : steps_)
    for (const Read& read : step.reads)
      if (!read.shared) reads(read.of.held, step.ahead, read.reach.first);
  for (const Result& result : results_)
    if (!result.in_place) reads(result.held, 0, result.from);
}

StepInTiles::Room::Room(const StepInTiles& step)
    : strips_(step.held_.size()), done_(step.steps_.size() + step.results_.size()) {
  int64_t bytes = 0;
  std::vector<bool> is_result(step.held_.size());
  for (const Result& result : step.results_)
    if (result.in_place) is_result[result.held] = true;
  for (size_t k = 0; k < strips_.size(); ++k) {
    const Held& held = step.held_[k];
    if (!held.made || is_result[k]) continue;
    strips_[k] = {bytes, step.tail_[k]};
    const int64_t widest = kStrip + step.ahead_[k] + step.tail_[k] + 2 * kGrid;
    // Strips of a power of two bytes would take the same places of the cache.
    bytes += (std::min(held.elements + kGrid, widest) * held.bytes / kLine + 3) * kLine;
  }
  memory_ = c10::GetCPUAllocator()->allocate(static_cast<size_t>(bytes));
}

// For elements from one on, with those before it that are still read.
void StepInTiles::Room::make_place(size_t held, const Held& what, int64_t from, std::vector<char*>& all) {
  if (!strips_[held]) return;
  Strip& strip = *strips_[held];
  char* const memory = static_cast<char*>(memory_.get()) + strip.offset;
  const bool is_first = strip.begin < 0;
  if (is_first) strip.begin = from;
  const int64_t kept = std::max(strip.begin, from - strip.tail);
  char* const place = element_at(memory, -down_to_grid(kept), what.bytes);
  if (!is_first && place != all[held])
    std::memmove(element_at(place, kept, what.bytes), element_at(all[held], kept, what.bytes),
                 static_cast<size_t>((from - kept) * what.bytes));
  all[held] = place;
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

void StepInTiles::run(const Tile& tile, const Spans& spans, Room& room, std::vector<char*>& held,
                      const std::vector<char*>& results, uint8_t* fault) const {
  for (size_t k = 0; k < results_.size(); ++k)
    if (results_[k].in_place) held[results_[k].held] = results[k];
  for (auto& strip : room.strips_)
    if (strip) strip->begin = -1;
  // What is made of each step, and of each result that is copied.
  c10::SmallVector<Tile, 32> parts;
  int64_t lowest = tile.end, highest = tile.begin;
  const auto add = [&](const Held& what, const Span& span) {
    const Tile part = span.is_empty() ? Tile{0, 0} : what.part(tile, span);
    if (part.begin < part.end && what.elements > 1) {
      lowest = std::min(lowest, part.begin);
      highest = std::max(highest, part.end);
    }
    room.done_[parts.size()] = part.begin;
    parts.push_back(part);
  };
  for (const Step& step : steps_) add(held_[step.makes[0]], spans.held[step.makes[0]]);
  for (size_t k = 0; k < results_.size(); ++k)
    add({results_[k].elements, 0}, results_[k].in_place ? Span{} : spans.results[k]);
  for (int64_t end = down_to_grid(lowest) + kStrip;; end += kStrip) {
    for (size_t n = 0; n < parts.size(); ++n) {
      const bool is_step = n < steps_.size();
      const int64_t from = room.done_[n], to = std::min(parts[n].end, end + (is_step ? steps_[n].ahead : 0));
      if (from >= to) continue;
      room.done_[n] = to;
      if (is_step) {
        for (const size_t made : steps_[n].makes) room.make_place(made, held_[made], from, held);
        run_step(steps_[n], from, to, held, fault);
        continue;
      }
      const size_t k = n - steps_.size();
      const int64_t bytes = held_[results_[k].held].bytes;
      std::memcpy(element_at(results[k], from, bytes),
                  element_at(held[results_[k].held], results_[k].from + from, bytes),
                  static_cast<size_t>((to - from) * bytes));
    }
    if (end >= highest) return;
  }
}

void StepInTiles::run_step(const Step& step, int64_t from, int64_t to, const std::vector<char*>& held,
                           uint8_t* fault) const {
  c10::SmallVector<const void*, 16> read;
  c10::SmallVector<void*, 8> made;
  for (const Read& r : step.reads) read.push_back(element_at(held[r.of.held], r.of.from, held_[r.of.held].bytes));
  for (const size_t k : step.makes) made.push_back(held[k]);
  step.kernel->run_part(from, to, read, made, fault);
}

}  // namespace tower::compiler
