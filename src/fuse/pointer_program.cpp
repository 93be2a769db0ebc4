// The order of things: a draft is made of a fused graph, with the sizes that it has (DraftWriter); drafts for several
// numbers of examples are one draft whose extents follow (following); a draft's values get places in the workspace, and
// tables (settle).
#include "fuse/pointer_program.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "fuse/memory_steps.h"
#include "fuse/small_graph.h"
#include "graph/lifetimes.h"
#include "graph/operand_dims.h"
#include "graph/plan.h"
#include "kernels/compile_error.h"
#include "kernels/loop_memory.h"
#include "numbers/small.h"
#include "tower/errors.h"

namespace tower::compiler {

struct PointerProgram::Draft {
  struct Made {
    Extent bytes;
    size_t first, last;  // steps
  };
  struct Step {
    int64_t kind;
    std::shared_ptr<const Kernel> kernel;  // null: it copies
    int64_t bytes;                         // of an element that is copied
    Extent lanes;
    std::vector<ProgramPlace> places = {};
    std::vector<Extent> sizes = {}, strides = {};
  };
  std::vector<Operand> arguments, results;
  std::vector<Constant> constants;
  std::vector<Made> made;
  std::vector<Step> steps;
};

namespace {

using Draft = PointerProgram::Draft;

constexpr int64_t kColumnBytes = 16384;
constexpr size_t kInNoMemory = static_cast<size_t>(-1);
constexpr size_t kFirstMade = size_t{1} << 32;  // the memories' numbers, until it is known how many constants there are
// Of examples, for which drafts are compared: none is a multiple of another, or of a vector's lanes.
constexpr std::array<int64_t, 3> kNumbers = {29, 31, 37};

Extent fixed(int64_t number) { return {number, 0}; }

std::vector<Extent> fixed(at::IntArrayRef numbers) {
  std::vector<Extent> extents;
  for (const int64_t number : numbers) extents.push_back(fixed(number));
  return extents;
}

[[noreturn]] void refuse(const char* who, const std::string& what) {
  throw UnsupportedError(std::string(who) +
                         ": the function does more than kernels do whose lanes read and write memory: " + what +
                         ". report() of the compiled function says what is in kernels.");
}

// ---- one graph ----

class DraftWriter {
 public:
  DraftWriter(const Graph& graph, Kernels& kernels, const char* who, std::optional<int64_t> examples)
      : graph_(graph),
        kernels_(kernels),
        who_(who),
        examples_(examples),
        values_(graph.values.size()),
        viewed_(graph.values.size(), kNoValue) {}

  Draft write() {
    refuse_others();
    for (const ValueId id : graph_.arguments) add_argument(id);
    for (const ValueId id : graph_.values.ids())
      if (graph_.values[id].tensor.defined()) add_constant(id);
    find_viewed();
    for (const Call& call : graph_.calls)
      if (is_view(call)) add_view(call);
      else add_step(call);
    for (size_t k = 0; k < graph_.results.size(); ++k) add_result(graph_.results[k], k);
    const size_t first_made = first_constant() + draft_.constants.size();
    for (Draft::Step& step : draft_.steps)
      for (ProgramPlace& place : step.places)
        if (is_made(static_cast<size_t>(place.memory))) place.memory -= static_cast<int64_t>(kFirstMade - first_made);
    return std::move(draft_);
  }

 private:
  // A constant that is one number everywhere may have as many elements as there are examples: one of them will do.
  void add_constant(ValueId id) {
    const Value& v = graph_.values[id];
    check_dtype(v.dtype);
    const bool captured = v.origin == Origin::captured;
    Tensor tensor = v.tensor;
    Sizes strides(tensor.strides());
    if (!captured && tensor.numel() > 0 && same_everywhere(v)) {
      tensor = at::detail::empty_cpu({}, v.dtype);
      std::memcpy(tensor.mutable_data_ptr(), v.tensor.const_data_ptr(), tensor.nbytes());
      std::fill(strides.begin(), strides.end(), 0);
    }
    place(id, v.tensor.sizes(), strides, v.dtype, add_constant(std::move(tensor), captured));
  }

  size_t add_constant(Tensor tensor, bool captured) {
    draft_.constants.push_back({std::move(tensor), captured});
    return first_constant() + draft_.constants.size() - 1;
  }

  // A value as it lies, and where.
  struct Lies {
    Sizes sizes, strides;
    at::ScalarType dtype;
    size_t memory;
    int64_t offset;  // in it, in elements

    size_t bytes() const { return MemoryKernel::Result{sizes, strides, dtype}.bytes(); }
  };

