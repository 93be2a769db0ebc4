// Reductions of consecutive segments along a dimension, by a scatter to the segments.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <limits>

#include "records/demands.h"
#include "records/op.h"
#include "records/pull_back.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

using Number = std::optional<Scalar>;

// What a segment without elements reduces to, and all others start from.
Scalar start_of(const std::string& reduce, const Number& initial) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  if (initial) return *initial;
  if (reduce == "max") return -inf;
  if (reduce == "min") return inf;
  return reduce == "prod" ? 1.0 : 0.0;
}

// The segments are those that `offsets` delimits, or as long as `lengths` says; the dimensions before `axis` have
// segments of their own.
Tensor segment_reduce(const Tensor& x, const std::string& reduce, const Tensor& lengths, const Tensor& offsets,
                      int64_t dim, const Number& initial) {
  TORCH_CHECK(reduce == "sum" || reduce == "mean" || reduce == "max" || reduce == "min" || reduce == "prod",
              "Unsupported reduction given: ", reduce);
  TORCH_CHECK(lengths.defined() || offsets.defined(), "segment_reduce(): Either lengths or offsets must be defined.");
  TORCH_CHECK(x.dim() > 0 && x.numel() > 0, "segment_reduce(): data must not be empty");
  const int64_t axis = at::maybe_wrap_dim(dim, x.dim());
  const Tensor& given = lengths.defined() ? lengths : offsets;
  TORCH_CHECK(given.dim() == axis + 1 && given.sizes().slice(0, axis).equals(x.sizes().slice(0, axis)),
              "segment_reduce(): Expected axis to be the last dimension of lengths or offsets, and the ones before to "
              "be those of the data");
  TORCH_CHECK(given.scalar_type() == at::kLong || given.scalar_type() == at::kInt,
              "segment_reduce(): lengths and offsets must be integers");
  const Tensor ends = lengths.defined() ? lengths.cumsum(-1).to(at::kLong) : offsets.slice(-1, 1).to(at::kLong);
  const Tensor starts = lengths.defined() ? ends - lengths : offsets.slice(-1, 0, -1).to(at::kLong);
  const int64_t segments = ends.size(-1), count = x.size(axis);

  // The segment of each element; what is in none goes to one more at the end.
  Ints per_row(x.sizes().begin(), x.sizes().begin() + axis);
  per_row.push_back(count);
  const Tensor at = at::arange(count, ends.options()).expand(per_row).contiguous();
  Tensor segment = at::searchsorted(ends.contiguous(), at, /*out_int32=*/false, /*right=*/true);
  const Tensor start = starts.gather(-1, segment.clamp_max(segments - 1));
  segment = at::where(at < start, Scalar(segments), segment);
  for (int64_t d = axis + 1; d < x.dim(); ++d) segment = segment.unsqueeze(-1);

  Ints shape = x.sizes().vec();
  shape[static_cast<size_t>(axis)] = segments + 1;
  const std::string how = reduce == "max" ? "amax" : reduce == "min" ? "amin" : reduce == "prod" ? "prod" : "sum";
  Tensor result = at::full(shape, start_of(reduce, initial), x.options())
                      .scatter_reduce(axis, segment.expand_as(x), x, how, /*include_self=*/true)
                      .narrow(axis, 0, segments);
  if (reduce != "mean") return result;
  Tensor size = ends - starts;
  for (int64_t d = axis + 1; d < x.dim(); ++d) size = size.unsqueeze(-1);
  result = result / size.clamp_min(1).to(x.scalar_type());
  return initial ? result : result.masked_fill(size == 0, std::numeric_limits<double>::quiet_NaN());
}

void check_sum(const Tensor& lengths, const Tensor& x) {
  TORCH_CHECK(lengths.dim() >= 1 && lengths.dim() <= x.dim(), "segment_reduce(): Expected lengths of ", x.dim(),
              " dimensions at most, and one at least");
  const Tensor sum = lengths.sum(-1).to(at::kLong);
  TORCH_CHECK(at::equal(sum, at::full(sum.sizes(), x.size(lengths.dim() - 1), sum.options())),
              "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when "
              "!unsafe.");
}

// LibTorch's tag is missing: one row for each step that a sequence has, or for each element of a ragged tensor, unless
// their number is given.
void shapes_by_values() {
  record_of("aten::_pack_padded_sequence", "").shape_by_values = [](c10::ArrayRef<IValue>) { return true; };
  record_of("aten::_padded_dense_to_jagged_forward", "").shape_by_values = [](c10::ArrayRef<IValue> args) {
    return args[2].isNone();
  };
}

}  // namespace

void segments() {
  shapes_by_values();
  op<at::_ops::segment_reduce>().decomposes([](const Tensor& x, const std::string& reduce, const Tensor& lengths,
                                               const Tensor& indices, const Tensor& offsets, int64_t axis, bool unsafe,
                                               const Number& initial) {
    TORCH_CHECK(!indices.defined(), "segment_reduce(): indices based reduction is not supported yet.");
    if (lengths.defined() && !unsafe) check_sum(lengths, x);
    return segment_reduce(x, reduce, lengths, offsets, axis, initial);
  });
  op<at::_ops::_segment_reduce_backward>().decomposes([](const Tensor& ct, Skip, const Tensor& x,
                                                         const std::string& reduce, const Tensor& lengths,
                                                         const Tensor& offsets, int64_t axis, const Number& initial) {
    return pull_back(
        [&](const std::vector<Tensor>& in) { return segment_reduce(in[0], reduce, lengths, offsets, axis, initial); },
        {x}, ct)[0];
  });

  demands<at::_ops::segment_reduce>([](const Example& e) { demand_floating(e, 0); });
}

}  // namespace tower::rules
