#include "fuse/moves_in_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "fuse/memory_steps.h"
#include "fuse/small.h"
#include "graph/operand_dims.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

constexpr int64_t kMostRows = 2000;  // of an example: each is a step of its own

// Elements of one example that are as far apart in its result as in what it reads, numbered row by row.
struct Run {
  int64_t to, from, count;
  int64_t to_step = 1, from_step = 1;
};

// The memory, in elements, of an example's element that has this number.
int64_t offset_in(const Sizes& sizes, const Sizes& strides, int64_t number) {
  int64_t offset = 0;
  for (size_t d = sizes.size(); d-- > 0; number /= sizes[d]) offset += number % sizes[d] * strides[d];
  return offset;
}

// Where each element of the result comes from, in order, as runs in memory.
class Runs {
 public:
  void add(int64_t to, int64_t from) {
    if (!runs.empty()) {
      Run& last = runs.back();
      const int64_t end_to = last.to + (last.count - 1) * last.to_step,
                    end_from = last.from + (last.count - 1) * last.from_step;
      if (last.count == 1) {
        last.to_step = to - end_to;
        last.from_step = from - end_from;
      }
      if (to == end_to + last.to_step && from == end_from + last.from_step) {
        ++last.count;
        return;
      }
    }
    runs.push_back({to, from, 1});
  }

  std::vector<Run> runs;
};

class MoveOperator final : public MemoryKernel, public StepsInMemory {
 public:
  // `reads`: of each element of an example's result, the number of the one that it is, from one; zero: it is zero.
  MoveOperator(Result made, Sizes of_example, Seen operand, std::vector<int64_t> reads)
      : MemoryKernel({std::move(made)}, "tower::moves"),
        of_example_(std::move(of_example)),
        operand_(std::move(operand)),
        reads_(std::move(reads)) {}

  void run_in(c10::ArrayRef<InMemory> /*operands*/, c10::ArrayRef<InMemory> /*results*/) const override {
    TORCH_INTERNAL_ASSERT(false, "moves in memory are steps of programs: the process has LibTorch's");
  }

  bool is_another_kernel() const override { return true; }
  MemorySteps steps(c10::ArrayRef<InMemory> operands, Kernels& /*kernels*/) const override {
    const Result& result = made()[0];
    const auto bytes = static_cast<int64_t>(c10::elementSize(result.dtype));
    const size_t vmaps = operand_.of_vmaps.size();
    const Sizes to_strides(result.strides.begin() + static_cast<ptrdiff_t>(vmaps), result.strides.end()),
        to_sizes(result.sizes.begin() + static_cast<ptrdiff_t>(vmaps), result.sizes.end());
    Sizes from_strides;
    for (const int64_t d : operand_.of_example) from_strides.push_back(along(operands[0].strides, d));
    Runs all_runs;
    for (size_t k = 0; k < reads_.size(); ++k)
      if (reads_[k] != 0)
        all_runs.add(offset_in(to_sizes, to_strides, static_cast<int64_t>(k)),
                     offset_in(of_example_, from_strides, reads_[k] - 1));
    MemorySteps all;
    MemoryStep zeros{kStepOfZeros, nullptr, bytes, count(result.sizes) * bytes};
    zeros.outputs = {{MemoryStep::result, 0}};
    all.steps.push_back(std::move(zeros));
    for (const Run& run : all_runs.runs) {
      Sizes sizes(result.sizes.begin(), result.sizes.begin() + static_cast<ptrdiff_t>(vmaps));
      MemoryStep::Place from{MemoryStep::operand, 0, run.from}, to{MemoryStep::result, 0, run.to};
      for (size_t v = 0; v < vmaps; ++v) {
        const int64_t d = operand_.of_vmaps[v];
        from.strides.push_back(d < 0 || along(operands[0].sizes, d) == 1 ? 0 : along(operands[0].strides, d));
        to.strides.push_back(result.strides[v]);
      }
      sizes.push_back(run.count);
      from.strides.push_back(run.from_step);
      to.strides.push_back(run.to_step);
      all.steps.push_back(MemoryStep::copy(bytes, std::move(sizes), std::move(from), std::move(to)));
    }
    return all;
  }

 private:
  const Sizes of_example_;
  const Seen operand_;
  const std::vector<int64_t> reads_;
};

// Of each element of an example's result, the number of the operand's that it is, from one; zero: it is zero. None
// where the operator does not say.
std::vector<int64_t> elements_read(const Call& call, const Value& from, const Value& result, const Sizes& of_example) {
  Expressions none;
  const Small example{of_example, {}, from.dtype, from.number};
  const Small* const operand = &example;
  const Origins origins = compiler::origins({none, *call.op, call.args, call.places, operand, result.dtype, false});
  if (origins.results.size() != 1) return {};
  const Tensor read = origins.results[0].to(at::kLong).contiguous();
  return {read.const_data_ptr<int64_t>(), read.const_data_ptr<int64_t>() + read.numel()};
}

}  // namespace

std::optional<Call> moves_in_memory(const Graph& graph, const Call& call) {
  if (call.op->moves != Moves::elements_or_zero || call.effect || call.opaque() || call.operands.size() != 1 ||
      call.results.size() != 1 || call.results[0] == kNoValue)
    return std::nullopt;
  const Value &from = graph.values[call.operands[0]], &result = graph.values[call.results[0]];
  const auto order = order_in_memory(result);
  if (!order || from.dtype != result.dtype || !from.device.is_cpu() || count(from.sizes) == 0) return std::nullopt;
  const Seen operand = seen(call, 0, from.sizes.size(), kNoAxis);
  Sizes of_example;
  for (const int64_t d : operand.of_example) of_example.push_back(along(from.sizes, d));
  const Sizes of_result(result.sizes.begin() + static_cast<ptrdiff_t>(call.vmaps.size()), result.sizes.end());
  if (std::max(count(of_example), count(of_result)) > thresholds().most_followed) return std::nullopt;
  // Rows of the result, or their parts, are copies of their own.
  if (!of_result.empty() && count(of_result) / std::max<int64_t>(of_result.back(), 1) > kMostRows) return std::nullopt;
  std::vector<int64_t> reads = elements_read(call, from, result, of_example);
  if (std::ssize(reads) != count(of_result)) return std::nullopt;
  auto op = c10::make_intrusive<MoveOperator>(
      MemoryKernel::Result{result.sizes, strides_in_order(result.sizes, *order), result.dtype}, std::move(of_example),
      operand, std::move(reads));
  return KernelOperator::call_of(std::move(op), graph, call.operands, call.results, {call.op->name()});
}

}  // namespace tower::compiler
