// Sums, means, products, norms, variances, extrema: reductions over dimensions.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <cmath>
#include <limits>

#include "core/reuse.h"
#include "numbers/slow_calls.h"
#include "numbers/small.h"
#include "numbers/thresholds.h"
#include "records/demands.h"
#include "records/dims.h"
#include "records/masks.h"
#include "records/op.h"
#include "rules/folds.h"
#include "rules/registry.h"
#include "rules/shared_operand.h"
#include "rules/small_orders.h"
#include "rules/terms.h"

namespace tower::rules {
namespace {

using MaybeDims = std::optional<Ints>;
using MaybeDim = std::optional<int64_t>;
using MaybeType = std::optional<at::ScalarType>;

Ints all_if_none(const MaybeDims& dims) { return dims.value_or(Ints{}); }

int64_t count(const Meta& x, const Ints& dims) {
  if (dims.empty()) return product(x.sizes);
  int64_t n = 1;
  if (x.dim() > 0)
    for (int64_t d : dims) n *= x.sizes[static_cast<size_t>(at::maybe_wrap_dim(d, x.dim()))];
  return n;
}

// Each one's part of a mean.
Tensor shared(const Tensor& t, int64_t n) { return n == 1 ? t : t / n; }

// What was reduced away comes back, every element the same.
Tensor spread(const Tensor& reduced, const Meta& x, const Ints& dims, bool keepdim) {
  return with_reduced_dims(reduced, dims, x.dim(), keepdim).expand(x.sizes);
}
Tensor keep(const Tensor& reduced, const Tensor& x, const Ints& dims, bool keepdim) {
  return with_reduced_dims(reduced, dims, x.dim(), keepdim);
}
Tensor sum_over(const Tensor& t, const Ints& dims, bool keepdim) { return t.sum(dims, keepdim); }

// NOTE [Short rows]
// Coordinates, components, small examples in large batches: many rows of a few numbers. LibTorch's sum takes some 14 ns
// for a row of two or three, and 3 for one of sixteen; a product with ones takes a fraction of that.
Tensor sum_of_short_rows(const Stack& args) {
  if (!args[0].isTensor() || !args[1].isIntList()) return {};
  const Tensor& t = args[0].toTensor();
  const auto type = t.scalar_type();
  if (!t.is_cpu() || (type != at::kFloat && type != at::kDouble) || !is_plain(t) || !t.is_contiguous() || t.is_neg() ||
      !(args[3].isNone() || args[3].toScalarType() == type))
    return {};
  const auto dims = args[1].toIntVector();
  const int64_t rank = t.dim(), kept = rank - static_cast<int64_t>(dims.size());
  if (dims.empty() || kept < 0) return {};
  for (int64_t d : dims)
    if ((d < 0 ? d + rank : d) < kept) return {};
  const auto lengths = t.sizes().slice(static_cast<size_t>(kept));
  const int64_t length = c10::multiply_integers(lengths);
  const compiler::Thresholds& limits = compiler::thresholds();
  if (length < 2 || length > limits.longest_short_row || t.numel() < limits.fewest_short_rows * length) return {};
  Sizes sizes(t.sizes().begin(), t.sizes().begin() + kept);
  if (args[2].toBool()) sizes.append(dims.size(), 1);
  return at::mv(t.view({-1, length}), at::ones({length}, t.options())).view(sizes);
}

void evaluate_sum(Stack& stack) {
  static const Operator& sum = record_of("aten::sum", "dim_IntList");
  if (Tensor result = sum_of_short_rows(stack); result.defined()) stack.assign(1, std::move(result));
  else sum.handle()->callBoxed(stack);
}

Tensor sum_of_rows(const Tensor& t, at::IntArrayRef dims, const IValue& type) {
  const Tensor result = sum_of_short_rows({t, dims, false, type});
  return result.defined() ? result : t.sum(dims, false, type.to<MaybeType>());
}

// ---- batching of reductions over everything ----

using Reduction = Tensor (*)(const Tensor& t, at::IntArrayRef dims, const Stack& args);

// The same reduction, over all dimensions but the batch's.
VmapRule over_all_but_batch(Reduction reduce) {
  return [reduce](VmapFrame& f) {
    Tensor t = f.tensor(0);
    Ints dims;
    for (int64_t d = 0; d < t.dim(); ++d)
      if (d != f.in_dims[0]) dims.push_back(d);
    if (dims.empty()) {
      t = t.unsqueeze(1);
      dims.push_back(1);
    }
    f.result(reduce(t, dims, f.stack));
  };
}

// For operators that take a single dimension: over the rows of a matrix.
VmapRule over_rows(Tensor (*reduce)(const Tensor& rows, const Stack& args)) {
  return [reduce](VmapFrame& f) {
    const Tensor rows = batch_of_rows(f, 0);
    f.result(reduce(rows, f.stack));
  };
}

// argmax and argmin: over one dimension, or over everything (then as many ones as there were dimensions).
void arg_vmap(VmapFrame& f) {
  const auto dim = f.stack[1].to<MaybeDim>();
  const bool keepdim = f.stack[2].toBool();
  if (dim) return vmap_along(f, {1});
  const size_t rank = static_cast<size_t>(f.logical_dim(0));
  f.stack[0] = batch_of_rows(f, 0);
  f.stack[1] = 1;
  f.stack[2] = false;
  f.call();
  f.out_dims.assign(1, 0);
  if (keepdim) f.stack[0] = f.stack[0].toTensor().view(with_batch(f, Ints(rank, 1)));
}

// any and all take an empty list of dimensions to mean none at all.
void any_dims_vmap(VmapFrame& f) { vmap_along(f, {1}, f.stack[1].isNone() ? EmptyDims::all : EmptyDims::none); }

// ---- extrema ----

// Where x attains the extremum y; nan attains nan.
Tensor attains(const Tensor& x, const Tensor& y) { return x.eq(y).logical_or(x.isnan().logical_and(y.isnan())); }

// Ties share the derivative evenly.
Tensor extremum_vjp(const Tensor& ct, const Tensor& x, const Tensor& y, const Ints& dims, bool keepdim) {
  const Tensor mask = attains(x, keep(y, x, dims, keepdim));
  return (keep(ct, x, dims, keepdim) / mask.sum(dims, true)) * mask;
}
Tensor extremum_jvp(const Tensor& dx, const Tensor& x, const Tensor& y, const Ints& dims, bool keepdim) {
  const Tensor mask = attains(x, keep(y, x, dims, keepdim));
  return (dx * mask).sum(dims, keepdim) / mask.sum(dims, keepdim);
}

// Of everything, over some dimensions.
template <class Op>
Rule<Op> extremum_over_dims() {
  return op<Op>()
      .depends(Depends::on_reduced)
      .along({1}, EmptyDims::all)
      .template vjp<0>([](Ct<0> ct, const Tensor& x, const Ints& dims, bool keepdim, Out<0> y) {
        return extremum_vjp(*ct, x, *y, dims, keepdim);
      })
      .template jvp<0>([](Tan<0> dx, const Tensor& x, const Ints& dims, bool keepdim, Out<0> y) {
        return extremum_jvp(*dx, x, *y, dims, keepdim);
      });
}

// One number for the whole tensor that is one of its elements, or several of them.
template <class Op>
Rule<Op> one_of_all(VmapRule batched) {
  return op<Op>()
      .depends(Depends::on_reduced)
      .vmap(std::move(batched))
      .template vjp<0>([](Ct<0> ct, const Tensor& x, Out<0> y) { return extremum_vjp(*ct, x, *y, {}, false); })
      .template jvp<0>([](Tan<0> dx, const Tensor& x, Out<0> y) { return extremum_jvp(*dx, x, *y, {}, false); });
}

// Values with their indices: the derivative goes where the index points.
Tensor select_vjp(const Tensor& ct, const Meta& x, int64_t dim, bool keepdim, const Tensor& index) {
  const bool kept = keepdim || x.dim() == 0;
  return at::zeros(x.sizes, ct.options())
      .scatter(dim, kept ? index : index.unsqueeze(dim), kept ? ct : ct.unsqueeze(dim));
}
Tensor select_jvp(const Tensor& dx, int64_t dim, bool keepdim, const Tensor& index) {
  if (keepdim || dx.dim() == 0) return gathered(dx, dim, index);
  return gathered(dx, dim, index.unsqueeze(dim)).squeeze(dim);
}
template <class Op>
Rule<Op> one_along_dim() {
  return op<Op>()
      .depends(Depends::on_reduced)
      .along({1})
      .template vjp<0>([](Ct<0> ct, Shape x, int64_t dim, bool keepdim, Out<1> index) {
        return select_vjp(*ct, x, dim, keepdim, *index);
      })
      .template jvp<0>([](Tan<0> dx, Skip, int64_t dim, bool keepdim, Out<1> index) {
        return select_jvp(*dx, dim, keepdim, *index);
      });
}

// ---- products ----

// Products of the elements before each along `dim`: exact where elements are zero, too.
Tensor products_before(const Tensor& x, int64_t dim) {
  const int64_t n = x.size(dim);
  const Tensor shifted = at::cat({at::ones_like(x.narrow(dim, 0, 1)), x.narrow(dim, 0, n - 1)}, dim);
  return shifted.cumprod(dim);
}

// For each element the product of all others along `dim`.
Tensor products_of_others(const Tensor& x, int64_t dim) {
  if (x.dim() == 0) return at::ones_like(x);
  if (x.size(dim) == 0) return x;
  return products_before(x, dim) * products_before(x.flip(dim), dim).flip(dim);
}

// ---- norms ----

// The derivative of the p-norm y (dimensions kept) at x. Zero is a subgradient where the norm has a kink.
Tensor norm_slope(const Tensor& x, const Tensor& y, const Scalar& ord, const Ints& dims) {
  const double p = ord.toDouble();
  if (p == 0.0) return at::zeros_like(x);
  if (p == 1.0) return x.sgn();
  const Tensor zero = y.eq(0);
  // At zero 0 is a subgradient. A second derivative does not exist there: it comes out as nan, through 0/0.
  if (p == 2.0) return zero_where(zero, x / y);
  const Tensor norm = y.masked_fill(zero, 1);
  if (std::isinf(p)) {
    const Tensor mask = attains(x.abs(), y);
    return x.sgn() * mask / mask.sum(dims, true);
  }
  const Tensor at_zero = x.eq(0);
  const Tensor length = at::where(at_zero, Scalar(1), x.abs());
  return zero_where(at_zero, x.sgn() * (length / norm).pow(p - 1));
}

// In complex numbers a real function changes by the real part of conj(slope)·dx.
Tensor real_product(const Tensor& slope, const Tensor& dx) {
  return slope.is_complex() ? at::real(slope.conj() * dx) : slope * dx;
}

compiler::SmallResults trace_of_small(const compiler::SmallCall& c) {
  const compiler::Small& a = *c.operands[0];
  const compiler::Type type = computing_type(c.type(0));
  compiler::E sum = c.constant(type, 0);
  for (size_t i = 0; i < std::min(a.size(0), a.size(1)); ++i) {
    const compiler::E next = c.at(a, i * a.size(1) + i).to(type);
    sum = i == 0 ? next : sum + next;
  }
  return c.give({}, {sum});
}

Tensor distances(const Tensor& a, const Tensor& b, double p) {
  return at::linalg_vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, at::IntArrayRef{-1});
}

// _cdist_forward(x1, x2, p, compute_mode). Of long lists LibTorch computes by a product of matrices, which loses digits
// where points are near each other, if it is not told otherwise. How long they are is one example's matter.
void cdist_vmap(VmapFrame& f) {
  constexpr int64_t long_list = 25, if_long = 0, by_product = 1, one_by_one = 2;
  f.to_front(0, false);
  f.to_front(1, false);
  const int64_t rows = f.tensor(0).size(-2), others = f.tensor(1).size(-2);
  const int64_t mode = f.stack[3].isNone() ? if_long : f.stack[3].toInt();
  const bool product = mode == by_product || (mode == if_long && std::max(rows, others) > long_list);
  f.stack[3] = product ? by_product : one_by_one;
  if (f.batched(0) && f.batched(1)) return vmap_natively(f);
  const size_t mapped = f.batched(0) ? 0 : 1;
  f.stack[mapped] = stacked_up(f.tensor(mapped));
  f.call();
  f.result(mapped == 0 ? from_stacked_up(f.tensor(0), f.batch_size, rows)
                       : from_side_by_side(f.tensor(0), f.batch_size, others));
}

// The numbers of the rows of all pairs, each pair once.
std::pair<Tensor, Tensor> pairs_of(const Tensor& x) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(x.device());
  const Tensor pairs = at::triu_indices(x.size(0), x.size(0), 1, options);
  return {pairs.select(0, 0), pairs.select(0, 1)};
}