  void refuse_others() const {
    Report report;
    note_left(graph_, report);
    std::string others;
    const auto add = [&](const std::string& name, const std::string& why) {
      others += (others.empty() ? "" : "; ") + name + " (" + why + ")";
    };
    for (const auto& [reason, names] : report.left)
      for (const auto& [name, times] : names) add(name, reason);
    if (!others.empty()) refuse(who_, others);
    for (const Call& call : graph_.calls)
      if (!is_view(call) && !dynamic_cast<const StepsInMemory*>(call.op))
        refuse(who_,
               call.op->name() + " (a sum of products of tensors, which is made of copies and products of matrices)");
  }

  // All that is left besides kernels: refuse_others.
  static bool is_view(const Call& call) { return !dynamic_cast<const KernelOperator*>(call.op); }

  // What results are that are views of all elements of a value.
  void find_viewed() {
    for (const Call& call : graph_.calls) {
      if (!is_view(call) || call.results[0] == kNoValue) continue;
      const ValueId of = call.operands[0], result = call.results[0];
      if (count(graph_.values[of].sizes) != count(graph_.values[result].sizes)) continue;
      viewed_[result] = viewed_[of] == kNoValue ? of : viewed_[of];
    }
  }

  // Where results are in their operand, which has no values yet, is found out on a tensor that lies as it does.
  void add_view(const Call& call) {
    // Such as aten::narrow.Tensor: the place depends on a value.
    if (call.operands.size() != 1) refuse(who_, call.op->name() + " (a view that depends on another tensor)");
    Graph alone;
    Call view = call;
    alone.arguments = view.operands = {alone.values.add(graph_.values[call.operands[0]])};
    for (ValueId& id : view.results)
      if (id != kNoValue) alone.results.push_back(id = alone.values.add(graph_.values[id]));
    for (Value& v : alone.values) v.tensor = Tensor();
    alone.calls.push_back(std::move(view));
    const Lies lies = *values_[call.operands[0]];
    const Tensor like = at::detail::empty_strided_cpu(lies.sizes, lies.strides, lies.dtype);
    const dynamic::Tensors seen = Plan(std::move(alone)).run({like});
    size_t next = 0;
    for (const ValueId id : call.results) {
      if (id == kNoValue) continue;
      const Tensor& t = seen[next++];
      if (!t.is_alias_of(like) || t.scalar_type() != lies.dtype)
        refuse(who_, call.op->name() + " (which copies what it would view)");
      place(id, t.sizes(), t.strides(), lies.dtype, lies.memory, lies.offset + t.storage_offset());
    }
  }

  size_t first_constant() const { return graph_.arguments.size() + graph_.results.size(); }
  static bool is_made(size_t memory) { return memory >= kFirstMade && memory != kInNoMemory; }

  void place(ValueId id, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, size_t memory,
             int64_t offset = 0) {
    Lies& lies = values_[id].emplace();
    lies.sizes.assign(sizes.begin(), sizes.end());
    lies.strides.assign(strides.begin(), strides.end());
    lies.dtype = dtype;
    lies.memory = memory;
    lies.offset = offset;
  }

  void add_argument(ValueId id) {
    const size_t memory = draft_.arguments.size();
    if (id == kNoValue) {
      draft_.arguments.push_back({at::ScalarType::Undefined, {}, {}});
      return;
    }
    const Value& v = graph_.values[id];
    check_dtype(v.dtype);
    place(id, v.sizes, v.strides, v.dtype, memory);
    draft_.arguments.push_back({v.dtype, fixed(v.sizes), fixed(v.strides)});
  }

