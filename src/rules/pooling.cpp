// Pooling, by average and by maximum, and the backward operators. A pool treats every channel of every item alike, so a
// batch is folded into the items. Average pooling is linear; maximum pooling is a gather at the indices it returns.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "numbers/thresholds.h"
#include "records/demands.h"
#include "records/dims.h"
#include "records/op.h"
#include "rules/registry.h"
#include "rules/small_indexing.h"
#include "rules/small_windows.h"

namespace tower::rules {
namespace {

// The elements of `t` that the indices of a pool over the last `spatial` dimensions chose.
Tensor at_indices(const Tensor& t, const Tensor& indices, int64_t spatial) {
  return gathered(t.flatten(-spatial), -1, indices.flatten(-spatial)).view(indices.sizes());
}

// fractional_max_poolNd(x, kernel, output, samples): `samples` [N, C, d] are where its windows begin. They have one
// dimension of items too many for a single one.
void fractional_vmap(VmapFrame& f, int64_t rank) {
  for (size_t i : {0, 3}) f.to_front(i, true);
  const bool single = f.tensor(0).dim() == rank;
  const int64_t items = f.tensor(0).size(1);
  if (!single) f.stack[0] = f.tensor(0).flatten(0, 1);
  f.stack[3] = f.tensor(3).flatten(0, 1);
  f.call();
  if (!single)
    for (auto& out : f.stack) out = out.toTensor().unflatten(0, {f.batch_size, items});
  f.out_dims.assign(2, 0);
}

template <class Pool, class Backward, int64_t rank>
void fractional_max_pool() {
  op<Pool>()
      .small(small::greatest_of_windows)
      .family("folded into items", [](VmapFrame& f) { fractional_vmap(f, rank); })
      .template inactive<3>()
      .template nondifferentiable_outputs<1>()
      .template vjp<0>([](Ct<0> ct, const Tensor& x, const Ints& kernel, const Ints& size, Skip, Out<1> indices) {
        return Backward::call(*ct, x, kernel, size, *indices);
      })
      .template jvp<0>(
          [](Tan<0> dx, Skip, Skip, Skip, Skip, Out<1> indices) { return at_indices(*dx, *indices, rank - 2); });
  op<Backward>()
      .small(small::added_in_planes(rank - 2))
      .folds_into_items(rank)
      .template linear<0>(
          [](Ct<0> ct, Skip, Skip, Skip, Skip, const Tensor& indices) { return at_indices(*ct, indices, rank - 2); })
      .template inactive<1>();
}

// NOTE [Maximum pooling by channels]
// LibTorch's CPU kernel for channels in front goes through windows one by one with a branch for each element; the one
// for channels last compares a vector of channels at a time. Where there are enough of them, that and the copies there
// and back take a quarter of the time.
void evaluate_max_pool2d(Stack& stack) {
  Tensor x = stack[0].toTensor();
  const bool by_channels =
      x.is_cpu() && x.dim() == 4 && x.size(1) >= compiler::thresholds().fewest_channels && x.is_contiguous();
  if (by_channels) x = x.contiguous(at::MemoryFormat::ChannelsLast);
  auto [y, indices] = at::max_pool2d_with_indices(x, stack[1].toIntVector(), stack[2].toIntVector(),
                                                  stack[3].toIntVector(), stack[4].toIntVector(), stack[5].toBool());
  if (by_channels) y = y.contiguous(), indices = indices.contiguous();
  stack.resize(2);
  stack[0] = std::move(y);
  stack[1] = std::move(indices);
}

void demand_same_shape(const Example& e) {
  TORCH_CHECK(e.sizes(0) == e.sizes(1), "Expected shape of indices to be same as that of the input tensor (",
              at::IntArrayRef(e.sizes(0)), ") but got indices tensor with shape: ", at::IntArrayRef(e.sizes(1)));
}

}  // namespace

void pooling() {
  // ---- average ----

  op<at::_ops::avg_pool2d>()
      .small(small::means)
      .depends(Depends::on_pooled_window)
      .folds_into_items(4)
      .linear<0>([](Ct<0> ct, const Tensor& x, const Ints& kernel, const Ints& stride, const Ints& padding, bool ceil,
                    bool count_pad, std::optional<int64_t> divisor) {
        return at::avg_pool2d_backward(*ct, x, kernel, stride, padding, ceil, count_pad, divisor);
      });
  op<at::_ops::avg_pool2d_backward>()
      .small(small::shares)
      .folds_into_items(4)
      .linear<0>([](Ct<0> ct, Skip, Skip, const Ints& kernel, const Ints& stride, const Ints& padding, bool ceil,
                    bool count_pad, std::optional<int64_t> divisor) {
        return at::avg_pool2d(*ct, kernel, stride, padding, ceil, count_pad, divisor);
      })
      .inactive<1>();
  op<at::_ops::avg_pool3d>()
      .small(small::means)
      .depends(Depends::on_pooled_window)
      .folds_into_items(5)
      .linear<0>([](Ct<0> ct, const Tensor& x, const Ints& kernel, const Ints& stride, const Ints& padding, bool ceil,
                    bool count_pad, std::optional<int64_t> divisor) {
        return at::avg_pool3d_backward(*ct, x, kernel, stride, padding, ceil, count_pad, divisor);
      });
  op<at::_ops::avg_pool3d_backward>()
      .small(small::shares)
      .folds_into_items(5)
      .linear<0>([](Ct<0> ct, Skip, Skip, const Ints& kernel, const Ints& stride, const Ints& padding, bool ceil,
                    bool count_pad, std::optional<int64_t> divisor) {
        return at::avg_pool3d(*ct, kernel, stride, padding, ceil, count_pad, divisor);
      })
      .inactive<1>();
  op<at::_ops::_adaptive_avg_pool2d>()
      .small(small::means)
      .depends(Depends::on_plane)
      .folds_into_items(4)
      .linear<0>([](Ct<0> ct, const Tensor& x) { return at::_adaptive_avg_pool2d_backward(*ct, x); });
  op<at::_ops::_adaptive_avg_pool2d_backward>()
      .small(small::shares)
      .folds_into_items(4)
      .linear<0>([](Ct<0> ct, Shape g) {
        return at::_adaptive_avg_pool2d(*ct, at::IntArrayRef(g.sizes).slice(g.sizes.size() - 2));
      })
      .inactive<1>();
  op<at::_ops::_adaptive_avg_pool3d>()
      .small(small::means)
      .depends(Depends::on_plane)
      .folds_into_items(5)
      .linear<0>([](Ct<0> ct, const Tensor& x) { return at::_adaptive_avg_pool3d_backward(*ct, x); });
  op<at::_ops::_adaptive_avg_pool3d_backward>()
      .small(small::shares)
      .folds_into_items(5)
      .linear<0>([](Ct<0> ct, Shape g) {
        return at::_adaptive_avg_pool3d(*ct, at::IntArrayRef(g.sizes).slice(g.sizes.size() - 3));
      })
      .inactive<1>();

  // ---- maximum ----

  // LibTorch's own composition reads memory where it sees no gradient.
  op<at::_ops::max_pool1d>().decomposes(
      [](const Tensor& x, const Ints& kernel, const Ints& stride, const Ints& padding, const Ints& dilation,
         bool ceil) { return std::get<0>(at::max_pool1d_with_indices(x, kernel, stride, padding, dilation, ceil)); });
  op<at::_ops::max_pool2d_with_indices>()
      .small(small::greatest_of_windows)
      .depends(Depends::on_pooled_window)
      .folds_into_items(4)
      .nondifferentiable_outputs<1>()
      .vjp<0>([](Ct<0> ct, const Tensor& x, const Ints& kernel, const Ints& stride, const Ints& padding,
                 const Ints& dilation, bool ceil, Out<1> indices) {
        return at::max_pool2d_with_indices_backward(*ct, x, kernel, stride, padding, dilation, ceil, *indices);
      })
      .jvp<0>(
          [](Tan<0> dx, Skip, Skip, Skip, Skip, Skip, Skip, Out<1> indices) { return at_indices(*dx, *indices, 2); })
      .evaluated_by(evaluate_max_pool2d);
  op<at::_ops::max_pool2d_with_indices_backward>()
      .small(small::added_in_planes(2))
      .folds_into_items(4)
      .linear<0>([](Ct<0> ct, Skip, Skip, Skip, Skip, Skip, Skip, Skip, const Tensor& indices) {
        return at_indices(*ct, indices, 2);
      })
      .inactive<1>();
  op<at::_ops::max_pool3d_with_indices>()
      .small(small::greatest_of_windows)
      .depends(Depends::on_pooled_window)
      .folds_into_items(5)
      .nondifferentiable_outputs<1>()
      .vjp<0>([](Ct<0> ct, const Tensor& x, const Ints& kernel, const Ints& stride, const Ints& padding,
                 const Ints& dilation, bool ceil, Out<1> indices) {
        return at::max_pool3d_with_indices_backward(*ct, x, kernel, stride, padding, dilation, ceil, *indices);
      })
      .jvp<0>(
          [](Tan<0> dx, Skip, Skip, Skip, Skip, Skip, Skip, Out<1> indices) { return at_indices(*dx, *indices, 3); });
  op<at::_ops::max_pool3d_with_indices_backward>()
      .small(small::added_in_planes(3))
      .folds_into_items(5)
      .linear<0>([](Ct<0> ct, Skip, Skip, Skip, Skip, Skip, Skip, Skip, const Tensor& indices) {
        return at_indices(*ct, indices, 3);
      })
      .inactive<1>();

  op<at::_ops::adaptive_max_pool2d>()
      .small(small::greatest_of_windows)
      .depends(Depends::on_plane)
      .folds_into_items(4)
      .nondifferentiable_outputs<1>()
      .vjp<0>([](Ct<0> ct, const Tensor& x, Skip, Out<1> indices) {
        return at::adaptive_max_pool2d_backward(*ct, x, *indices);
      })
      .jvp<0>([](Tan<0> dx, Skip, Skip, Out<1> indices) { return at_indices(*dx, *indices, 2); });
  op<at::_ops::adaptive_max_pool2d_backward>()
      .small(small::added_in_planes(2))
      .folds_into_items(4)
      .linear<0>([](Ct<0> ct, Skip, Skip, const Tensor& indices) { return at_indices(*ct, indices, 2); })
      .inactive<1>();
  op<at::_ops::adaptive_max_pool3d>()
      .small(small::greatest_of_windows)
      .depends(Depends::on_plane)
      .folds_into_items(5)
      .nondifferentiable_outputs<1>()
      .vjp<0>([](Ct<0> ct, const Tensor& x, Skip, Out<1> indices) {
        return at::adaptive_max_pool3d_backward(*ct, x, *indices);
      })
      .jvp<0>([](Tan<0> dx, Skip, Skip, Out<1> indices) { return at_indices(*dx, *indices, 3); });
  op<at::_ops::adaptive_max_pool3d_backward>()
      .small(small::added_in_planes(3))
      .folds_into_items(5)
      .linear<0>([](Ct<0> ct, Skip, Skip, const Tensor& indices) { return at_indices(*ct, indices, 3); })
      .inactive<1>();

  fractional_max_pool<at::_ops::fractional_max_pool2d, at::_ops::fractional_max_pool2d_backward, 4>();
  fractional_max_pool<at::_ops::fractional_max_pool3d, at::_ops::fractional_max_pool3d_backward, 5>();

  // Puts each value where its index says: the reverse of a gather.
  op<at::_ops::max_unpool2d>()
      .small(small::put_in_planes(2))
      .folds_into_items(4)
      .linear<0>([](Ct<0> ct, Skip, const Tensor& indices) { return at_indices(*ct, indices, 2); });
  op<at::_ops::max_unpool3d>()
      .small(small::put_in_planes(3))
      .folds_into_items(5)
      .linear<0>([](Ct<0> ct, Skip, const Tensor& indices) { return at_indices(*ct, indices, 3); });
  demands<at::_ops::max_unpool2d>(demand_same_shape);
  demands<at::_ops::max_unpool3d>(demand_same_shape);
  demands<at::_ops::max_pool1d>([](const Example& e) {
    if (e.device(0).is_cpu()) demand_floating(e, 0);  // which has a kernel of its own for one dimension
  });
}

}  // namespace tower::rules
