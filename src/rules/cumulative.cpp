// Running sums, products, extrema along a dimension.
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>

#include <limits>
#include <optional>

#include "numbers/small.h"
#include "records/dims.h"
#include "records/op.h"
#include "rules/registry.h"
#include "rules/scan.h"
#include "rules/small_orders.h"
#include "rules/terms.h"

namespace tower::rules {
namespace {

using MaybeType = std::optional<at::ScalarType>;

bool trivial(const Tensor& x, int64_t dim) { return x.dim() == 0 || x.size(dim) == 0; }

// y = logcumsumexp(x) is a running mixture of the elements: weights of what came before, and of the element itself.
// Where all so far is -inf, there is nothing to weigh.
Tensor finite(const Tensor& y) { return y.masked_fill(y.eq(-std::numeric_limits<double>::infinity()), 0); }
Tensor weight_before(const Tensor& y, int64_t dim) {
  return at::exp(delayed(y, dim, -std::numeric_limits<double>::infinity()) - finite(y));
}

// The derivative of a running extremum goes where its index points.
template <class Op>
Rule<Op> running_extremum() {
  return op<Op>()
      .depends(Depends::on_dim)
      .along({1})
      .template vjp<0>([](Ct<0> ct, Shape x, int64_t dim, Out<1> index) {
        return at::zeros(x.sizes, ct->options()).scatter_add(dim, *index, *ct);
      })
      .template jvp<0>([](Tan<0> dx, Skip, int64_t dim, Out<1> index) { return gathered(*dx, dim, *index); });
}

// In numbers: what comes of an element and of what came of those before it. At the first there is nothing before.
using compiler::E;
using Before = std::optional<E>;
E next_sum(const Before& before, const E& x) { return before ? *before + x : x; }
E next_product(const Before& before, const E& x) { return before ? *before * x : x; }
// log(e^a + e^b), as LibTorch computes it: equal infinities are left alone, and before the first is −∞.
E next_log_of_sum(const Before& before, const E& x) {
  if (!before) return x + 0.0;
  const E low = minimum(x, *before), high = maximum(x, *before);
  const E of_both = log1p(exp(low - high)) + high;
  return where((low == high) & (abs(low) == std::numeric_limits<double>::infinity()), x, of_both);
}

enum class In : bool { their_type, float64 };
template <E (*next)(const Before& before, const E& x), In in = In::their_type>
compiler::SmallResults running(const compiler::SmallCall& c) {
  const compiler::Small& t = *c.operands[0];
  if (c.type(0) == compiler::Type::b1) return {};
  if (t.sizes.empty()) return c.give({}, {c.at(t, 0, 0)});
  const auto dim = static_cast<size_t>(at::maybe_wrap_dim(c.arg(1).toInt(), static_cast<int64_t>(t.sizes.size())));
  size_t step = 1;
  for (size_t d = dim + 1; d < t.sizes.size(); ++d) step *= t.size(d);
  std::vector<E> all, rounded;
  for (size_t i = 0; i < t.ids.size(); ++i) {
    const E e = in == In::float64 ? c.at(t, i).to(compiler::Type::f64) : c.at(t, i, 0).to(computing_type(c.type(0)));
    all.push_back(next(i / step % t.size(dim) == 0 ? Before() : all[i - step], e));
    rounded.push_back(all.back().to(c.type(0)));
  }
  return c.give(t.sizes, rounded);
}

}  // namespace

void cumulative() {
  op<at::_ops::cumsum>()
      .small(running<next_sum>)
      .depends(Depends::on_dim)
      .along({1})
      .linear<0>([](Ct<0> ct, Skip, int64_t dim) { return ct->flip(dim).cumsum(dim).flip(dim); });

  // dy[k] = x[k] dy[k-1] + y[k-1] dx[k]
  op<at::_ops::cumprod>()
      .small(running<next_product>)
      .depends(Depends::on_dim)
      .along({1})
      .vjp<0>([](Ct<0> ct, const Tensor& x, int64_t dim, const MaybeType& type, Out<0> y) {
        if (trivial(x, dim)) return *ct;
        const Tensor factors = in_type(x, type).conj();
        return transposed_recurrence(factors, *ct, dim) * delayed(y->conj(), dim, 1);
      })
      .jvp<0>([](Tan<0> dx, const Tensor& x, int64_t dim, const MaybeType& type, Out<0> y) {
        if (trivial(x, dim)) return *dx;
        return recurrence(in_type(x, type), in_type(*dx, type) * delayed(*y, dim, 1), dim);
      });

  // dy[k] = e^(y[k-1] - y[k]) dy[k-1] + e^(x[k] - y[k]) dx[k]
  op<at::_ops::logcumsumexp>()
      .small(running<next_log_of_sum, In::float64>)
      .depends(Depends::on_dim)
      .along({1})
      .vjp<0>([](Ct<0> ct, const Tensor& x, int64_t dim, Out<0> y) {
        if (trivial(x, dim)) return *ct;
        return transposed_recurrence(weight_before(*y, dim).conj(), *ct, dim) * at::exp(x - finite(*y)).conj();
      })
      .jvp<0>([](Tan<0> dx, const Tensor& x, int64_t dim, Out<0> y) {
        if (trivial(x, dim)) return *dx;
        return recurrence(weight_before(*y, dim), *dx * at::exp(x - finite(*y)), dim);
      });

  running_extremum<at::_ops::cummax>().small(small::cummax);
  running_extremum<at::_ops::cummin>().small(small::cummin);
}

}  // namespace tower::rules