// ---- variances ----

double degrees(const Meta& x, const Ints& dims, const std::optional<Scalar>& correction) {
  return std::max(0.0, static_cast<double>(count(x, dims)) - (correction ? correction->toDouble() : 1.0));
}

// Deviations from the mean, times 2 / degrees of freedom: the derivative of the variance.
Tensor var_slope(const Tensor& x, const Ints& dims, const std::optional<Scalar>& correction) {
  return (x - x.mean(dims, true)) * (2.0 / degrees(Meta(x), dims, correction));
}
Tensor var_vjp(const Tensor& ct, const Tensor& x, const Ints& dims, const std::optional<Scalar>& c, bool keepdim) {
  return keep(ct, x, dims, keepdim) * var_slope(x, dims, c);
}
Tensor var_jvp(const Tensor& dx, const Tensor& x, const Ints& dims, const std::optional<Scalar>& c, bool keepdim) {
  return sum_over(real_product(var_slope(x, dims, c), dx), dims, keepdim);
}
// d√v = dv / 2√v; a constant has no deviation to grow.
Tensor through_root(const Tensor& d, const Tensor& root) {
  const Tensor zero = root.eq(0);
  return zero_where(zero, d / (root.masked_fill(zero, 1) * 2));
}
Tensor mean_vjp(const Tensor& ct, const Meta& x, const Ints& dims, bool keepdim) {
  return spread(ct, x, dims, keepdim) / count(x, dims);
}

}  // namespace