  void add_step(const Call& call) {
    const auto& kernel = dynamic_cast<const MemoryKernel&>(*call.op);
    std::vector<InMemory> operands;
    for (const ValueId id : call.operands) {
      const Lies& lies = *values_[id];
      operands.push_back({nullptr, lies.sizes, lies.strides, lies.dtype});
    }
    const MemorySteps steps = dynamic_cast<const StepsInMemory&>(*call.op).steps(operands, kernels_);
    const size_t first = draft_.steps.size(), last = first + steps.steps.size() - 1;
    for (const ValueId id : call.operands)
      if (is_made(values_[id]->memory)) draft_.made[values_[id]->memory - kFirstMade].last = last;
    for (size_t k = 0; k < call.results.size(); ++k) {
      const MemoryKernel::Result& made = kernel.made()[k];
      place(call.results[k], made.sizes, made.strides, made.dtype,
            memory_of_result(call.results[k], made.bytes(), last));
    }
    std::vector<size_t> made, own;
    for (const int64_t bytes : steps.made) made.push_back(make(bytes, last));
    for (const Tensor& t : steps.own) own.push_back(add_constant(t, false));
    // The memory of a place, and where in it the value begins.
    const auto memory = [&](const MemoryStep::Place& p) -> std::pair<size_t, int64_t> {
      if (p.in == MemoryStep::made) return {made[p.number], 0};
      if (p.in == MemoryStep::own) return {own[p.number], 0};
      if (p.in == MemoryStep::nothing) return {kInNoMemory, 0};
      const Lies& lies = *values_[p.in == MemoryStep::operand ? call.operands[p.number] : call.results[p.number]];
      return {lies.memory, lies.offset};
    };
    for (const MemoryStep& step : steps.steps) {
      if (step.kernel && step.kernel->sums() > 0) refuse(who_, "a kernel adds up over all examples");
      Draft::Step added{step.kind, step.kernel, step.bytes, fixed(step.lanes)};
      added.sizes = fixed(step.sizes);
      const LaneCode* const code = step.kernel ? &step.kernel->lane_code() : nullptr;
      for (const auto* places : {&step.inputs, &step.outputs})
        for (const MemoryStep::Place& p : *places) {
          const auto k = std::ssize(added.places);
          const bool is_of_code = code && k < code->inputs + code->outputs;  // or the code keeps something there
          const int64_t bytes = is_of_code ? code->elements[k].bytes : step.bytes;
          const auto [number, offset] = memory(p);
          added.places.push_back({static_cast<int64_t>(number), fixed((offset + p.offset) * bytes), fixed(p.stride)});
          for (const int64_t stride : p.strides) added.strides.push_back(fixed(stride * bytes));
        }
      draft_.steps.push_back(std::move(added));
    }
  }

  // What the graph gives is written where the caller wants it, and else in the workspace.
  size_t memory_of_result(ValueId id, size_t bytes, size_t last) {
    const auto found = std::find_if(graph_.results.begin(), graph_.results.end(), [&](ValueId result) {
      return result == id || (viewed_[result] == id && order_in_memory(graph_.values[result]));
    });
    if (found != graph_.results.end())
      return graph_.arguments.size() + static_cast<size_t>(found - graph_.results.begin());
    return make(static_cast<int64_t>(bytes), last);
  }
  // Memory that is there from the next step to another.
  size_t make(int64_t bytes, size_t last) {
    draft_.made.push_back({fixed(bytes), draft_.steps.size(), last});
    return kFirstMade + draft_.made.size() - 1;
  }

  static int64_t size_of(const Lies& lies) { return static_cast<int64_t>(c10::elementSize(lies.dtype)); }

  void add_result(ValueId id, size_t k) {
    const Lies& lies = *values_[id];
    Value as_it_lies = graph_.values[id];
    as_it_lies.strides = lies.strides;
    Sizes strides = lies.strides;
    // A view with gaps is given row by row.
    const bool has_gaps = !order_in_memory(as_it_lies);
    if (has_gaps) {
      const auto row_by_row = c10::contiguous_strides(lies.sizes);
      strides.assign(row_by_row.begin(), row_by_row.end());
    }
    draft_.results.push_back({lies.dtype, fixed(lies.sizes), fixed(strides)});
    check_dtype(lies.dtype);
    const size_t memory = graph_.arguments.size() + k;
    if (lies.memory == memory) return;
    if (is_made(lies.memory)) draft_.made[lies.memory - kFirstMade].last = std::numeric_limits<size_t>::max();
    if (!has_gaps) return add_copy(lies, memory, {{count(lies.sizes), 1, 1}});
    std::vector<Copied> dims;
    for (size_t d = 0; d < lies.sizes.size(); ++d) dims.push_back({lies.sizes[d], lies.strides[d], strides[d]});
    // Along the longest, and that of the examples before any other, at one go.
    const auto is_longer = [&](const Copied& a, const Copied& b) { return rank(a.size) < rank(b.size); };
    std::iter_swap(std::max_element(dims.begin(), dims.end(), is_longer), dims.end() - 1);
    add_copy(lies, memory, dims);
  }

  int64_t rank(int64_t size) const { return size == examples_ ? std::numeric_limits<int64_t>::max() : size; }

  // A dimension, and how far elements are apart where they are read and where they are written.
  struct Copied {
    int64_t size, from, to;
  };
  void add_copy(const Lies& from, size_t to, const std::vector<Copied>& dims) {
    const int64_t bytes = size_of(from);
    Draft::Step step{kStepOfCopies, nullptr, bytes, fixed(1)};
    step.places = {{static_cast<int64_t>(from.memory), fixed(from.offset * bytes), fixed(0)},
                   {static_cast<int64_t>(to), fixed(0), fixed(0)}};
    for (const Copied& dim : dims) step.sizes.push_back(fixed(dim.size));
    for (const Copied& dim : dims) step.strides.push_back(fixed(dim.from * bytes));
    for (const Copied& dim : dims) step.strides.push_back(fixed(dim.to * bytes));
    draft_.steps.push_back(std::move(step));
  }

