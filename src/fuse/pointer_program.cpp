// The order of things: a draft is made of a fused graph, with the sizes that it has (program_draft.h); drafts for
// several numbers of examples are one draft whose extents follow (following); a draft's values get places in the
// workspace, and tables (settle).
#include "fuse/pointer_program.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "core/bytes.h"
#include "fuse/program_draft.h"
#include "fuse/shared_numbers.h"
#include "graph/lifetimes.h"
#include "kernels/compile_error.h"
#include "kernels/loop_memory.h"
#include "tower/errors.h"

namespace tower::compiler {
namespace {

using Draft = PointerProgram::Draft;

constexpr int64_t kColumnBytes = 16384;
constexpr int64_t kMostOnStack = 32768;  // bytes of a workspace for one call
// Of examples, for which drafts are compared: none is a multiple of another, or of a vector's lanes.
constexpr std::array<int64_t, 3> kNumbers = {29, 31, 37};

// ---- several graphs ----

template <class F>
void for_each_extent(Draft& draft, F f) {
  for (auto* operands : {&draft.arguments, &draft.results})
    for (auto& operand : *operands)
      for (auto* extents : {&operand.sizes, &operand.strides}) std::for_each(extents->begin(), extents->end(), f);
  for (Draft::Made& made : draft.made) f(made.bytes);
  for (Draft::Step& step : draft.steps) {
    f(step.lanes);
    for (ProgramPlace& place : step.places) {
      f(place.offset);
      f(place.stride);
    }
    for (auto* extents : {&step.sizes, &step.strides}) std::for_each(extents->begin(), extents->end(), f);
  }
}

// All of a draft but its extents, and how many these are.
std::string shape_of(Draft& draft) {
  ByteWriter out;
  for (const auto* operands : {&draft.arguments, &draft.results})
    out.list(*operands, [&](const auto& operand) {
      out.number(static_cast<int64_t>(operand.dtype));
      out.number(static_cast<int64_t>(operand.sizes.size()));
    });
  out.list(draft.made, [&](const Draft::Made& made) {
    out.number(static_cast<int64_t>(made.first));
    out.number(static_cast<int64_t>(made.last));
  });
  out.list(draft.steps, [&](const Draft::Step& step) {
    out.text(step.kernel ? step.kernel->key() : "");
    for (const int64_t number :
         {step.kind, step.bytes, std::ssize(step.sizes), std::ssize(step.strides), step.tasks, step.systems})
      out.number(number);
    out.list(step.places, [&](const ProgramPlace& place) { out.number(place.memory); });
  });
  return out.take();
}

bool same_constants(const Draft& a, const Draft& b) {
  return std::equal(
      a.constants.begin(), a.constants.end(), b.constants.begin(), b.constants.end(), [](const auto& x, const auto& y) {
        return x.captured == y.captured && (x.captured ? x.tensor.is_same(y.tensor) : same_bits(x.tensor, y.tensor));
      });
}

// One draft for any number of examples; none where the others do not say how it follows.
std::optional<Draft> following(std::array<Draft, 3> drafts, const std::array<int64_t, 3>& numbers) {
  for (size_t k = 1; k < 3; ++k)
    if (shape_of(drafts[k]) != shape_of(drafts[0]) || !same_constants(drafts[k], drafts[0])) return std::nullopt;
  std::array<std::vector<Extent*>, 3> extents;
  for (size_t k = 0; k < 3; ++k) for_each_extent(drafts[k], [&](Extent& extent) { extents[k].push_back(&extent); });
  for (size_t i = 0; i < extents[0].size(); ++i) {
    const auto at = [&](size_t k) { return extents[k][i]->fixed; };
    const int64_t more = at(1) - at(0), between = numbers[1] - numbers[0];
    if (more % between != 0) return std::nullopt;
    const Extent extent{at(0) - more / between * numbers[0], more / between};
    if (extent_for(extent, numbers[2]) != at(2)) return std::nullopt;
    *extents[0][i] = extent;
  }
  return std::move(drafts[0]);
}

// Where values are for one group of examples, and what there is of them then; those of the same size for any number of
// examples by themselves.
Layout layout_of(const std::vector<Draft::Made>& made, bool growing) {
  std::vector<Lifetime> lifetimes;
  for (const Draft::Made& value : made)
    if ((value.bytes.each != 0) == growing)
      lifetimes.push_back({value.first, value.last, static_cast<size_t>(extent_for(value.bytes, kExamplesOfGroup))});
  return lay_out(lifetimes);
}

int64_t in_lines(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
int64_t aligned(size_t bytes) { return in_lines(static_cast<int64_t>(bytes)); }

// Whether all lanes are whole vectors, next to each other, in the same places whatever the number of examples.
bool is_of_pointers(const Draft::Step& step) {
  constexpr int64_t kFarthest = std::numeric_limits<int32_t>::max();
  if (step.kind != kStepOfLanes || step.lanes.each != 0) return false;
  const LaneCode& code = step.kernel->lane_code();
  if (step.lanes.fixed % code.vector != 0) return false;
  for (size_t k = 0; k < step.places.size(); ++k) {
    const auto& [memory, offset, stride] = step.places[k];
    if (offset.each != 0 || memory > kFarthest || offset.fixed > kFarthest) return false;
    if (step.lanes.fixed > 1 && code.elements[k].apart && (stride.each != 0 || stride.fixed != 1)) return false;
  }
  return true;
}

}  // namespace

namespace {

// For one number of examples, all that is made is in one memory.
void gather_made(Draft& draft) {
  if (draft.made.empty()) return;
  const auto first = static_cast<int64_t>(draft.arguments.size() + draft.results.size() + draft.constants.size());
  const Layout layout = layout_of(draft.made, /*growing=*/false);
  for (Draft::Step& step : draft.steps)
    for (ProgramPlace& place : step.places) {
      if (place.memory < first) continue;
      place.offset.fixed += static_cast<int64_t>(layout.places[static_cast<size_t>(place.memory - first)]);
      place.memory = first;
    }
  draft.made = {{fixed(static_cast<int64_t>(layout.bytes)), 0, std::numeric_limits<size_t>::max()}};
}

// The kernels of a draft that are drafted as well are made: as such that know where their lanes are, NOTE [Lanes in
// places], or, where that cannot be, or there is no LLVM but what was saved, as such that are told.
void make_kernels(Draft& draft, Kernels& kernels) {
  const bool has_memory = !draft.made.empty();
  const auto handed_on = static_cast<int64_t>(draft.arguments.size() + draft.results.size() + draft.constants.size());
  const int64_t offset = has_memory ? in_lines(draft.made[0].bytes.fixed) : 0;
  int64_t most_handed_on = 0;
  std::vector<Draft::Step> steps;
  const auto add_in_places = [&](const Draft::Step& step, const Region& region) {
    Region placed = region;
    placed.placed = {step.lanes.fixed, {}};
    for (const ProgramPlace& place : step.places)
      placed.placed->places.push_back({place.memory, place.offset.fixed, place.stride.fixed});
    const auto apart = kernels.source().math() == Math::strict ? shared_apart(placed, handed_on, offset) : std::nullopt;
    try {
      std::vector<std::shared_ptr<const Kernel>> made = {kernels.get(apart ? apart->shared : placed)};
      if (apart && apart->lanes) made.push_back(kernels.get(*apart->lanes));
      for (const auto& kernel : made) steps.push_back({kStepInPlaces, kernel, step.bytes, step.lanes});
      if (apart) most_handed_on = std::max(most_handed_on, apart->bytes);
      return true;
    } catch (const CompileError&) {
      return false;
    }
  };
  for (Draft::Step& step : draft.steps) {
    const Region* const region = step.kernel ? step.kernel->region() : nullptr;
    const bool may_be =
        region && step.kind == kStepOfLanes && step.lanes.fixed > 0 && step.kernel->lane_code().loops == 0;
    if (may_be && add_in_places(step, *region)) continue;
    if (region) step.kernel = kernels.get(*region);
    steps.push_back(std::move(step));
  }
  draft.steps = std::move(steps);
  if (most_handed_on > 0) draft.made = {{fixed(offset + most_handed_on), 0, std::numeric_limits<size_t>::max()}};
}

Draft draft_for_one(const Graph& graph, const std::shared_ptr<Kernels>& kernels, const char* who,
                    const PointerProgram::Options& options) try {
  const auto drafted = options.numbers_stay ? Kernels::drafts_of(kernels) : kernels;
  Draft draft = draft_of(graph, *drafted, who, options.frozen);
  gather_made(draft);
  make_kernels(draft, *kernels);
  return draft;
} catch (const CompileError& e) {
  refuse_program(who, e);
}

}  // namespace

PointerProgram::PointerProgram(const Graph& graph, const std::shared_ptr<Kernels>& kernels, const char* who,
                               const Options& options)
    : graph_(graph) {
  settle(draft_for_one(graph, kernels, who, options), 1, /*any=*/false, options.loop_steps);
}

PointerProgram::PointerProgram(const LaneGraph& graph, const std::shared_ptr<Kernels>& kernels, const char* who,
                               const Options& options) {
  std::array<Draft, 3> drafts;
  std::array<int64_t, 3> numbers = kNumbers;
  for (size_t k = 0; k < 3; ++k) {
    numbers[k] += graph.fewest();
    drafts[k] = draft_of(graph.with(numbers[k]), *kernels, who, options.frozen, numbers[k]);
  }
  auto draft = following(std::move(drafts), numbers);
  if (!draft) refuse_program(who, "what it reads and writes does not grow evenly with the number of examples");
  settle(std::move(*draft), graph.fewest(), /*any=*/true, options.loop_steps);
}

PointerProgram::PointerProgram(Draft draft) {
  gather_made(draft);
  settle(std::move(draft), 1, /*any=*/false, /*loop_steps=*/-1);
}

PointerProgram::~PointerProgram() = default;

void PointerProgram::settle(Draft draft, int64_t fewest, bool any, int64_t loop_steps) {
  arguments_ = std::move(draft.arguments);
  results_ = std::move(draft.results);
  constants_ = std::move(draft.constants);
  for (const Constant& constant : constants_) constant_memory_.push_back(constant.tensor.const_data_ptr());
  tables_.fewest = fewest;
  tables_.any_number = any;
  tables_.arguments = static_cast<int64_t>(arguments_.size());
  tables_.results = static_cast<int64_t>(results_.size());
  tables_.constants = static_cast<int64_t>(constants_.size());
  tables_.constant = constant_memory_.data();
  tables_.memories = tables_.arguments + tables_.results + tables_.constants + static_cast<int64_t>(draft.made.size());
  for (Draft::Step& step : draft.steps) {
    const auto dims = std::ssize(step.sizes);
    ProgramStep& added = steps_.emplace_back();
    added = {step.kind,   step.kernel ? &step.kernel->lane_code() : nullptr,
             step.bytes,  step.lanes,
             nullptr,     nullptr,
             dims,        nullptr,
             nullptr,     step.tasks,
             step.systems};
    tables_.most_numbers = std::max(tables_.most_numbers, 2 * dims + std::ssize(step.strides));
    if (const LaneCode* code = added.code) {
      const int64_t vectors = code->inputs + code->outputs;
      tables_.most_inputs = std::max(tables_.most_inputs, code->inputs + (code->walked > 0));
      tables_.most_outputs = std::max(tables_.most_outputs, code->outputs + code->kept + code->loops);
      tables_.most_loops = std::max(tables_.most_loops, code->loops);
      if (step.kind != kStepInPlaces)
        tables_.column_bytes = std::max(
            {tables_.column_bytes, kColumnBytes, kBytesOfColumn * vectors * code->vector, kBytesOfVector * vectors});
      if (loop_steps >= 0)
        tables_.loop_bytes = std::max(tables_.loop_bytes, in_lines(step.kernel->loop_bytes(loop_steps)));
      if (is_of_pointers(step)) {
        added.kind = kStepOfPointers;
        for (const ProgramPlace& place : step.places)
          pointers_.push_back({static_cast<int32_t>(place.memory), static_cast<int32_t>(place.offset.fixed)});
      }
    }
    places_.insert(places_.end(), step.places.begin(), step.places.end());
    for (auto* extents : {&step.sizes, &step.strides})
      extents_.insert(extents_.end(), extents->begin(), extents->end());
    kernels_.push_back(step.kernel);
  }
  const ProgramPlace* place = places_.data();
  const ProgramPointer* pointer = pointers_.data();
  const Extent* extent = extents_.data();
  for (size_t n = 0; n < steps_.size(); ++n) {
    const Draft::Step& step = draft.steps[n];
    steps_[n].places = std::exchange(place, place + step.places.size());
    if (steps_[n].kind == kStepOfPointers) steps_[n].pointers = std::exchange(pointer, pointer + step.places.size());
    steps_[n].sizes = std::exchange(extent, extent + step.sizes.size());
    steps_[n].strides = std::exchange(extent, extent + step.strides.size());
  }
  tables_.steps = static_cast<int64_t>(steps_.size());
  tables_.step = steps_.data();

  const Layout of_all = layout_of(draft.made, /*growing=*/false), of_group = layout_of(draft.made, /*growing=*/true);
  const int64_t first_fixed =
                    bytes_for_lists(&tables_) + tables_.column_bytes + tables_.most_loops * tables_.loop_bytes,
                first_growing = first_fixed + aligned(of_all.bytes), group = aligned(of_group.bytes);
  size_t next_fixed = 0, next_growing = 0;
  for (const Draft::Made& made : draft.made) {
    // A value's places in all groups are next to each other: it begins where it would with as many times the bytes.
    if (made.bytes.each != 0) made_.push_back({first_growing, static_cast<int64_t>(of_group.places[next_growing++])});
    else made_.push_back({first_fixed + static_cast<int64_t>(of_all.places[next_fixed++]), 0});
  }
  tables_.made = made_.data();
  tables_.work = {first_growing + kAlignment - 1, group};
}

namespace {

// A thread's, which grows to what has been asked for.
class Workspace {
 public:
  char* of(int64_t bytes) {
    if (bytes > bytes_) {
      memory_ = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(bytes));
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<char[]> memory_;
  int64_t bytes_ = 0;
};
thread_local Workspace workspace;

}  // namespace

void PointerProgram::run(int64_t n, const void* const* x, void* const* y) const {
  const LoopMemories loops(static_cast<size_t>(tables_.most_loops));
  const int fault = run_program(&tables_, n, x, y, workspace.of(work_bytes_for(&tables_, n)),
                                tables_.most_loops > 0 ? loops.data() : nullptr);
  if (fault < 0)
    throw ArgumentError(
        "native: there cannot be " + std::to_string(n) + " examples. " +
        (tables_.any_number
             ? "The function is for " + std::to_string(tables_.fewest) + " and more."
             : "The function was traced with one number of examples, or has none, and is for those sizes: pass 1. "
               "Called with two numbers of examples before, it is for any."));
  raise_faults(static_cast<uint8_t>(fault));
}

void PointerProgram::run_once(const void* const* x, void* const* y, const void* const* constants) const {
  alignas(kAlignment) char few[kMostOnStack];
  c10::DataPtr many;
  const int64_t bytes = work_bytes_for(&tables_, 1);
  if (bytes > kMostOnStack) many = c10::GetCPUAllocator()->allocate(static_cast<size_t>(bytes));
  ProgramTables now = tables_;
  if (constants) now.constant = constants;
  const LoopMemories loops(static_cast<size_t>(tables_.most_loops));
  raise_faults(run_program(&now, 1, x, y, bytes > kMostOnStack ? many.get() : few,
                           tables_.most_loops > 0 ? loops.data() : nullptr));
}

}  // namespace tower::compiler
