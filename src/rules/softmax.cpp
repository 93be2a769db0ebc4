// softmax, log_softmax, logsumexp and their backward operators.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <limits>

#include "records/op.h"
#include "rules/folds.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

using Type = at::ScalarType;

// Sum over one dimension, kept; a tensor without dimensions is its own sum.
Tensor sum_along(const Tensor& t, int64_t dim) { return t.dim() == 0 ? t : t.sum(dim, true); }

Tensor in_dtype(Tensor t, Type dtype) { return t.scalar_type() == dtype ? t : t.to(dtype); }

// e^(x - y) for y = logsumexp(x). Where all of x is -inf there is no direction of growth: zero, not nan.
Tensor share(const Tensor& x, const Tensor& y, const Ints& dims, bool keepdim) {
  const Tensor sum = with_reduced_dims(y, dims, x.dim(), keepdim);
  return at::exp(x - sum.masked_fill(sum.eq(-std::numeric_limits<double>::infinity()), 0));
}

// Zero where all of x along `dim` is -inf, and softmax() gives nan. LibTorch looks at each number of x for that; its
// sum and one element of the result say the same: nan beside a sum of -inf is from neither nan nor +inf.
Tensor safe_softmax(const Tensor& x, int64_t dim, const std::optional<Type>& dtype) {
  const Tensor input = dtype ? in_dtype(x, *dtype) : x;
  const Tensor y = at::softmax(input, dim);
  if (y.numel() == 0) return y;
  const Tensor one = y.dim() == 0 ? y : y.narrow(dim, 0, 1);
  const Tensor empty = at::isnan(one).logical_and_(sum_along(input, dim) == -std::numeric_limits<double>::infinity());
  return y.masked_fill(empty, 0);
}

}  // namespace

void softmax() {
  // dy = y (dx - Σ y dx)
  op<at::_ops::_softmax>()
      .maps_rows(over(1), folds::softmax)
      .depends(Depends::on_dim)
      .along({1})
      .vjp<0>([](Ct<0> ct, Shape x, int64_t dim, Skip, Out<0> y) {
        return at::_softmax_backward_data(*ct, *y, dim, x.dtype);
      })
      .jvp<0>([](Tan<0> dx, Skip, int64_t dim, Skip, Out<0> y) {
        const Tensor weighted = *y * *dx;
        return weighted - *y * sum_along(weighted, dim);
      });

  op<at::_ops::_safe_softmax>()
      .maps_rows(over(1), folds::safe_softmax)
      .depends(Depends::on_dim)
      .along({1})
      .vjp<0>([](Ct<0> ct, Shape x, int64_t dim, Skip, Out<0> y) {
        return in_dtype(at::_softmax_backward_data(*ct, *y, dim, y->scalar_type()), x.dtype);
      })
      .jvp<0>([](Tan<0> dx, Skip, int64_t dim, Skip, Out<0> y) {
        const Tensor weighted = *y * *dx;
        return weighted - *y * sum_along(weighted, dim);
      })
      .evaluated_by([](Stack& stack) {
        const Tensor x = stack[0].toTensor();
        Tensor y = safe_softmax(x, stack[1].toInt(), stack[2].to<std::optional<Type>>());
        stack.assign(1, std::move(y));
      });

  // dx = y (ct - Σ ct y), as a function of ct and y.
  op<at::_ops::_softmax_backward_data>()
      .maps_rows(over(2), folds::softmax_backward)
      .along({2})
      .vjp<0>([](Ct<0> ct, Skip, const Tensor& y, int64_t dim) {
        const Tensor c = in_dtype(*ct, y.scalar_type());
        return y * (c - sum_along(c * y, dim));
      })
      .vjp<1>([](Ct<0> ct, const Tensor& g, const Tensor& y, int64_t dim) {
        const Tensor c = in_dtype(*ct, y.scalar_type());
        return c * (g - sum_along(g * y, dim)) - g * sum_along(c * y, dim);
      })
      .jvp<0>([](Tan<0> dg, Skip, const Tensor& y, int64_t dim) { return y * (*dg - sum_along(*dg * y, dim)); })
      .jvp<1>([](Tan<1> dy, const Tensor& g, const Tensor& y, int64_t dim) {
        return *dy * (g - sum_along(g * y, dim)) - y * sum_along(g * *dy, dim);
      });

  // The same without what the mask leaves out.
  op<at::_ops::_masked_softmax_backward>().decomposes(
      [](const Tensor& grad, const Tensor& y, const Tensor& mask, const std::optional<int64_t>& dim) {
        TORCH_CHECK(grad.sizes() == mask.sizes(), "Mask shape should match grad shape");
        TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be a boolean tensor");
        const Tensor g = grad.masked_fill(mask, 0), kept = y.masked_fill(mask, 0);
        return (y * (g - sum_along(g * kept, dim.value_or(-1)))).masked_fill(mask, 0);
      });

  // dy = dx - Σ e^y dx
  op<at::_ops::_log_softmax>()
      .maps_rows(over(1), folds::log_softmax)
      .depends(Depends::on_dim)
      .along({1})
      .vjp<0>([](Ct<0> ct, Shape x, int64_t dim, Skip, Out<0> y) {
        return at::_log_softmax_backward_data(*ct, *y, dim, x.dtype);
      })
      .jvp<0>([](Tan<0> dx, Skip, int64_t dim, Skip, Out<0> y) { return *dx - sum_along(y->exp() * *dx, dim); });

  // dx = ct - e^y Σ ct, as a function of ct and y.
  op<at::_ops::_log_softmax_backward_data>()
      .maps_rows(over(2), folds::log_softmax_backward)
      .along({2})
      .vjp<0>([](Ct<0> ct, Skip, const Tensor& y, int64_t dim) {
        const Tensor c = in_dtype(*ct, y.scalar_type());
        return c - sum_along(c * y.exp(), dim);
      })
      .vjp<1>([](Ct<0> ct, const Tensor& g, const Tensor& y, int64_t dim) {
        return in_dtype(*ct, y.scalar_type()) * -(y.exp() * sum_along(g, dim));
      })
      .jvp<0>([](Tan<0> dg, Skip, const Tensor& y, int64_t dim) { return *dg - y.exp() * sum_along(*dg, dim); })
      .jvp<1>([](Tan<1> dy, const Tensor& g, const Tensor& y, int64_t dim) {
        return *dy * -(y.exp() * sum_along(g, dim));
      });

  // dy = Σ e^(x - y) dx
  op<at::_ops::logsumexp>()
      .fold(over(1), folds::logsumexp)
      .depends(Depends::on_reduced)
      .along({1}, EmptyDims::all)
      .vjp<0>([](Ct<0> ct, const Tensor& x, const Ints& dims, bool keepdim, Out<0> y) {
        return with_reduced_dims(*ct, dims, x.dim(), keepdim) * conjugate(share(x, *y, dims, keepdim));
      })
      .jvp<0>([](Tan<0> dx, const Tensor& x, const Ints& dims, bool keepdim, Out<0> y) {
        const Tensor weighted = *dx * share(x, *y, dims, keepdim);
        return x.dim() == 0 ? weighted : weighted.sum(dims, keepdim);
      });
}

}  // namespace tower::rules