  void check_dtype(at::ScalarType dtype) const {
    if (!type_of(dtype)) refuse(who_, std::string("no kernels compute in ") + c10::toString(dtype));
  }

  const Graph& graph_;
  Kernels& kernels_;
  const char* who_;
  const std::optional<int64_t> examples_;
  ById<ValueId, std::optional<Lies>> values_;
  ById<ValueId, ValueId> viewed_;  // of results of views, if these have all elements of a value
  Draft draft_;
};

Draft draft_of(Graph traced, Kernels& kernels, const char* who, bool frozen, std::optional<int64_t> examples = {}) try {
  if (frozen)
    for (Value& v : traced.values)
      if (v.origin == Origin::captured) v.origin = Origin::constant;
  return DraftWriter(fuse(traced, kernels, /*fewest=*/1).graph, kernels, who, examples).write();
} catch (const CompileError& e) {
  throw UnsupportedError(std::string(who) + ": there is no machine code: " + e.what() + ".");
}

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
    for (const int64_t number : {step.kind, step.bytes, std::ssize(step.sizes), std::ssize(step.strides)})
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

// Whether a kernel that takes one lane at a time is called for one, in the same places whatever the number of examples.
bool is_of_one_lane(const Draft::Step& step) {
  constexpr int64_t kFarthest = std::numeric_limits<int32_t>::max();
  return step.kind == kStepOfLanes && step.lanes.fixed == 1 && step.lanes.each == 0 &&
         step.kernel->lane_code().vector == 1 &&
         std::all_of(step.places.begin(), step.places.end(), [](const ProgramPlace& place) {
           return place.offset.each == 0 && place.memory <= kFarthest && place.offset.fixed <= kFarthest;
         });
}

}  // namespace

PointerProgram::PointerProgram(const Graph& graph, std::shared_ptr<Kernels> kernels, const char* who,
                               const Options& options)
    : graph_(graph), options_(options), compiled_by_(std::move(kernels)) {
  settle(draft_of(graph, *compiled_by_, who, options.frozen), 1, /*any=*/false, options.loop_steps);
}

PointerProgram::PointerProgram(const LaneGraph& graph, std::shared_ptr<Kernels> kernels, const char* who,
                               const Options& options)
    : for_any_(graph), options_(options), compiled_by_(std::move(kernels)) {
  std::array<Draft, 3> drafts;
  std::array<int64_t, 3> numbers = kNumbers;
  for (size_t k = 0; k < 3; ++k) {
    numbers[k] += graph.fewest();
    drafts[k] = draft_of(graph.with(numbers[k]), *compiled_by_, who, options.frozen, numbers[k]);
  }
  auto draft = following(std::move(drafts), numbers);
  if (!draft) refuse(who, "what it reads and writes does not grow evenly with the number of examples");
  settle(std::move(*draft), graph.fewest(), /*any=*/true, options.loop_steps);
}

PointerProgram::~PointerProgram() = default;

std::shared_ptr<const PointerProgram> PointerProgram::by(std::shared_ptr<Kernels> kernels, const char* who) const {
  if (for_any_) return std::make_shared<const PointerProgram>(*for_any_, std::move(kernels), who, options_);
  return std::make_shared<const PointerProgram>(graph_, std::move(kernels), who, options_);
}

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
    added = {step.kind,  step.kernel ? &step.kernel->lane_code() : nullptr,
             step.bytes, step.lanes,
             nullptr,    nullptr,
             dims,       nullptr,
             nullptr};
    tables_.most_numbers = std::max(tables_.most_numbers, 2 * dims + std::ssize(step.strides));
    if (const LaneCode* code = added.code) {
      const int64_t vectors = code->inputs + code->outputs;
      tables_.most_inputs = std::max(tables_.most_inputs, code->inputs + (code->walked > 0));
      tables_.most_outputs = std::max(tables_.most_outputs, code->outputs + code->kept + code->loops);
      tables_.most_loops = std::max(tables_.most_loops, code->loops);
      tables_.column_bytes = std::max(
          {tables_.column_bytes, kColumnBytes, kBytesOfColumn * vectors * code->vector, kBytesOfVector * vectors});
      if (loop_steps >= 0)
        tables_.loop_bytes = std::max(tables_.loop_bytes, in_lines(step.kernel->loop_bytes(loop_steps)));
      if (is_of_one_lane(step)) {
        added.kind = kStepOfOneLane;
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
    if (steps_[n].kind == kStepOfOneLane) steps_[n].pointers = std::exchange(pointer, pointer + step.places.size());
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
  const int fault = run_tables(&tables_, n, x, y, workspace.of(work_bytes_for(&tables_, n)),
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

}  // namespace tower::compiler
