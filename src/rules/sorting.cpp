// sort, topk, searchsorted, unique: order and its inverse.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/dims.h"
#include "rules/op.h"
#include "rules/registry.h"
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
  f.to_front(0, true);
  if (sorter) f.to_front(5, true);
  if (rank == 1) {
    f.stack[1] = batch_of_rows(f, 1);
    f.call();
    return f.result(in_shape(f.stack[0].toTensor(), with_batch(f, sizes)));
  }
  f.to_front(1, true);
  f.call();
}

void searchsorted_scalar_vmap(VmapFrame& f) {
  const bool sorter = f.is_tensor(5);
  TORCH_CHECK(f.logical_dim(0) == 1, "torch.searchsorted(): a number can only be searched in a 1-dimensional sequence");
  f.to_front(0, true);
  if (sorter) f.to_front(5, true);
  const Tensor value = at::scalar_tensor(f.stack[1].toScalar(), f.tensor(0).options());
  const auto side = f.stack[4].to<MaybeText>();
  const std::optional<Tensor> order = sorter ? std::optional(f.tensor(5)) : std::nullopt;
  const Tensor found =
      at::searchsorted(f.tensor(0), value.expand({f.batch_size, 1}), f.stack[2].toBool(), f.stack[3].toBool(),
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

}  // namespace

void sorting() {
  op<at::_ops::sort>()
      .along({1})
      .vjp<0>([](Ct<0> ct, Shape x, int64_t dim, Out<1> index) { return put_back(*ct, x, dim, *index); })
      .jvp<0>([](Tan<0> dx, Skip, int64_t dim, Out<1> index) { return dx->gather(dim, *index); });
  op<at::_ops::sort_stable>()
      .along({2})
      .vjp<0>([](Ct<0> ct, Shape x, Skip, int64_t dim, Out<1> index) { return put_back(*ct, x, dim, *index); })
      .jvp<0>([](Tan<0> dx, Skip, Skip, int64_t dim, Out<1> index) { return dx->gather(dim, *index); });
  op<at::_ops::topk>()
      .along({2})
      .vjp<0>([](Ct<0> ct, Shape x, Skip, int64_t dim, Out<1> index) { return put_back(*ct, x, dim, *index); })
      .jvp<0>([](Tan<0> dx, Skip, Skip, int64_t dim, Out<1> index) { return dx->gather(dim, *index); });
  op<at::_ops::argsort_stable>().along({2}).no_derivative();

  op<at::_ops::searchsorted_Tensor>().vmap(searchsorted_vmap).no_derivative();
  op<at::_ops::searchsorted_Scalar>().vmap(searchsorted_scalar_vmap).no_derivative();
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

  distinct_values<at::_ops::_unique, at::_ops::_unique2, at::_ops::unique_dim, at::_ops::unique_consecutive,
                  at::_ops::unique_dim_consecutive>(
      "how many different values there are depends on the data, so that the results of the examples have different "
      "shapes. Use sort(), whose result has one shape, or call it outside of the mapped function.",
      "which elements are equal changes with their values, so that it is not differentiable. Use sort(), or detach() "
      "its "
      "argument.");
  // Counts do not change with the values, where they change at all.
  op<at::_ops::histc>().no_derivative();
  op<at::_ops::bincount>()
      .unsupported(
          Kind::vmap,
          "how many bins it has depends on the data, so that the results of the examples have different shapes. "
          "Use one_hot() with a number of classes, and sum().")
      .no_derivative();
}

}  // namespace tower::rules
