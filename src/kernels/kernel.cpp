#include "kernels/kernel.h"

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>

#include "kernels/elimination_kernel.h"
#include "kernels/loop_memory.h"
#include "kernels/product_kernel.h"
#include "kernels/threads.h"
#include "numbers/thresholds.h"
#include "tower/loops.h"

namespace tower::compiler {
namespace {

static_assert(static_cast<int>(kNoMemory) == static_cast<int>(kNoMemoryLeft));

struct alignas(kBytesOfVector) VectorMemory {
  char bytes[kBytesOfVector];
};
constexpr size_t kFewVectors = 16;      // whose memory is on the stack
constexpr int64_t kBlockBytes = 16384;  // of lanes that lie apart

double now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

namespace {

void is_not_run_here(int64_t, int64_t, const void* const*, void* const*, uint8_t*) {
  TORCH_INTERNAL_ASSERT(false, "compile: a kernel that was drafted, or made to be written to a file, is called");
}

KernelText text_of(const Region& region, const CodeSource& source) {
  if (source.vector_bytes() == 0) throw CompileError("no LLVM: " + Llvm::get().why_not());
  return print_kernel(region, "tower_kernel", source.vector_bytes(), source.math());
}

}  // namespace

std::string Kernel::key_of(const Region& region, const CodeSource& source) {
  return CodeSource::key_of(text_of(region, source).module);
}

Kernel::Kernel(const Region& region, const CodeSource& source) {
  const double start = now();
  const KernelText text = text_of(region, source);
  describe(region, text);
  take(source.get(text.module, key_));
  facts_.milliseconds = now() - start;
}

std::shared_ptr<const Kernel> Kernel::drafted(const Region& region, const CodeSource& source) {
  std::shared_ptr<Kernel> kernel(new Kernel());
  kernel->describe(region, text_of(region, source));
  kernel->lane_code_.function = is_not_run_here;
  kernel->region_ = std::make_unique<const Region>(region);
  return kernel;
}

// All but its machine code.
void Kernel::describe(const Region& region, const KernelText& text) {
  inputs_ = region.inputs;
  has_rows_ = region.has_rows();
  key_ = CodeSource::key_of(text.module);
  const auto bytes_of = [](Type type) { return static_cast<uint8_t>(size_of(type)); };
  for (const Region::Input& input : inputs_)
    elements_.push_back({bytes_of(input.type), input.repeated ? uint8_t{0} : bytes_of(input.type), 0});
  for (size_t k = 0; k < region.outputs.size(); ++k) {
    const Type type = outputs_.emplace_back(region.graph[region.outputs[k]].type);
    if (region.is_summed(k)) summed_.push_back(k);
    elements_.push_back({bytes_of(type), region.is_summed(k) ? uint8_t{0} : bytes_of(type), region.is_added(k)});
  }
  kept_ = text.kept;
  loops_ = text.loops;
  lane_code_ = {nullptr,   text.lanes,          std::ssize(inputs_), std::ssize(outputs_), elements_.data(),
                has_rows_, region.has_places(), std::ssize(kept_),   std::ssize(loops_),   region.walked};
  if (region.placed) lane_code_.inputs = lane_code_.outputs = 0;
  facts_ = {.instructions = text.instructions, .vector_lanes = text.lanes};
  columns_ = static_cast<int64_t>(outputs_.size() - summed_.size());
  for (const Region::Input& input : inputs_) {
    columns_ += !input.repeated;
    facts_.bytes_a_lane += input.repeated ? 0 : size_of(input.type);
  }
  for (size_t k = 0; k < outputs_.size(); ++k)
    if (!region.is_once(k) && !region.is_summed(k)) facts_.bytes_a_lane += size_of(outputs_[k]);
  // Whole vectors, so that only the last thread has a rest.
  const int64_t lanes = thresholds().grain_of_kernel * 8 / (text.work + 8);
  grain_ = (lanes / text.lanes + 1) * text.lanes;
}

void Kernel::take(CodeSource::Found found) {
  code_ = std::move(found.code);
  written_ = std::move(found.written);
  lane_code_.function = code_ ? reinterpret_cast<LaneFunction*>(code_->address()) : is_not_run_here;
  facts_.code_bytes = code_ ? code_->bytes() : written_->binary.bytes.size();
  facts_.generated = found.generated;
}

std::shared_ptr<const Kernel> Kernel::of_matrices(const KernelText& text, std::vector<LaneElement> elements,
                                                  int64_t inputs, const CodeSource& source) {
  std::shared_ptr<Kernel> kernel(new Kernel());
  kernel->key_ = CodeSource::key_of(text.module);
  kernel->elements_ = std::move(elements);
  const int64_t outputs = std::ssize(kernel->elements_) - inputs;
  kernel->lane_code_ = {nullptr, 1, inputs, outputs, kernel->elements_.data(), 0, 0, 0, 0, 0};
  kernel->facts_ = {.vector_lanes = 1};
  kernel->take(source.get(text.module, kernel->key_));
  return kernel;
}

std::shared_ptr<const Kernel> Kernel::product(Type type, const CodeSource& source) {
  if (source.vector_bytes() == 0) throw CompileError("no LLVM: " + Llvm::get().why_not());
  const auto bytes = static_cast<uint8_t>(size_of(type));
  return of_matrices(print_product(type, "tower_product", source.vector_bytes()), {4, {bytes, bytes, 0}}, 3, source);
}

std::shared_ptr<const Kernel> Kernel::elimination(Type type, const CodeSource& source) {
  if (source.vector_bytes() == 0) throw CompileError("no LLVM: " + Llvm::get().why_not());
  const auto bytes = static_cast<uint8_t>(size_of(type));
  std::vector<LaneElement> elements(kSystemOperands, {bytes, bytes, 0});
  for (const auto of_integers : {kSystemGivenPivots, kSystemOwnPivots, kSystemPivots, kSystemInfo})
    elements[of_integers] = {sizeof(int32_t), sizeof(int32_t), 0};
  return of_matrices(print_elimination(type, "tower_elimination", source.vector_bytes()), std::move(elements),
                     kSystemSolution, source);
}

int64_t Kernel::loop_bytes(int64_t steps) const {
  int64_t most = 0;
  for (const LoopRoom& loop : loops_) most = std::max(most, loop.bytes * loop.most_steps.value_or(steps));
  return most;
}

void raise_faults(uint8_t fault) {
  TORCH_CHECK(
      !(fault & kNoMemory),
      "compile: there is no memory for the states of a while_loop, which its pullback goes back through. Bound the "
      "number of steps by max_steps, or keep the loop out of the compiled function.");
  TORCH_CHECK(!(fault & kDividedByZero), "ZeroDivisionError");
  TORCH_CHECK_INDEX(
      !(fault & kOutOfRange),
      "index out of range: in a compiled function, what an index, index_select, gather, take, embedding, "
      "index_put, index_add or scatter_add of an example points to is not there. Not compiled, LibTorch says "
      "which index it is.");
  TORCH_CHECK_LINALG(
      !(fault & kSingular),
      "linalg: in a compiled function, a matrix that is solved with, inverted or factored is singular, or "
      "the input of a Cholesky factorization is not positive-definite.");
  if (fault & kNotEnded)
    throw MaxStepsError(
        "while_loop: after max_steps steps the predicate still holds for an example of a compiled function. Allow "
        "more, or use try_while_loop, which says of each example whether it ended.");
}

// Calls `piece` for parts of all pieces, on several threads where there are many lanes.
void Kernel::share(int64_t pieces, int64_t lanes_in_piece, Piece piece) const {
  std::atomic<uint8_t> any{0};
  share_among_threads(pieces, grain_ / lanes_in_piece, [&](int64_t begin, int64_t end) {
    uint8_t mine = 0;
    piece(begin, end, &mine);
    if (mine) any |= mine;
  });
  raise_faults(any);
}

void Kernel::run(const Rows& rows, c10::ArrayRef<const void*> inputs, c10::ArrayRef<void*> outputs) const {
  TORCH_INTERNAL_ASSERT(inputs.size() == inputs_.size() && outputs.size() == outputs_.size());
  int64_t count = 1;
  for (const int64_t size : rows.sizes) count *= size;
  // One row is shared by lanes, unless it has to be whole; many are by rows.
  const int64_t chunk = facts_.vector_lanes;
  if (count == 1 && !has_rows_ && lane_code_.walked == 0)
    share((rows.lanes + chunk - 1) / chunk, chunk, [&](int64_t begin, int64_t end, uint8_t* fault) {
      run_range(begin * chunk, std::min(end * chunk, rows.lanes), inputs, outputs, fault);
    });
  else
    share(count / rows.together, rows.together * rows.lanes, [&](int64_t begin, int64_t end, uint8_t* fault) {
      run_rows(rows, begin * rows.together, end * rows.together, inputs, outputs, fault);
    });
}

void Kernel::run(int64_t lanes, c10::ArrayRef<Source> inputs, c10::ArrayRef<Target> outputs) const {
  TORCH_INTERNAL_ASSERT(inputs.size() == inputs_.size() && outputs.size() == outputs_.size());
  if (!summed_.empty()) return run_summed(lanes, inputs, outputs);
  const int64_t chunk = facts_.vector_lanes;
  share((lanes + chunk - 1) / chunk, chunk, [&](int64_t begin, int64_t end, uint8_t* fault) {
    with_room(fault, [&](const void** from, void** to, char* columns, int64_t block) {
      run_lanes(&lane_code_, begin * chunk, std::min(end * chunk, lanes), block, inputs.data(), outputs.data(), from,
                to, columns, fault);
    });
  });
}

void Kernel::with_room(uint8_t* fault, InRoom run) const {
  const int64_t vector = facts_.vector_lanes;
  // As many lanes a block as the memory takes.
  alignas(kBytesOfVector) char few[kBlockBytes];
  std::unique_ptr<VectorMemory[]> many;
  int64_t block = kBlockBytes / (kBytesOfColumn * std::max<int64_t>(columns_, 1)) / vector * vector;
  if (block == 0) {
    block = vector;
    many = std::make_unique_for_overwrite<VectorMemory[]>(
        static_cast<size_t>(kBytesOfColumn * columns_ * vector / kBytesOfVector + 1));
  }
  c10::SmallVector<const void*, 32> from(inputs_.size());
  c10::SmallVector<void*, 32> to(outputs_.size());
  const LoopMemories memories(loops_.size());
  for (size_t k = 0; k < loops_.size(); ++k) to.push_back(memories.data() + k);
  run(from.data(), to.data(), many ? many.get()->bytes : few, block);
  if (memories.failed()) *fault |= kNoMemory;
}

// `outputs`: with those behind them.
void Kernel::run_range(int64_t begin, int64_t end, c10::ArrayRef<const void*> inputs, c10::ArrayRef<void*> outputs,
                       uint8_t* fault) const {
  VectorMemory few[kFewVectors];
  std::unique_ptr<VectorMemory[]> many;
  const size_t vectors = inputs_.size() + outputs_.size();
  if (vectors > kFewVectors) many = std::make_unique_for_overwrite<VectorMemory[]>(vectors);
  c10::SmallVector<const void*, 8> from(inputs_.size());
  c10::SmallVector<void*, 8> to(outputs_.size() + kept_.size() + loops_.size());
  const LoopMemories memories(loops_.size());
  c10::SmallVector<void*, 8> all(outputs.begin(), outputs.end());
  for (size_t k = 0; k < loops_.size(); ++k) all.push_back(memories.data() + k);
  run_row(&lane_code_, begin, end, inputs.data(), all.data(), from.data(), to.data(),
          reinterpret_cast<char*>(many ? many.get() : few), fault);
  if (memories.failed()) *fault |= kNoMemory;
}

void Kernel::run_rows(const Rows& rows, int64_t begin, int64_t end, c10::ArrayRef<const void*> inputs,
                      c10::ArrayRef<void*> outputs, uint8_t* fault) const {
  const size_t dims = rows.sizes.size(), vectors = inputs.size() + outputs.size();
  c10::SmallVector<int64_t, 32> strides;
  for (size_t i = 0; i < inputs.size(); ++i)
    for (size_t d = 0; d < dims; ++d) strides.push_back(rows.strides[i][d] * size_of(inputs_[i].type));
  for (size_t i = 0; i < outputs.size(); ++i) {
    // Without strides, rows follow each other.
    int64_t apart = rows.lanes;
    const size_t first = strides.size();
    strides.resize(first + dims);
    for (size_t d = dims; d-- > 0; apart *= rows.sizes[d])
      strides[first + d] = (rows.of_outputs.empty() ? apart : rows.of_outputs[i][d]) * size_of(outputs_[i]);
  }
  std::vector<std::unique_ptr<char[]>> kept;
  c10::SmallVector<const void*, 8> at_inputs(inputs.begin(), inputs.end()), from(inputs.size());
  if (lane_code_.walked) at_inputs.push_back(nullptr);
  c10::SmallVector<void*, 8> at_outputs(outputs.begin(), outputs.end()), to;
  for (const Type type : kept_) {
    kept.push_back(std::make_unique_for_overwrite<char[]>(static_cast<size_t>(rows.lanes * size_of(type))));
    at_outputs.push_back(kept.back().get());
  }
  const LoopMemories memories(loops_.size());
  for (size_t k = 0; k < loops_.size(); ++k) at_outputs.push_back(memories.data() + k);
  to.resize(at_outputs.size());
  c10::SmallVector<int64_t, 4> place(dims);
  VectorMemory few[kFewVectors];
  std::unique_ptr<VectorMemory[]> many;
  if (vectors > kFewVectors) many = std::make_unique_for_overwrite<VectorMemory[]>(vectors);
  const LaneRows lane_rows{static_cast<int64_t>(dims), rows.lanes, rows.sizes.data(), strides.data()};
  const RoomOfRows room{at_inputs.data(), from.data(),  at_outputs.data(),
                        to.data(),        place.data(), reinterpret_cast<char*>(many ? many.get() : few)};
  tower::compiler::run_rows(&lane_code_, &lane_rows, begin, end, &room, fault);
  if (memories.failed()) *fault |= kNoMemory;
}

bool Kernel::computes_parts() const {
  return !has_rows_ && lane_code_.walked == 0 && summed_.empty() && loops_.empty() && kept_.empty() &&
         std::none_of(elements_.begin(), elements_.end(), [](const LaneElement& e) { return e.added; });
}

// A vector that begins between whole ones takes the CPU two accesses, for each that it reads or writes. So they are
// counted from the row's beginning, but for the first and the last, which begin and end where the lanes do.
void Kernel::run_part(int64_t begin, int64_t end, c10::ArrayRef<const void*> inputs, c10::ArrayRef<void*> outputs,
                      uint8_t* fault) const {
  const int64_t vector = facts_.vector_lanes;
  if (end - begin < vector) return begin < end ? run_range(begin, end, inputs, outputs, fault) : void();
  const auto run = [&](int64_t from, int64_t to) {
    if (from < to) lane_code_.function(from, to, inputs.data(), outputs.data(), fault);
  };
  const int64_t first = (begin + vector - 1) / vector * vector, last = end / vector * vector;
  if (begin < first) run(begin, begin + vector);
  run(first, last);
  if (last < end) run(end - vector, end);
}

}  // namespace tower::compiler
