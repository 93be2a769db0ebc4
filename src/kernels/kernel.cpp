#include "kernels/kernel.h"

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/loop_memory.h"
#include "kernels/threads.h"
#include "numbers/thresholds.h"
#include "tower/loops.h"

namespace tower::compiler {
namespace {

constexpr size_t kVectorBytes = 64;  // of the widest there is
struct alignas(kVectorBytes) VectorMemory {
  char bytes[kVectorBytes];
};
constexpr size_t kFewVectors = 16;      // whose memory is on the stack
constexpr int64_t kBlockBytes = 16384;  // of lanes that lie apart

double now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const char* at(const void* memory, int64_t lane, Type type) {
  return static_cast<const char*>(memory) + lane * size_of(type);
}
char* at(void* memory, int64_t lane, Type type) { return static_cast<char*>(memory) + lane * size_of(type); }

}  // namespace

namespace {

KernelText text_of(const Region& region, const CodeSource& source) {
  if (source.vector_bytes() == 0) throw CompileError("no LLVM: " + Llvm::get().why_not());
  return print_kernel(region, "tower_kernel", source.vector_bytes(), source.math());
}

}  // namespace

std::string Kernel::key_of(const Region& region, const CodeSource& source) {
  return CodeSource::key_of(text_of(region, source).module);
}

Kernel::Kernel(const Region& region, const CodeSource& source)
    : inputs_(region.inputs), has_rows_(region.has_rows()), has_places_(region.has_places()) {
  const double start = now();
  const KernelText text = text_of(region, source);
  key_ = CodeSource::key_of(text.module);
  auto [code, generated] = source.get(text.module, key_);
  code_ = std::move(code);
  for (const Region::Input& input : inputs_)
    bytes_.push_back(static_cast<uint8_t>(input.repeated ? 0 : size_of(input.type)));
  for (size_t k = 0; k < region.outputs.size(); ++k) {
    outputs_.push_back(region.graph[region.outputs[k]].type);
    added_.push_back(region.is_added(k));
    if (region.is_summed(k)) summed_.push_back(k);
    bytes_.push_back(static_cast<uint8_t>(region.is_summed(k) ? 0 : size_of(outputs_[k])));
  }
  lane_code_ = {reinterpret_cast<LaneFunction*>(code_->address()), text.lanes, static_cast<int64_t>(inputs_.size()),
                static_cast<int64_t>(outputs_.size()), bytes_.data()};
  kept_ = text.kept;
  memories_ = text.memories;
  facts_ = {.instructions = text.instructions,
            .vector_lanes = text.lanes,
            .code_bytes = code_->bytes(),
            .generated = generated};
  columns_ = static_cast<int64_t>(outputs_.size() - summed_.size());
  for (const Region::Input& input : inputs_) {
    columns_ += !input.repeated;
    facts_.bytes_a_lane += input.repeated ? 0 : size_of(input.type);
  }
  for (size_t k = 0; k < outputs_.size(); ++k)
    if (!region.is_once(k) && !region.is_summed(k)) facts_.bytes_a_lane += size_of(outputs_[k]);
  facts_.milliseconds = now() - start;
  // Whole vectors, so that only the last thread has a rest.
  const int64_t lanes = thresholds().grain_of_kernel * 8 / (text.work + 8);
  grain_ = (lanes / text.lanes + 1) * text.lanes;
}

const char* Kernel::needs_more() const {
  if (!summed_.empty()) return "sums over all examples";
  if (has_rows_ || std::find(added_.begin(), added_.end(), true) != added_.end()) return "whole rows of elements";
  if (has_places_) return "the numbers of its lanes";
  return memories_ ? "memory for each step of a loop, for the way back through it" : nullptr;
}

// The machine code, for whole vectors of lanes. `outputs`: and what is kept of a row.
void Kernel::call(int64_t begin, int64_t end, c10::ArrayRef<const void*> inputs, c10::ArrayRef<void*> outputs,
                  uint8_t* fault) const {
  if (memories_ == 0) return lane_code_.function(begin, end, inputs.data(), outputs.data(), fault);
  const LoopMemories memories(memories_);
  c10::SmallVector<void*, 32> all(outputs.begin(), outputs.end());
  for (size_t k = 0; k < memories_; ++k) all.push_back(memories[k]);
  lane_code_.function(begin, end, inputs.data(), all.data(), fault);
  if (memories.failed()) *fault |= kNoMemory;
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
  if (count == 1 && !has_rows_)
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
    run_apart(begin * chunk, std::min(end * chunk, lanes), inputs, outputs, fault);
  });
}

void Kernel::run_apart(int64_t begin, int64_t end, c10::ArrayRef<Source> inputs, c10::ArrayRef<Target> outputs,
                       uint8_t* fault) const {
  const int64_t vector = facts_.vector_lanes;
  // As many lanes a block as the memory takes.
  alignas(kVectorBytes) char few[kBlockBytes];
  std::unique_ptr<char[]> many;
  int64_t block = kBlockBytes / (kBytesOfColumn * std::max<int64_t>(columns_, 1)) / vector * vector;
  if (block == 0) {
    block = vector;
    many = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(kBytesOfColumn * columns_ * vector));
  }
  c10::SmallVector<const void*, 32> from(inputs.size());
  c10::SmallVector<void*, 32> to(outputs.size());
  std::optional<LoopMemories> memories;
  if (memories_) memories.emplace(memories_);
  for (size_t k = 0; k < memories_; ++k) to.push_back((*memories)[k]);
  run_lanes(&lane_code_, begin, end, block, inputs.data(), outputs.data(), from.data(), to.data(),
            many ? many.get() : few, fault);
  if (memories && memories->failed()) *fault |= kNoMemory;
}

