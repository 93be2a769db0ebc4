#include "fuse/row_kernel.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/copy.h>

#include <algorithm>

namespace tower::compiler {
namespace {

class RowKernel final : public KernelOperator {
 public:
  RowKernel(std::shared_ptr<const Kernel> kernel, std::vector<Reading> readings, Sizes lanes, size_t outer,
            std::vector<Written> results)
      : kernel_(std::move(kernel)),
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

 private:
  void compute(c10::ArrayRef<const Tensor*> operands, c10::ArrayRef<Tensor*> results) const override {
    Kernel::Rows rows = rows_;
    c10::SmallVector<Tensor, 8> copies;
    c10::SmallVector<const void*, 8> from;
    for (const Reading& reading : readings_) {
      auto [t, strides] = as_read(*operands[reading.operand], reading);
      from.push_back(t.const_data_ptr());
      if (!t.is_same(*operands[reading.operand])) copies.push_back(std::move(t));
      if (outer_) rows.strides.emplace_back(strides.begin(), strides.begin() + static_cast<int64_t>(outer_));
    }
    c10::SmallVector<void*, 4> to;
    for (size_t k = 0; k < written_.size(); ++k) {
      *results[k] = at::detail::empty_strided_cpu(written_[k].sizes, written_[k].strides, written_[k].dtype);
      if (written_[k].is_sum) results[k]->zero_();
      to.push_back(results[k]->mutable_data_ptr());
    }
    if (std::find(lanes_.begin(), lanes_.end(), 0) == lanes_.end()) kernel_->run(rows, from, to);
    for (size_t k = 0; k < written_.size(); ++k)
      if (written_[k].wanted != written_[k].strides) *results[k] = in_wanted_order(*results[k], written_[k]);
  }

  static Tensor in_wanted_order(const Tensor& t, const Written& result) {
    const Tensor made = at::detail::empty_strided_cpu(result.sizes, result.wanted, result.dtype);
    return made.copy_(t);
  }

  Sizes strides_of(const Tensor& t, const Places& places) const {
    Sizes strides;
    for (const int64_t d : places) strides.push_back(d < 0 || t.size(d) == 1 ? 0 : t.stride(d));
    return strides;
  }

  // The operand, or a copy of it, whose rows can be read; and its strides over all lanes.
  std::pair<Tensor, Sizes> as_read(Tensor t, const Reading& reading) const {
    Sizes strides = strides_of(t, reading.places);
    if (reading.laid_out) {
      Sizes sizes = lanes_;
      for (size_t d = 0; d < outer_; ++d)
        if (strides[d] == 0) sizes[d] = 1;
      t = t.as_strided(sizes, strides).contiguous();
      return {t, strides_of(t, all_lanes_)};
    }
    if (reading.repeated || rows_are_whole(strides)) return {std::move(t), std::move(strides)};
    // A copy that lies in the order in which the kernel reads it.
    c10::SmallVector<int64_t, 6> order;
    for (const int64_t d : reading.places)
      if (d >= 0) order.push_back(d);
    t = t.permute(order).contiguous();
    Places places = reading.places;
    int64_t next = 0;
    for (int64_t& d : places)
      if (d >= 0) d = next++;
    return {t, strides_of(t, places)};
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
