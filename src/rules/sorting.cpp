// sort, topk, searchsorted, unique: order and its inverse.
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/TypeProperties.h>

#include "numbers/slow_calls.h"
#include "records/demands.h"
#include "records/dims.h"
#include "records/op.h"
#include "rules/registry.h"
#include "rules/shared_operand.h"
#include "rules/small_orders.h"
#include "tower/errors.h"

namespace tower::rules {
namespace {

using MaybeText = std::optional<std::string>;

// The values are a selection of the elements: the derivative goes where the indices point.
Tensor put_back(const Tensor& ct, const Meta& x, int64_t dim, const Tensor& index) {
  return at::zeros(x.sizes, ct.options()).scatter(dim, index, ct);
}

// One sorted sequence for all values, or one for each row of values.
void searchsorted_vmap(VmapFrame& f) {
  const bool sorter = f.is_tensor(5);
  const bool values_alone = f.batched(1) && !f.batched(0) && !(sorter && f.batched(5));
  if (values_alone && f.tensor(0).dim() == 1) {
    f.out_dims.assign(1, f.in_dims[1]);
    return f.call();
  }
  const int64_t rank = f.logical_dim(0);
  const auto sizes = logical_sizes(f, 1);
  if (values_alone) {
    f.to_front(1, false);
    const Tensor values = f.tensor(1);
    f.stack[0] = f.tensor(0).contiguous();
    f.stack[1] = side_by_side(values.unsqueeze(-2)).squeeze(-2).contiguous();
    f.call();
    return f.result(from_side_by_side(f.tensor(0), f.batch_size, values.size(-1)));
  }
  f.to_front(0, true);
  if (sorter) f.to_front(5, true);
  if (rank == 1) {
    f.stack[1] = batch_of_rows(f, 1);
    f.call();
    return f.result(in_shape(f.stack[0].toTensor(), with_batch(f, sizes)));
  }
  f.to_front(1, true);
  // LibTorch copies them itself, with a warning.
  for (const size_t arg : {size_t{0}, size_t{1}}) f.stack[arg] = f.tensor(arg).contiguous();
  f.call();
}

void searchsorted_scalar_vmap(VmapFrame& f) {
  const bool sorter = f.is_tensor(5);
  TORCH_CHECK(f.logical_dim(0) == 1, "torch.searchsorted(): a number can only be searched in a 1-dimensional sequence");
  f.to_front(0, true);
  if (sorter) f.to_front(5, true);
  // The number and what it is searched in are promoted, or a fraction would be cut off among integers.
  const at::ScalarType type = at::result_type(f.tensor(0), f.stack[1].toScalar());
  const Tensor boundaries = f.tensor(0).to(type);
  const Tensor value = at::scalar_tensor(f.stack[1].toScalar(), boundaries.options());
  const auto side = f.stack[4].to<MaybeText>();
  const std::optional<Tensor> order = sorter ? std::optional(f.tensor(5)) : std::nullopt;
  const Tensor found =
      at::searchsorted(boundaries, value.expand({f.batch_size, 1}), f.stack[2].toBool(), f.stack[3].toBool(),
                       side ? std::optional<c10::string_view>(*side) : std::nullopt, order);
  f.result(found.squeeze(1));
}

template <class... Op>
void distinct_values(const std::string& no_shape, const std::string& no_derivative) {
  (op<Op>()
       .unsupported(Kind::vmap, no_shape)
       .unsupported(Kind::vjp, no_derivative)
       .unsupported(Kind::jvp, no_derivative),
   ...);
}

// ---- quantiles ----

// Rank q (n - 1) among the sorted values, and a mean of its two neighbours. NaN sorts last: one makes all quantiles
// NaN, unless they are left out.
Tensor quantile(const Tensor& x, const Tensor& q, const std::optional<int64_t>& dim, bool keepdim,
                const std::string& interpolation, bool ignore_nan) {
  TORCH_CHECK(x.numel() > 0, "quantile() input tensor must be non-empty");
  TORCH_CHECK(q.dim() <= 1, "quantile() q must be a scalar or 1D tensor");
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble,
              "quantile() input tensor must be either float or double dtype");
  TORCH_CHECK(q.scalar_type() == x.scalar_type(), "quantile() q tensor must be same dtype as the input tensor");
  const bool linear = interpolation == "linear", midpoint = interpolation == "midpoint";
  TORCH_CHECK(linear || midpoint || interpolation == "lower" || interpolation == "higher" || interpolation == "nearest",
              "quantile() interpolation must be one of linear, lower, higher, midpoint or nearest, but got ",
              interpolation);
  const int64_t axis = at::maybe_wrap_dim(dim.value_or(0), x.dim());
  const Tensor rows = !dim || x.dim() == 0 ? x.reshape(-1) : x.movedim(axis, -1);
  const Tensor sorted = std::get<0>(rows.sort(-1)), nan = sorted.isnan();
  const int64_t last = rows.size(-1) - 1;
  const Tensor fractions = q.reshape(-1);
  Tensor ranks;
  if (ignore_nan) ranks = (fractions * (nan.logical_not().sum(-1, true) - 1).to(x.scalar_type())).clamp_min(0);
  else ranks = (fractions * last).masked_fill(nan.select(-1, last).unsqueeze(-1), last);
  if (interpolation == "lower") ranks = ranks.floor();
  if (interpolation == "higher") ranks = ranks.ceil();
  if (interpolation == "nearest") ranks = ranks.round();
  const Tensor below = ranks.floor();
  Tensor result = sorted.gather(-1, below.to(at::kLong));
  if (linear || midpoint) {
    const Tensor above = sorted.gather(-1, ranks.ceil().to(at::kLong));
    result = at::lerp(result, above, midpoint ? at::full_like(ranks, 0.5) : ranks - below);
  }
  if (keepdim) {
    if (dim) result = x.dim() > 0 ? result.unsqueeze(axis) : result;
    else
      for (int64_t d = 0; d < x.dim(); ++d) result = result.unsqueeze(0);
  }
  return q.dim() == 0 ? result.squeeze(-1) : result.movedim(-1, 0);
}

template <class Op, bool ignore_nan>
void quantile_of_tensor() {
  op<Op>().decomposes([](const Tensor& x, const Tensor& q, const std::optional<int64_t>& dim, bool keepdim,
                         const std::string& how) { return quantile(x, q, dim, keepdim, how, ignore_nan); });
}
template <class Op, bool ignore_nan>
void quantile_of_number() {
  op<Op>().decomposes(
      [](const Tensor& x, double q, const std::optional<int64_t>& dim, bool keepdim, const std::string& how) {
        TORCH_CHECK(q >= 0 && q <= 1, "quantile() q must be in the range [0, 1] but got ", q);
        return quantile(x, at::full({}, q, x.options()), dim, keepdim, how, ignore_nan);
      });
}

// One histogram of all examples, in which each has bins of its own.
void bincount_vmap(VmapFrame& f) {
  const bool weighted = f.is_tensor(1);
  for (size_t arg = 0; arg < (weighted ? 2 : 1); ++arg) f.to_front(arg, true);
  const Tensor values = f.tensor(0), weights = weighted ? f.tensor(1) : Tensor();
  const int64_t least = f.stack[2].toInt();
  TORCH_CHECK(least >= 0, "minlength should be >= 0");
  TORCH_CHECK(f.logical_dim(0) == 1 && at::isIntegralType(values.scalar_type(), /*includeBool=*/false) &&
                  at::equal(values, values.abs()),
              "bincount only supports 1-d non-negative integral inputs.");
  if (values.numel() == 0) return f.result(at::zeros({f.batch_size, least}, values.options().dtype(at::kLong)));
  TORCH_CHECK(!weighted || weights.sizes().equals(values.sizes()),
              "weights should be 1-d and have the same length as input");
  const Tensor bins = values.to(at::kLong).amax(1).add(1).clamp_min(least);
  const int64_t width = at::equal(bins, at::full_like(bins, least)) ? least : bins.max().item<int64_t>();
  if (!at::equal(bins, at::full_like(bins, width)))
    throw UnsupportedError(
        f.level.describe() + ": " + f.op.name() +
        ": how many bins it has depends on the data and differs between the examples, so that their results have "
        "different shapes. Give a minlength, or use one_hot() with a number of classes, and sum().");
  const Tensor own = values + at::arange(f.batch_size, bins.options()).unsqueeze(1) * width;
  f.result(at::bincount(own.reshape(-1), weighted ? weights.reshape(-1) : weights, f.batch_size * width)
               .view({f.batch_size, width}));
}

}  // namespace