void Kernel::run_rows(const Rows& rows, int64_t begin, int64_t end, c10::ArrayRef<const void*> inputs,
                      c10::ArrayRef<void*> outputs, uint8_t* fault) const {
  const size_t dims = rows.sizes.size();
  std::vector<int64_t> place(dims);
  int64_t left = begin;
  for (size_t d = dims; d-- > 0; left /= rows.sizes[d]) place[d] = left % rows.sizes[d];
  const auto offset = [&](const Rows::Strides& strides, size_t i) {
    int64_t sum = 0;
    for (size_t d = 0; d < dims; ++d) sum += place[d] * strides[i][d];
    return sum;
  };
  std::vector<const void*> from;
  std::vector<void*> to;
  for (size_t i = 0; i < inputs.size(); ++i) from.push_back(at(inputs[i], offset(rows.strides, i), inputs_[i].type));
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool follows = rows.of_outputs.empty();
    to.push_back(at(outputs[i], follows ? begin * rows.lanes : offset(rows.of_outputs, i), outputs_[i]));
  }
  std::vector<std::unique_ptr<char[]>> kept;
  for (const Type type : kept_) {
    kept.push_back(std::make_unique_for_overwrite<char[]>(static_cast<size_t>(rows.lanes * size_of(type))));
    to.push_back(kept.back().get());
  }
  // Steps along dimension d, or back over all of it.
  const auto move = [&](size_t d, int64_t by) {
    for (size_t i = 0; i < from.size(); ++i) from[i] = at(from[i], by * rows.strides[i][d], inputs_[i].type);
    for (size_t i = 0; i < rows.of_outputs.size(); ++i) to[i] = at(to[i], by * rows.of_outputs[i][d], outputs_[i]);
  };
  for (int64_t row = begin; row < end; ++row) {
    if (has_rows_) call(0, rows.lanes, from, to, fault);
    else run_range(0, rows.lanes, from, to, fault);
    if (rows.of_outputs.empty())
      for (size_t i = 0; i < outputs.size(); ++i) to[i] = at(to[i], rows.lanes, outputs_[i]);
    for (size_t d = dims; d-- > 0;) {
      move(d, 1);
      if (++place[d] < rows.sizes[d]) break;
      move(d, -place[d]);
      place[d] = 0;
    }
  }
}

void Kernel::run_range(int64_t begin, int64_t end, c10::ArrayRef<const void*> inputs, c10::ArrayRef<void*> outputs,
                       uint8_t* fault) const {
  const int64_t whole = (end - begin) / facts_.vector_lanes * facts_.vector_lanes;
  if (whole > 0) call(begin, begin + whole, inputs, outputs, fault);
  if (begin + whole < end) run_rest(begin + whole, end, inputs, outputs, fault);
}

bool Kernel::computes_parts() const {
  return !has_rows_ && summed_.empty() && memories_ == 0 && kept_.empty() &&
         std::find(added_.begin(), added_.end(), true) == added_.end();
}

// The last vector of lanes ends where they do.
void Kernel::run_part(int64_t begin, int64_t end, c10::ArrayRef<const void*> inputs, c10::ArrayRef<void*> outputs,
                      uint8_t* fault) const {
  const int64_t vector = facts_.vector_lanes, whole = (end - begin) / vector * vector;
  if (whole == 0) return begin < end ? run_rest(begin, end, inputs, outputs, fault) : void();
  call(begin, begin + whole, inputs, outputs, fault);
  if (begin + whole < end) call(end - vector, end, inputs, outputs, fault);
}

void Kernel::run_rest(int64_t begin, int64_t end, c10::ArrayRef<const void*> inputs, c10::ArrayRef<void*> outputs,
                      uint8_t* fault) const {
  const int64_t vector = facts_.vector_lanes, lanes = end - begin;
  const size_t vectors = inputs.size() + outputs.size();
  VectorMemory few[kFewVectors];
  std::unique_ptr<VectorMemory[]> many;
  if (vectors > kFewVectors) many = std::make_unique_for_overwrite<VectorMemory[]>(vectors);
  char* memory = reinterpret_cast<char*>(many ? many.get() : few);
  c10::SmallVector<const void*, 8> from(inputs.begin(), inputs.end());
  c10::SmallVector<void*, 8> to;
  // Lanes that know their numbers have the same ones in the copy.
  const int64_t first = has_places_ ? begin : 0;
  const auto before = [&](char* copy, Type type) {
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(copy) - static_cast<uintptr_t>(first * size_of(type)));
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs_[i].repeated) continue;
    char* copy = std::exchange(memory, memory + kVectorBytes);
    const size_t size = static_cast<size_t>(size_of(inputs_[i].type));
    std::memcpy(copy, at(inputs[i], begin, inputs_[i].type), static_cast<size_t>(lanes) * size);
    for (int64_t lane = lanes; lane < vector; ++lane)
      std::memcpy(at(static_cast<void*>(copy), lane, inputs_[i].type), at(inputs[i], end - 1, inputs_[i].type), size);
    from[i] = before(copy, inputs_[i].type);
  }
  char* made = memory;
  for (size_t i = 0; i < outputs.size(); ++i) {
    char* copy = std::exchange(memory, memory + kVectorBytes);
    to.push_back(before(copy, outputs_[i]));
    if (added_[i])
      std::memcpy(copy, at(outputs[i], begin, outputs_[i]), static_cast<size_t>(lanes * size_of(outputs_[i])));
  }
  call(first, first + vector, from, to, fault);
  for (size_t i = 0; i < outputs.size(); ++i, made += kVectorBytes)
    std::memcpy(at(outputs[i], begin, outputs_[i]), made, static_cast<size_t>(lanes * size_of(outputs_[i])));
}

}  // namespace tower::compiler
