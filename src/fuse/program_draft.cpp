#include "fuse/program_draft.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "fuse/memory_steps.h"
#include "fuse/small_graph.h"
#include "graph/addresses.h"
#include "graph/operand_dims.h"
#include "graph/viewed.h"
#include "kernels/compile_error.h"
#include "kernels/product_kernel.h"
#include "numbers/small.h"
#include "numbers/thresholds.h"
#include "tower/errors.h"

namespace tower::compiler {

std::vector<Extent> fixed(at::IntArrayRef numbers) {
  std::vector<Extent> extents;
  for (const int64_t number : numbers) extents.push_back(fixed(number));
  return extents;
}

namespace {

using Draft = PointerProgram::Draft;

// Operations of a region of examples, where there is one number of these: its kernels' lanes are few, so that what they
// hand on to each other, and compute again, is worth more than it is for many. (Of gradient and Hessian of an arm of 14
// joints there are 2 kernels in place of 19, which take LLVM no longer.)
constexpr int64_t kMostOperations = 20000;
// Columns that are multiplied by a captured matrix, for which it is transposed first: some two cycles an element, which
// a product in single numbers takes for three columns.
constexpr int64_t kFewestOfTransposed = 3;
constexpr size_t kFirstMade = size_t{1} << 32;  // the memories' numbers, until it is known how many constants there are

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

  // A value as it lies, and in which memory.
  struct InNumbered : Lies {
    size_t memory;
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
    if (!others.empty()) refuse_program(who_, others);
    for (const Call& call : graph_.calls)
      if (!is_view(call) && !dynamic_cast<const StepsInMemory*>(call.op))
        refuse_program(who_, call.op->name() + " (which the process makes of copies of rows)");
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
    if (call.operands.size() != 1) refuse_program(who_, call.op->name() + " (a view that depends on another tensor)");
    if (is_given_addresses(*call.op))
      refuse_program(who_, call.op->name() + " (which is given addresses in memory that begins elsewhere)");
    const InNumbered lies = *values_[call.operands[0]];
    const auto seen = lie_in_operand(graph_, call, lies);
    if (!seen) refuse_program(who_, call.op->name() + " (which copies what it would view)");
    size_t next = 0;
    for (const ValueId id : call.results) {
      if (id == kNoValue) continue;
      const Lies& in = (*seen)[next++];
      place(id, in.sizes, in.strides, in.dtype, lies.memory, in.offset);
    }
  }

  size_t first_constant() const { return graph_.arguments.size() + graph_.results.size(); }
  static bool is_made(size_t memory) { return memory >= kFirstMade && memory != kInNoMemory; }

  void place(ValueId id, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, size_t memory,
             int64_t offset = 0) {
    InNumbered& lies = values_[id].emplace();
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
      const InNumbered& lies = *values_[id];
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
      const InNumbered& lies = *values_[p.in == MemoryStep::operand ? call.operands[p.number] : call.results[p.number]];
      return {lies.memory, lies.offset};
    };
    for (const MemoryStep& step : steps.steps) {
      if (step.kernel && step.kernel->sums() > 0) refuse_program(who_, "a kernel adds up over all examples");
      Draft::Step added{step.kind, step.kernel, step.bytes, fixed(step.lanes)};
      added.sizes = fixed(step.sizes);
      added.tasks = step.tasks;
      added.systems = step.systems;
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
      if (added.kind == kStepOfProducts && !examples_) let_columns_follow(added);
      draft_.steps.push_back(std::move(added));
    }
  }

  // A product's kernel takes vectors of columns. Where those of the result are apart, and its rows next to each other,
  // the transposed product is computed, to the same bits: Cᵀ = Sᵀ + BᵀAᵀ. A constant matrix, whose rows are apart then,
  // is kept transposed; one that is captured is transposed in each call, if several columns are multiplied by it. (For
  // any number of examples that could not be the same each time.)
  void let_columns_follow(Draft::Step& step) {
    const size_t dims = step.sizes.size(), row = dims - 3, column = dims - 2, term = dims - 1;
    const LaneElement& element = step.kernel->lane_code().elements[0];
    enum : size_t { a, b, s, c };
    const auto stride = [&](size_t of, size_t d) -> int64_t& { return step.strides[of * dims + d].fixed; };
    const bool has_s = step.places[s].memory != static_cast<int64_t>(kInNoMemory);
    const auto follow = [&](size_t d) {
      return stride(c, d) == element.bytes && (!has_s || stride(s, d) == element.bytes);
    };
    if (follow(column) && step.sizes[column].fixed > 1) return;
    if (!follow(row) || step.sizes[row].fixed < kVectorsOfTile * kBytesOfVector / element.bytes) return;
    if (stride(a, row) != element.bytes && !transpose_constant(step, dims, element.bytes)) return;
    std::swap(step.sizes[row], step.sizes[column]);
    for (const size_t of : {a, b, s, c}) std::swap(stride(of, row), stride(of, column));
    for (const size_t d : {row, column, term}) std::swap(stride(a, d), stride(b, d));
    for (size_t d = 0; d < row; ++d) std::swap(stride(a, d), stride(b, d));
    std::swap(step.places[a], step.places[b]);
  }

