#include "fuse/row_kernel.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorGeometry.h>
#include <ATen/ops/copy.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "fuse/memory_steps.h"

namespace tower::compiler {
namespace {

std::vector<MemoryKernel::Result> made_by(const std::vector<Written>& written) {
  std::vector<MemoryKernel::Result> made;
  for (const Written& w : written) made.push_back({w.sizes, w.wanted, w.dtype});
  return made;
}

class RowKernel final : public MemoryKernel, public StepsInMemory, public ReachingKernel {
 public:
  RowKernel(std::shared_ptr<const Kernel> kernel, std::vector<Reading> readings, Sizes lanes, size_t outer,
            std::vector<Written> results)
      : MemoryKernel(made_by(results)),
        kernel_(std::move(kernel)),
        readings_(std::move(readings)),
        lanes_(std::move(lanes)),
        outer_(outer),
        written_(std::move(results)) {
    rows_.lanes = 1;
    for (size_t d = 0; d < lanes_.size(); ++d) {
      all_lanes_.push_back(static_cast<int64_t>(d));
      if (d < outer_) rows_.sizes.push_back(lanes_[d]);
      else rows_.lanes *= lanes_[d];
    }
    size_t alone = outer_;  // dimensions in which no sum goes on
    for (const Written& w : written_) {
      rows_.of_outputs.emplace_back();
      for (size_t d = 0; d < outer_; ++d) {
        const int64_t at = w.places[d];
        rows_.of_outputs.back().push_back(at < 0 ? 0 : along(w.strides, at));
        if (at < 0 && lanes_[d] != 1) alone = std::min(alone, d);
      }
    }
    for (size_t d = alone; d < outer_; ++d) rows_.together *= lanes_[d];
  }

  void run_in(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results) const override {
    Kernel::Rows::Strides strides_of_rows;
    c10::SmallVector<Tensor, 8> copies;
    c10::SmallVector<const void*, 8> from;
    for (const Reading& reading : readings_) {
      Sizes strides;
      if (reading.operand == Reading::kOwn) {
        strides.resize(outer_, 0);
        from.push_back(reading.own.const_data_ptr());
      } else if (const InMemory& t = operands[reading.operand]; reading.table) {
        strides = *reading.table;
        const bool row_by_row = at::geometry_is_contiguous(t.sizes, t.strides);
        if (!row_by_row) copies.push_back(t.tensor().contiguous());
        from.push_back(row_by_row ? t.data : copies.back().const_data_ptr());
      } else {
        strides = strides_of(t.sizes, t.strides, reading.places);
        if (is_read_as_it_lies(reading, strides)) {
          from.push_back(t.data);
        } else {
          copies.push_back(copy_to_read(t.tensor(), reading, strides));
          from.push_back(copies.back().const_data_ptr());
        }
      }
      if (outer_) strides_of_rows.emplace_back(strides.begin(), strides.begin() + static_cast<int64_t>(outer_));
    }
    // What is wanted in another order than the lanes' is first written in that.
    c10::SmallVector<Tensor, 4> in_order_of_lanes(written_.size());
    c10::SmallVector<void*, 4> to;
    for (size_t k = 0; k < written_.size(); ++k) {
      const Written& w = written_[k];
      const bool as_wanted = w.wanted == w.strides;
      if (!as_wanted) in_order_of_lanes[k] = at::detail::empty_strided_cpu(w.sizes, w.strides, w.dtype);
      to.push_back(as_wanted ? results[k].data : in_order_of_lanes[k].mutable_data_ptr());
      if (w.is_sum) std::memset(to.back(), 0, made()[k].bytes());
    }
    if (std::find(lanes_.begin(), lanes_.end(), 0) == lanes_.end()) {
      if (outer_ == 0) {
        kernel_->run(rows_.lanes, from, to);
      } else {
        Kernel::Rows rows = rows_;
        rows.strides = std::move(strides_of_rows);
        kernel_->run(rows, from, to);
      }
    }
    for (size_t k = 0; k < written_.size(); ++k)
      if (in_order_of_lanes[k].defined()) results[k].tensor().copy_(in_order_of_lanes[k]);
  }

  MemorySteps steps(c10::ArrayRef<InMemory> operands, Kernels& /*kernels*/) const override {
    MemorySteps all;
    const LaneElement* const elements = kernel_->lane_code().elements;
    MemoryStep step{kStepOfRows, kernel_, 0, rows_.lanes, Sizes(rows_.sizes)};
    for (size_t i = 0; i < readings_.size(); ++i) {
      const Reading& reading = readings_[i];
      if (reading.operand == Reading::kOwn) {
        step.inputs.push_back({MemoryStep::own, all.own.size(), 0, 0, Sizes(outer_, 0)});
        all.own.push_back(reading.own);
        continue;
      }
      const InMemory& t = operands[reading.operand];
      MemoryStep::Place at{MemoryStep::operand, reading.operand};
      Sizes strides = reading.table ? *reading.table : strides_of(t.sizes, t.strides, reading.places);
      if (reading.table) {
        at.strides = t.strides;
        if (!at::geometry_is_contiguous(t.sizes, t.strides))
          at = all.make_copy(elements[i].bytes, Sizes(t.sizes), std::move(at));
      } else if (!is_read_as_it_lies(reading, strides)) {
        const Copied copied = how_copied(t.sizes, t.strides, reading, strides);
        at.strides = copied.strides;
        at = all.make_copy(elements[i].bytes, copied.sizes, std::move(at));
        strides = strides_of(copied.sizes, at.strides, copied.places);
      }
      at.strides = first_of(strides);
      step.inputs.push_back(std::move(at));
    }
    // What is wanted in another order than the lanes' is first written in that.
    std::vector<MemoryStep> afterwards;
    for (size_t k = 0; k < written_.size(); ++k) {
      const Written& w = written_[k];
      const int64_t bytes = elements[readings_.size() + k].bytes, all_bytes = static_cast<int64_t>(made()[k].bytes());
      MemoryStep::Place to{MemoryStep::result, k, 0, 0, w.wanted};
      if (w.wanted != w.strides) {
        MemoryStep::Place in_order{MemoryStep::made, all.make(all_bytes), 0, 0, w.strides};
        afterwards.push_back(MemoryStep::copy(bytes, w.sizes, in_order, std::exchange(to, in_order)));
      }
      if (w.is_sum) all.steps.push_back({kStepOfZeros, nullptr, 1, all_bytes, {}, {}, {{to.in, to.number}}});
      to.strides = Sizes(rows_.of_outputs[k]);
      step.outputs.push_back(std::move(to));
    }
    for (const Type type : kernel_->kept())
      step.outputs.push_back({MemoryStep::made, all.make(rows_.lanes * size_of(type))});
    all.steps.push_back(std::move(step));
    std::move(afterwards.begin(), afterwards.end(), std::back_inserter(all.steps));
    return all;
  }