void reductions() {
  // ---- sums and means ----
  op<at::_ops::sum>()
      .fold(over_all(), folds::sum)
      .depends(Depends::on_reduced)
      .vmap(over_all_but_batch(
          [](const Tensor& t, at::IntArrayRef dims, const Stack& args) { return sum_of_rows(t, dims, args[1]); }))
      .linear<0>([](Ct<0> ct, Shape x) { return ct->expand(x.sizes); });
  op<at::_ops::sum_dim_IntList>()
      .fold(over(1), folds::sum)
      .depends(Depends::on_reduced)
      .along({1}, EmptyDims::all)
      .evaluated_by(evaluate_sum)
      .linear<0>([](Ct<0> ct, Shape x, const MaybeDims& dims, bool keepdim) {
        return spread(*ct, x, all_if_none(dims), keepdim);
      });
  op<at::_ops::mean>()
      .fold(over_all(), folds::mean)
      .depends(Depends::on_reduced)
      .vmap(over_all_but_batch([](const Tensor& t, at::IntArrayRef dims, const Stack& args) {
        const auto type = args[1].isNone() ? t.scalar_type() : args[1].toScalarType();
        const bool has_mean = at::isFloatingType(type) || at::isComplexType(type);
        if (has_mean && count(Meta(t), dims.vec()) == 1) return sum_of_rows(t, dims, args[1]);
        return t.mean(dims, false, args[1].to<MaybeType>());
      }))
      .linear<0>([](Ct<0> ct, Shape x) { return shared(*ct, product(x.sizes)).expand(x.sizes); });
  op<at::_ops::mean_dim>()
      .fold(over(1), folds::mean)
      .depends(Depends::on_reduced)
      .along({1}, EmptyDims::all)
      .linear<0>([](Ct<0> ct, Shape x, const MaybeDims& dims, bool keepdim) {
        return spread(shared(*ct, count(x, all_if_none(dims))), x, all_if_none(dims), keepdim);
      });
  op<at::_ops::nansum>()
      .fold(over(1), folds::nansum)
      .depends(Depends::on_reduced)
      .decomposes([](const Tensor& x, const MaybeDims& dims, bool keepdim, const MaybeType& type) {
        return zero_where(x.isnan(), x).sum(all_if_none(dims), keepdim, type);
      });
  op<at::_ops::trace>().small(trace_of_small).decomposes([](const Tensor& x) {
    TORCH_CHECK(x.dim() == 2, "trace: expected a matrix, but got tensor with dim ", x.dim());
    return x.diagonal().sum();
  });

  // ---- products ----
  op<at::_ops::prod>()
      .fold(over_all(), folds::product)
      .depends(Depends::on_reduced)
      .vmap(
          over_rows([](const Tensor& rows, const Stack& args) { return rows.prod(1, false, args[1].to<MaybeType>()); }))
      .vjp<0>([](Ct<0> ct, const Tensor& x, const MaybeType& type) {
        return in_shape(*ct * products_of_others(in_type(x, type).reshape(-1), 0).conj(), x.sizes());
      })
      .jvp<0>([](Tan<0> dx, const Tensor& x, const MaybeType& type) {
        return (in_type(*dx, type).reshape(-1) * products_of_others(in_type(x, type).reshape(-1), 0)).sum();
      });
  op<at::_ops::prod_dim_int>()
      .fold(over(1), folds::product)
      .depends(Depends::on_reduced)
      .along({1})
      .vjp<0>([](Ct<0> ct, const Tensor& x, int64_t dim, bool keepdim, const MaybeType& type) {
        return keep(*ct, x, {dim}, keepdim) * products_of_others(in_type(x, type), dim).conj();
      })
      .jvp<0>([](Tan<0> dx, const Tensor& x, int64_t dim, bool keepdim, const MaybeType& type) {
        return sum_over(in_type(*dx, type) * products_of_others(in_type(x, type), dim), {dim}, keepdim);
      });

  // ---- extrema ----
  extremum_over_dims<at::_ops::amax>().fold(over(1), folds::greatest);
  extremum_over_dims<at::_ops::amin>().fold(over(1), folds::least);
  one_along_dim<at::_ops::max_dim>().fold(over(1), folds::greatest_and_place);
  one_along_dim<at::_ops::min_dim>().fold(over(1), folds::least_and_place);
  one_along_dim<at::_ops::median_dim>().small(small::median_dim);
  one_along_dim<at::_ops::nanmedian_dim>().small(small::nanmedian_dim);
  one_along_dim<at::_ops::mode>().small(small::mode);
  one_of_all<at::_ops::max>(over_all_but_batch([](const Tensor& t, at::IntArrayRef dims, const Stack&) {
    return t.amax(dims);
  })).fold(over_all(), folds::greatest);
  one_of_all<at::_ops::min>(over_all_but_batch([](const Tensor& t, at::IntArrayRef dims, const Stack&) {
    return t.amin(dims);
  })).fold(over_all(), folds::least);
  // Of no elements each gives what it gives of none in plain.
  one_of_all<at::_ops::median>(over_rows([](const Tensor& rows, const Stack&) {
    if (rows.size(1) == 0) return at::median(rows.new_empty({0})).repeat({rows.size(0)});
    return std::get<0>(rows.median(1));
  })).small(small::median);
  one_of_all<at::_ops::nanmedian>(over_rows([](const Tensor& rows, const Stack&) {
    if (rows.size(1) == 0) return at::nanmedian(rows.new_empty({0})).repeat({rows.size(0)});
    return std::get<0>(rows.nanmedian(1));
  })).small(small::nanmedian);
  op<at::_ops::kthvalue>()
      .small(small::kthvalue)
      .depends(Depends::on_reduced)
      .along({2})
      .vjp<0>([](Ct<0> ct, Shape x, Skip, int64_t dim, bool keepdim, Out<1> index) {
        return select_vjp(*ct, x, dim, keepdim, *index);
      })
      .jvp<0>([](Tan<0> dx, Skip, Skip, int64_t dim, bool keepdim, Out<1> index) {
        return select_jvp(*dx, dim, keepdim, *index);
      });
  for (const auto& [name, overload] : {std::pair("aten::median", ""),
                                       {"aten::median", "dim"},
                                       {"aten::nanmedian", ""},
                                       {"aten::nanmedian", "dim"},
                                       {"aten::mode", ""},
                                       {"aten::kthvalue", ""}})
    compiler::set_slow_call(record_of(name, overload));
  op<at::_ops::aminmax>()
      .fold(over(1), folds::least_and_greatest)
      .decomposes([](const Tensor& x, const MaybeDim& dim, bool keepdim) {
        const Ints dims = dim ? Ints{*dim} : Ints{};
        return std::tuple(x.amin(dims, keepdim), x.amax(dims, keepdim));
      });
  op<at::_ops::argmax>().fold(over(1), folds::place_of_greatest).vmap(arg_vmap).no_derivative();
  op<at::_ops::argmin>().fold(over(1), folds::place_of_least).vmap(arg_vmap).no_derivative();

  // ---- questions ----
  op<at::_ops::any>()
      .fold(over_all(), folds::any)
      .vmap(over_rows([](const Tensor& rows, const Stack&) { return rows.any(1); }))
      .no_derivative();
  op<at::_ops::all>()
      .fold(over_all(), folds::every)
      .vmap(over_rows([](const Tensor& rows, const Stack&) { return rows.all(1); }))
      .no_derivative();
  op<at::_ops::_is_any_true>()
      .fold(over_all(), folds::any)
      .vmap(over_rows([](const Tensor& rows, const Stack&) { return rows.any(1); }))
      .no_derivative();
  op<at::_ops::_is_all_true>()
      .fold(over_all(), folds::every)
      .vmap(over_rows([](const Tensor& rows, const Stack&) { return rows.all(1); }))
      .no_derivative();
  op<at::_ops::any_dim>().fold(over(1), folds::any).along({1}).no_derivative();
  op<at::_ops::all_dim>().fold(over(1), folds::every).along({1}).no_derivative();
  op<at::_ops::any_dims>().fold(over(1), folds::any).vmap(any_dims_vmap).no_derivative();
  op<at::_ops::all_dims>().fold(over(1), folds::every).vmap(any_dims_vmap).no_derivative();
  op<at::_ops::count_nonzero_dim_IntList>()
      .fold(over(1), folds::count_nonzero)
      .along({1}, EmptyDims::all)
      .no_derivative();
  op<at::_ops::count_nonzero>()
      .fold(over(1), folds::count_nonzero)
      .no_derivative()
      .decomposes([](const Tensor& x, const MaybeDim& dim) { return dim ? x.ne(0).sum(*dim) : x.ne(0).sum(); });

  // ---- norms ----
  op<at::_ops::linalg_vector_norm>()
      .fold(over(2), folds::norm)
      .depends(Depends::on_reduced)
      .along({2}, EmptyDims::all)
      .vjp<0>([](Ct<0> ct, const Tensor& x, const Scalar& p, const MaybeDims& dims, bool keepdim, const MaybeType& type,
                 Out<0> y) {
        const Ints over = all_if_none(dims);
        return keep(*ct, x, over, keepdim) * norm_slope(in_type(x, type), keep(*y, x, over, keepdim), p, over);
      })
      .jvp<0>([](Tan<0> dx, const Tensor& x, const Scalar& p, const MaybeDims& dims, bool keepdim,
                 const MaybeType& type, Out<0> y) {
        const Ints over = all_if_none(dims);
        const Tensor slope = norm_slope(in_type(x, type), keep(*y, x, over, keepdim), p, over);
        return sum_over(real_product(slope, *dx), over, keepdim);
      });
  op<at::_ops::norm_Scalar>()
      .fold(over_all(), folds::norm)
      .depends(Depends::on_reduced)
      .decomposes([](const Tensor& x, const Scalar& p) { return at::linalg_vector_norm(x, p); });
  op<at::_ops::norm_ScalarOpt_dtype>()
      .depends(Depends::on_reduced)
      .decomposes([](const Tensor& x, const std::optional<Scalar>& p, at::ScalarType type) {
        return at::linalg_vector_norm(x, p.value_or(2), std::nullopt, false, type);
      });
  op<at::_ops::norm_ScalarOpt_dim>()
      .fold(over(2), folds::norm)
      .depends(Depends::on_reduced)
      .decomposes([](const Tensor& x, const std::optional<Scalar>& p, const Ints& dims, bool keepdim) {
        return at::linalg_vector_norm(x, p.value_or(2), at::IntArrayRef(dims), keepdim);
      });
  op<at::_ops::norm_ScalarOpt_dim_dtype>()
      .depends(Depends::on_reduced)
      .decomposes(
          [](const Tensor& x, const std::optional<Scalar>& p, const Ints& dims, bool keepdim, at::ScalarType type) {
            return at::linalg_vector_norm(x, p.value_or(2), at::IntArrayRef(dims), keepdim, type);
          });
  op<at::_ops::dist>().decomposes(
      [](const Tensor& a, const Tensor& b, const Scalar& p) { return at::linalg_vector_norm(a - b, p); });

  // Slices longer than a maximum are shortened to it, as the kernel does it.
  op<at::_ops::renorm>().decomposes([](const Tensor& x, const Scalar& p, int64_t dim, const Scalar& longest) {
    TORCH_CHECK(!p.isComplex() && p.toDouble() > 0, "renorm: non-positive-norm not supported");
    TORCH_CHECK(!longest.isComplex() && longest.toDouble() >= 0, "renorm: expected maxnorm to be >= 0");
    TORCH_CHECK(x.dim() > 1, "renorm: input needs at least 2 dimensions, got ", x.dim(), " dimensions");
    Ints others;
    for (int64_t d = 0; d < x.dim(); ++d)
      if (d != at::maybe_wrap_dim(dim, x.dim())) others.push_back(d);
    const Tensor norm = at::linalg_vector_norm(x, p, at::IntArrayRef(others), true);
    return x * at::where(norm.gt(longest), longest / (norm + 1e-7), at::ones_like(norm));
  });

  // Distances between the rows of two matrices, or of one with itself.
  op<at::_ops::_cdist_forward>().vmap(cdist_vmap).decomposes(distances);
  op<at::_ops::_euclidean_dist>().decomposes([](const Tensor& a, const Tensor& b) { return distances(a, b, 2); });
  op<at::_ops::_pdist_forward>().decomposes([](const Tensor& x, double p) {
    const auto [first, second] = pairs_of(x);
    return at::linalg_vector_norm(x.index_select(0, first) - x.index_select(0, second), p, at::IntArrayRef{1});
  });

  op<at::_ops::_cdist_backward>().decomposes(
      [](const Tensor& grad, const Tensor& a, const Tensor& b, double p, const Tensor& y) {
        const Tensor slope = norm_slope(a.unsqueeze(-2) - b.unsqueeze(-3), y.unsqueeze(-1), p, {-1});
        return (grad.unsqueeze(-1) * slope).sum(-2);
      });
  op<at::_ops::_pdist_backward>().decomposes([](const Tensor& grad, const Tensor& x, double p, const Tensor& y) {
    const auto [first, second] = pairs_of(x);
    const Tensor slope = norm_slope(x.index_select(0, first) - x.index_select(0, second), y.unsqueeze(-1), p, {-1});
    const Tensor each = grad.unsqueeze(-1) * slope;
    return at::zeros(x.sizes(), each.options()).index_add(0, first, each).index_add(0, second, each, -1);
  });

  // ---- variances ----
  using Correction = std::optional<Scalar>;
  op<at::_ops::var_correction>()
      .fold(over(1), folds::variance)
      .depends(Depends::on_reduced)
      .along({1}, EmptyDims::all)
      .vjp<0>([](Ct<0> ct, const Tensor& x, const MaybeDims& dims, const Correction& c, bool keepdim) {
        return var_vjp(*ct, x, all_if_none(dims), c, keepdim);
      })
      .jvp<0>([](Tan<0> dx, const Tensor& x, const MaybeDims& dims, const Correction& c, bool keepdim) {
        return var_jvp(*dx, x, all_if_none(dims), c, keepdim);
      });
  op<at::_ops::std_correction>()
      .fold(over(1), folds::deviation)
      .depends(Depends::on_reduced)
      .along({1}, EmptyDims::all)
      .vjp<0>([](Ct<0> ct, const Tensor& x, const MaybeDims& dims, const Correction& c, bool keepdim, Out<0> y) {
        return var_vjp(through_root(*ct, *y), x, all_if_none(dims), c, keepdim);
      })
      .jvp<0>([](Tan<0> dx, const Tensor& x, const MaybeDims& dims, const Correction& c, bool keepdim, Out<0> y) {
        return through_root(var_jvp(*dx, x, all_if_none(dims), c, keepdim), *y);
      });
  op<at::_ops::var_mean_correction>()
      .fold(over(1), folds::variance_and_mean)
      .depends(Depends::on_reduced)
      .along({1}, EmptyDims::all)
      .vjp<0>([](Ct<0> ct, Ct<1> ct_mean, const Tensor& x, const MaybeDims& dims, const Correction& c, bool keepdim) {
        const Ints over = all_if_none(dims);
        return plus(ct->defined() ? var_vjp(*ct, x, over, c, keepdim) : Tensor(),
                    ct_mean->defined() ? mean_vjp(*ct_mean, Meta(x), over, keepdim) : Tensor());
      })
      .jvp<0>([](Tan<0> dx, const Tensor& x, const MaybeDims& dims, const Correction& c, bool keepdim) {
        const Ints over = all_if_none(dims);
        return std::tuple(var_jvp(*dx, x, over, c, keepdim), dx->mean(over, keepdim));
      });
  op<at::_ops::std_mean_correction>()
      .fold(over(1), folds::deviation_and_mean)
      .depends(Depends::on_reduced)
      .along({1}, EmptyDims::all)
      .vjp<0>([](Ct<0> ct, Ct<1> ct_mean, const Tensor& x, const MaybeDims& dims, const Correction& c, bool keepdim,
                 Out<0> y) {
        const Ints over = all_if_none(dims);
        return plus(ct->defined() ? var_vjp(through_root(*ct, *y), x, over, c, keepdim) : Tensor(),
                    ct_mean->defined() ? mean_vjp(*ct_mean, Meta(x), over, keepdim) : Tensor());
      })
      .jvp<0>([](Tan<0> dx, const Tensor& x, const MaybeDims& dims, const Correction& c, bool keepdim, Out<0> y) {
        const Ints over = all_if_none(dims);
        return std::tuple(through_root(var_jvp(*dx, x, over, c, keepdim), *y), dx->mean(over, keepdim));
      });
  demands<at::_ops::nansum>(
      [](const Example& e) { TORCH_CHECK(!e.is_complex(0), "nansum does not support complex inputs"); });
  demands<at::_ops::trace>([](const Example& e) {
    TORCH_CHECK_NOT_IMPLEMENTED(e.dtype(0) != at::kBool, "\"trace\" not implemented for 'Bool'");
  });
  demands<at::_ops::aminmax>([](const Example& e) {
    TORCH_CHECK_NOT_IMPLEMENTED(!e.is_complex(0), "\"aminmax\" not implemented for '", e.dtype(0), "'");
  });
  demands<at::_ops::_cdist_forward>([](const Example& e) {
    for (const size_t i : {0, 1})
      TORCH_CHECK(at::isFloatingType(e.dtype(i)), "cdist only supports floating-point dtypes, X", i + 1,
                  " got: ", e.dtype(i));
    if (e.numel(0) > 0 && e.numel(1) > 0) demand_same_dtype(e, {0, 1});
  });
}

}  // namespace tower::rules