  // The rows of a constant A next to each other, term by term; false where it is none, or differs among products. (A
  // step that is made before makes all that `add_step` has made live for one step more. Nothing begins there.)
  bool transpose_constant(Draft::Step& step, size_t dims, int64_t bytes) {
    const auto number = static_cast<size_t>(step.places[0].memory) - first_constant();
    if (static_cast<size_t>(step.places[0].memory) < first_constant() || number >= draft_.constants.size())
      return false;
    const auto [tensor, captured] = draft_.constants[number];
    int64_t columns = step.sizes[dims - 2].fixed;
    for (size_t d = 0; d + 3 < dims; ++d) {
      if (step.strides[d].fixed != 0) return false;
      columns *= step.sizes[d].fixed;
    }
    if (tensor.element_size() != bytes) return false;
    const int64_t rows = step.sizes[dims - 3].fixed, terms = step.sizes[dims - 1].fixed;
    int64_t &row = step.strides[dims - 3].fixed, &term = step.strides[dims - 1].fixed;
    const int64_t first = step.places[0].offset.fixed;
    const std::tuple key{number, first, row, term, rows, terms};
    auto known = transposed_.find(key);
    if (known == transposed_.end()) {
      if (captured && columns < kFewestOfTransposed) return false;
      Draft::Step copy{kStepOfCopies, nullptr, bytes, fixed(1)};
      copy.sizes = {fixed(terms), fixed(rows)};
      copy.strides = {fixed(term), fixed(row), fixed(rows * bytes), fixed(bytes)};
      known = transposed_
                  .emplace(key, captured ? make(terms * rows * bytes, draft_.steps.size() + 1)
                                         : add_constant(transposed(tensor, copy, first), false))
                  .first;
      if (captured) {
        copy.places = {step.places[0], {static_cast<int64_t>(known->second), fixed(0), fixed(0)}};
        draft_.steps.push_back(std::move(copy));
      }
    }
    // It is there for this step, which is the next one.
    if (captured) draft_.made[known->second - kFirstMade].last = draft_.steps.size();
    row = bytes;
    term = rows * bytes;
    step.places[0] = {static_cast<int64_t>(known->second), fixed(0), fixed(0)};
    return true;
  }

  // A tensor's elements, from a byte on, as a step copies them.
  static Tensor transposed(const Tensor& tensor, const Draft::Step& copy, int64_t first) {
    Tensor result = at::detail::empty_cpu({copy.sizes[0].fixed, copy.sizes[1].fixed}, tensor.scalar_type());
    const int64_t sizes[] = {copy.sizes[0].fixed, copy.sizes[1].fixed};
    const int64_t from[] = {copy.strides[0].fixed, copy.strides[1].fixed};
    const int64_t to[] = {copy.strides[2].fixed, copy.strides[3].fixed};
    int64_t place[2];
    copy_elements(static_cast<const char*>(tensor.const_data_ptr()) + first,
                  static_cast<char*>(result.mutable_data_ptr()), copy.bytes, 2, sizes, from, to, place);
    return result;
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
    const InNumbered& lies = *values_[id];
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
  void add_copy(const InNumbered& from, size_t to, const std::vector<Copied>& dims) {
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
    if (!type_of(dtype)) refuse_program(who_, std::string("no kernels compute in ") + c10::toString(dtype));
  }

  const Graph& graph_;
  Kernels& kernels_;
  const char* who_;
  const std::optional<int64_t> examples_;
  ById<ValueId, std::optional<InNumbered>> values_;
  // Constants that are there transposed as well: of which one, from where on, how far rows and terms are apart, and how
  // many there are of each.
  std::map<std::tuple<size_t, int64_t, int64_t, int64_t, int64_t, int64_t>, size_t> transposed_;
  ById<ValueId, ValueId> viewed_;  // of results of views, if these have all elements of a value
  Draft draft_;
};

}  // namespace

void refuse_program(const char* who, const std::string& what) {
  throw UnsupportedError(std::string(who) +
                         ": the function does more than kernels do whose lanes read and write memory: " + what +
                         ". report() of the compiled function says what is in kernels.");
}

void refuse_program(const char* who, const CompileError& why) {
  throw UnsupportedError(std::string(who) + ": there is no machine code: " + why.what() + ".");
}

PointerProgram::Draft draft_of_fused(const Graph& fused, Kernels& kernels, const char* who,
                                     std::optional<int64_t> examples) {
  return DraftWriter(fused, kernels, who, examples).write();
}

PointerProgram::Draft draft_of(Graph traced, Kernels& kernels, const char* who, bool frozen,
                               std::optional<int64_t> examples) try {
  if (frozen)
    for (Value& v : traced.values)
      if (v.origin == Origin::captured) v.origin = Origin::constant;
  const int64_t most_operations = examples ? thresholds().most_operations : kMostOperations;
  return draft_of_fused(fuse(traced, kernels, Worth::outside, most_operations).graph, kernels, who, examples);
} catch (const CompileError& e) {
  refuse_program(who, e);
}

}  // namespace tower::compiler