void sorting() {
  for (const char* overload : {"Tensor", "Scalar"}) {
    compiler::set_looks_up(record_of("aten::searchsorted", overload));
    compiler::set_slow_call(record_of("aten::searchsorted", overload));
  }
  for (const char* overload : {"", "stable"}) compiler::set_slow_call(record_of("aten::sort", overload));
  compiler::set_slow_call(record_of("aten::argsort", "stable"));
  compiler::set_slow_call(record_of("aten::topk", ""));
  op<at::_ops::sort>()
      .small(small::sort)
      .depends(Depends::on_dim)
      .along({1})
      .vjp<0>([](Ct<0> ct, Shape x, int64_t dim, Out<1> index) { return put_back(*ct, x, dim, *index); })
      .jvp<0>([](Tan<0> dx, Skip, int64_t dim, Out<1> index) { return gathered(*dx, dim, *index); });
  op<at::_ops::sort_stable>()
      .small(small::sort_stable)
      .depends(Depends::on_dim)
      .along({2})
      .vjp<0>([](Ct<0> ct, Shape x, Skip, int64_t dim, Out<1> index) { return put_back(*ct, x, dim, *index); })
      .jvp<0>([](Tan<0> dx, Skip, Skip, int64_t dim, Out<1> index) { return gathered(*dx, dim, *index); });
  op<at::_ops::topk>()
      .small(small::topk)
      .along({2})
      .vjp<0>([](Ct<0> ct, Shape x, Skip, int64_t dim, Out<1> index) { return put_back(*ct, x, dim, *index); })
      .jvp<0>([](Tan<0> dx, Skip, Skip, int64_t dim, Out<1> index) { return gathered(*dx, dim, *index); });
  op<at::_ops::argsort_stable>().small(small::argsort_stable).along({2}).no_derivative();

  op<at::_ops::searchsorted_Tensor>().small(small::searchsorted).vmap(searchsorted_vmap).no_derivative();
  op<at::_ops::searchsorted_Scalar>().small(small::searchsorted).vmap(searchsorted_scalar_vmap).no_derivative();
  op<at::_ops::bucketize_Tensor>().no_derivative().decomposes([](const Tensor& x, const Tensor& boundaries,
                                                                 bool out_int32, bool right) {
    TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
    return at::searchsorted(boundaries, x, out_int32, right);
  });
  op<at::_ops::bucketize_Scalar>().no_derivative().decomposes([](const Scalar& x, const Tensor& boundaries,
                                                                 bool out_int32, bool right) {
    TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
    return at::searchsorted(boundaries, x, out_int32, right);
  });

  quantile_of_tensor<at::_ops::quantile, false>();
  quantile_of_tensor<at::_ops::nanquantile, true>();
  quantile_of_number<at::_ops::quantile_scalar, false>();
  quantile_of_number<at::_ops::nanquantile_scalar, true>();

  distinct_values<at::_ops::_unique, at::_ops::_unique2, at::_ops::unique_dim, at::_ops::unique_consecutive,
                  at::_ops::unique_dim_consecutive>(
      "how many different values there are depends on the data, so that the results of the examples have different "
      "shapes. Use sort(), whose result has one shape, or call it outside of the mapped function.",
      "which elements are equal changes with their values, so that it is not differentiable. Use sort(), or detach() "
      "its "
      "argument.");
  op<at::_ops::bincount>().vmap(bincount_vmap).linear<1>([](Ct<0> ct, const Tensor& values) {
    return ct->index_select(0, values);
  });
  demands<at::_ops::searchsorted_Tensor>([](const Example& e) {
    TORCH_CHECK(e.dim(0) != 0,
                "torch.searchsorted(): boundaries tensor should have positive dimension, but got 0 "
                "dimension");
  });
}

}  // namespace tower::rules