  std::optional<RowReach> reach(c10::ArrayRef<InMemory> operands) const override {
    if (outer_ > 0 || !kernel_->computes_parts()) return std::nullopt;
    RowReach all{kernel_, rows_.lanes, {}};
    for (const Reading& reading : readings_) {
      if (reading.operand == Reading::kOwn || (reading.table && !reading.reach)) return std::nullopt;
      const InMemory& t = operands[reading.operand];
      const bool shared = reading.repeated && !reading.table;
      if (!reading.table && !is_read_as_it_lies(reading, strides_of(t.sizes, t.strides, reading.places)))
        return std::nullopt;
      all.reads.push_back({reading.operand, shared, reading.table ? *reading.reach : Reach{}});
    }
    for (const Written& w : written_)
      if (w.is_sum || w.wanted != w.strides || count(w.sizes) != rows_.lanes ||
          !at::geometry_is_contiguous(w.sizes, w.strides))
        return std::nullopt;
    return all;
  }

 private:
  static Sizes strides_of(at::IntArrayRef sizes, at::IntArrayRef strides, const Places& places) {
    Sizes at_lanes;
    for (const int64_t d : places) at_lanes.push_back(d < 0 || along(sizes, d) == 1 ? 0 : along(strides, d));
    return at_lanes;
  }

  // Whether the lanes of each row that is read lie next to each other, or are one. `strides`: over all lanes.
  bool is_read_as_it_lies(const Reading& reading, const Sizes& strides) const {
    return !reading.laid_out && (reading.repeated || rows_are_whole(strides));
  }

  Sizes first_of(const Sizes& strides) const {
    return Sizes(strides.begin(), strides.begin() + static_cast<int64_t>(outer_));
  }

  // An operand as it is copied, so that its rows can be read: with which sizes and strides, and where the lanes are in
  // the copy, which has no gaps.
  struct Copied {
    Sizes sizes, strides;
    Places places;
  };
  Copied how_copied(at::IntArrayRef sizes, at::IntArrayRef strides, const Reading& reading,
                    const Sizes& at_lanes) const {
    if (reading.laid_out) {
      Copied copied{lanes_, at_lanes, all_lanes_};
      for (size_t d = 0; d < outer_; ++d)
        if (at_lanes[d] == 0) copied.sizes[d] = 1;
      return copied;
    }
    // It lies in the order in which the kernel reads it.
    Copied copied{{}, {}, reading.places};
    for (int64_t& d : copied.places) {
      if (d < 0) continue;
      copied.sizes.push_back(along(sizes, d));
      copied.strides.push_back(along(strides, d));
      d = std::ssize(copied.sizes) - 1;
    }
    return copied;
  }

  // A copy of an operand, whose rows can be read, and its strides.
  Tensor copy_to_read(const Tensor& t, const Reading& reading, Sizes& strides) const {
    const Copied copied = how_copied(t.sizes(), t.strides(), reading, strides);
    const Tensor copy = t.as_strided(copied.sizes, copied.strides).contiguous();
    strides = strides_of(copy.sizes(), copy.strides(), copied.places);
    return copy;
  }

  // Whether the lanes of a row lie next to each other.
  bool rows_are_whole(const Sizes& strides) const {
    int64_t expected = 1;
    for (size_t d = lanes_.size(); d-- > outer_;) {
      if (lanes_[d] != 1 && strides[d] != expected) return false;
      expected *= lanes_[d];
    }
    return true;
  }

  std::shared_ptr<const Kernel> kernel_;
  std::vector<Reading> readings_;
  Sizes lanes_;
  Places all_lanes_;  // of what has the lanes' dimensions
  size_t outer_;      // dimensions that count rows; the others are the lanes of one row
  std::vector<Written> written_;
  Kernel::Rows rows_;
};

}  // namespace

c10::intrusive_ptr<KernelOperator> row_kernel(std::shared_ptr<const Kernel> kernel, std::vector<Reading> readings,
                                              Sizes lanes, size_t outer, std::vector<Written> results) {
  return c10::make_intrusive<RowKernel>(std::move(kernel), std::move(readings), std::move(lanes), outer,
                                        std::move(results));
}

}  // namespace tower::compiler
