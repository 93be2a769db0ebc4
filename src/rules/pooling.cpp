// Pooling, by average and by maximum, and the backward operators. A pool treats every channel of every item alike, so a
// batch is folded into the items. Average pooling is linear; maximum pooling is a gather at the indices it returns.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

// The elements of `t` that the indices of a pool over the last `spatial` dimensions chose.
Tensor at_indices(const Tensor& t, const Tensor& indices, int64_t spatial) {
  const Tensor chosen = t.flatten(-spatial).gather(-1, indices.flatten(-spatial));
  return chosen.view(indices.sizes());
}

}  // namespace

void pooling() {
  // ---- average ----

  op<at::_ops::avg_pool2d>().folds_into_items(4).linear<0>([](Ct<0> ct, const Tensor& x, const Ints& kernel,
                                                              const Ints& stride, const Ints& padding, bool ceil,
                                                              bool count_pad, std::optional<int64_t> divisor) {
    return at::avg_pool2d_backward(*ct, x, kernel, stride, padding, ceil, count_pad, divisor);
  });
  op<at::_ops::avg_pool2d_backward>()
      .folds_into_items(4)
      .linear<0>([](Ct<0> ct, Skip, Skip, const Ints& kernel, const Ints& stride, const Ints& padding, bool ceil,
                    bool count_pad, std::optional<int64_t> divisor) {
        return at::avg_pool2d(*ct, kernel, stride, padding, ceil, count_pad, divisor);
      })
      .inactive<1>();
  op<at::_ops::avg_pool3d>().folds_into_items(5).linear<0>([](Ct<0> ct, const Tensor& x, const Ints& kernel,
                                                              const Ints& stride, const Ints& padding, bool ceil,
                                                              bool count_pad, std::optional<int64_t> divisor) {
    return at::avg_pool3d_backward(*ct, x, kernel, stride, padding, ceil, count_pad, divisor);
  });
  op<at::_ops::avg_pool3d_backward>()
      .folds_into_items(5)
      .linear<0>([](Ct<0> ct, Skip, Skip, const Ints& kernel, const Ints& stride, const Ints& padding, bool ceil,
                    bool count_pad, std::optional<int64_t> divisor) {
        return at::avg_pool3d(*ct, kernel, stride, padding, ceil, count_pad, divisor);
      })
      .inactive<1>();
  op<at::_ops::_adaptive_avg_pool2d>().folds_into_items(4).linear<0>(
      [](Ct<0> ct, const Tensor& x) { return at::_adaptive_avg_pool2d_backward(*ct, x); });
  op<at::_ops::_adaptive_avg_pool2d_backward>()
      .folds_into_items(4)
      .linear<0>([](Ct<0> ct, Shape g) {
        return at::_adaptive_avg_pool2d(*ct, at::IntArrayRef(g.sizes).slice(g.sizes.size() - 2));
      })
      .inactive<1>();
  op<at::_ops::_adaptive_avg_pool3d>().folds_into_items(5).linear<0>(
      [](Ct<0> ct, const Tensor& x) { return at::_adaptive_avg_pool3d_backward(*ct, x); });
  op<at::_ops::_adaptive_avg_pool3d_backward>()
      .folds_into_items(5)
      .linear<0>([](Ct<0> ct, Shape g) {
        return at::_adaptive_avg_pool3d(*ct, at::IntArrayRef(g.sizes).slice(g.sizes.size() - 3));
      })
      .inactive<1>();

  // ---- maximum ----

  op<at::_ops::max_pool2d_with_indices>()
      .folds_into_items(4)
      .nondifferentiable_outputs<1>()
      .vjp<0>([](Ct<0> ct, const Tensor& x, const Ints& kernel, const Ints& stride, const Ints& padding,
                 const Ints& dilation, bool ceil, Out<1> indices) {
        return at::max_pool2d_with_indices_backward(*ct, x, kernel, stride, padding, dilation, ceil, *indices);
      })
      .jvp<0>(
          [](Tan<0> dx, Skip, Skip, Skip, Skip, Skip, Skip, Out<1> indices) { return at_indices(*dx, *indices, 2); });
  op<at::_ops::max_pool2d_with_indices_backward>()
      .folds_into_items(4)
      .linear<0>([](Ct<0> ct, Skip, Skip, Skip, Skip, Skip, Skip, Skip, const Tensor& indices) {
        return at_indices(*ct, indices, 2);
      })
      .inactive<1>();
  op<at::_ops::max_pool3d_with_indices>()
      .folds_into_items(5)
      .nondifferentiable_outputs<1>()
      .vjp<0>([](Ct<0> ct, const Tensor& x, const Ints& kernel, const Ints& stride, const Ints& padding,
                 const Ints& dilation, bool ceil, Out<1> indices) {
        return at::max_pool3d_with_indices_backward(*ct, x, kernel, stride, padding, dilation, ceil, *indices);
      })
      .jvp<0>(
          [](Tan<0> dx, Skip, Skip, Skip, Skip, Skip, Skip, Out<1> indices) { return at_indices(*dx, *indices, 3); });
  op<at::_ops::max_pool3d_with_indices_backward>()
      .folds_into_items(5)
      .linear<0>([](Ct<0> ct, Skip, Skip, Skip, Skip, Skip, Skip, Skip, const Tensor& indices) {
        return at_indices(*ct, indices, 3);
      })
      .inactive<1>();

  op<at::_ops::adaptive_max_pool2d>()
      .folds_into_items(4)
      .nondifferentiable_outputs<1>()
      .vjp<0>([](Ct<0> ct, const Tensor& x, Skip, Out<1> indices) {
        return at::adaptive_max_pool2d_backward(*ct, x, *indices);
      })
      .jvp<0>([](Tan<0> dx, Skip, Skip, Out<1> indices) { return at_indices(*dx, *indices, 2); });
  op<at::_ops::adaptive_max_pool2d_backward>()
      .folds_into_items(4)
      .linear<0>([](Ct<0> ct, Skip, Skip, const Tensor& indices) { return at_indices(*ct, indices, 2); })
      .inactive<1>();
  op<at::_ops::adaptive_max_pool3d>()
      .folds_into_items(5)
      .nondifferentiable_outputs<1>()
      .vjp<0>([](Ct<0> ct, const Tensor& x, Skip, Out<1> indices) {
        return at::adaptive_max_pool3d_backward(*ct, x, *indices);
      })
      .jvp<0>([](Tan<0> dx, Skip, Skip, Out<1> indices) { return at_indices(*dx, *indices, 3); });
  op<at::_ops::adaptive_max_pool3d_backward>()
      .folds_into_items(5)
      .linear<0>([](Ct<0> ct, Skip, Skip, const Tensor& indices) { return at_indices(*ct, indices, 3); })
      .inactive<1>();

  // Puts each value where its index says: the reverse of a gather.
  op<at::_ops::max_unpool2d>().folds_into_items(4).linear<0>(
      [](Ct<0> ct, Skip, const Tensor& indices) { return at_indices(*ct, indices, 2); });
  op<at::_ops::max_unpool3d>().folds_into_items(5).linear<0>(
      [](Ct<0> ct, Skip, const Tensor& indices) { return at_indices(*ct, indices, 3); });
}

}  // namespace tower::rules
