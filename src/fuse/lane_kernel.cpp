#include "fuse/lane_kernel.h"

#include <ATen/core/Tensor.h>

#include "fuse/lane_call.h"

namespace tower::compiler {

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

class LaneKernel final : public MemoryKernel, public LaneCalls {
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
    if (lanes_ == 1) {
      c10::SmallVector<const void*, 64> from;
      c10::SmallVector<void*, 64> to;
      for_each_place(
          operands, results, tables, [&](const char* memory, int64_t) { from.push_back(memory); },
          [&](char* memory, int64_t) { to.push_back(memory); });
      return kernel_->run(1, from, to);
    }
    c10::SmallVector<Kernel::Source, 64> from;
    c10::SmallVector<Kernel::Target, 64> to;
    for_each_place(
        operands, results, tables,
        [&](const char* memory, int64_t stride) {
          from.push_back({memory, stride});
        },
        [&](char* memory, int64_t stride) {
          to.push_back({memory, stride});
        });
    if (lanes_ > 0) kernel_->run(lanes_, from, to);
  }

  std::optional<LaneCall> lane_call(c10::ArrayRef<InMemory> operands, std::string& why_not) const override {
    LaneCall call{kernel_, lanes_, {}, {}};
    for (const LaneRead& read : reads_) {
      const at::IntArrayRef strides = operands[read.operand].strides;
      if (read.table && !strides.equals(read.strides)) {
        why_not = "a table that does not lie row by row";
        return std::nullopt;
      }
      for_each_element(read, strides, [&](int64_t offset, int64_t stride) {
        call.inputs.push_back({read.operand, offset, stride});
      });
    }
    for (size_t k = 0; k < written_.size(); ++k)
      for (const int64_t offset : written_[k].offsets)
        call.outputs.push_back({k, offset, stride_of_lanes(written_[k].lane, written_[k].made.strides)});
    return call;
  }

 private:
  static int64_t stride_of_lanes(int64_t lane, at::IntArrayRef strides) {
    return lane == kNoLane ? 0 : along(strides, lane);
  }

  // `element` is told how many elements of memory there are before the first lane, and from one lane to the next.
  template <class F>
  static void for_each_element(const LaneRead& read, at::IntArrayRef strides, F element) {
    const int64_t stride = stride_of_lanes(read.lane, strides);
    const bool as_traced = strides.equals(read.strides);
    for (size_t i = 0; i < read.elements.size(); ++i)
      element(as_traced ? read.offsets[i] : offset_of(read.elements[i], strides, read.lane), stride);
  }

  // `source` and `target` are told where the first lane is of each input and output, and how many elements the lanes
  // are apart. `tables` keeps those that lay otherwise in memory than row by row.
  template <class S, class T>
  void for_each_place(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results, std::vector<Tensor>& tables,
                      S source, T target) const {
    for (const LaneRead& read : reads_) {
      const InMemory& t = operands[read.operand];
      if (read.table) {
        tables.push_back(t.tensor().contiguous());
        source(static_cast<const char*>(tables.back().const_data_ptr()), 0);
        continue;
      }
      const auto* memory = static_cast<const char*>(t.data);
      for_each_element(read, t.strides,
                       [&](int64_t offset, int64_t stride) { source(memory + offset * t.element_size(), stride); });
    }
    for (size_t k = 0; k < written_.size(); ++k) {
      auto* memory = static_cast<char*>(results[k].data);
      const int64_t stride = stride_of_lanes(written_[k].lane, results[k].strides);
      for (const int64_t offset : written_[k].offsets) target(memory + offset * results[k].element_size(), stride);
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

}  // namespace tower::compiler
