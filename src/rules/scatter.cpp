// Writing by an index along a dimension: scatter, index_add and their relatives.
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <ATen/ops/index_add_meta_dispatch.h>
#include <ATen/ops/index_copy_meta_dispatch.h>
#include <ATen/ops/index_reduce_meta_dispatch.h>

#include "core/wrapper.h"
#include "records/demands.h"
#include "records/dims.h"
#include "records/op.h"
#include "records/overwriting.h"
#include "rules/look_ups.h"
#include "rules/registry.h"
#include "rules/repeated_places.h"
#include "rules/scan.h"
#include "rules/small_indexing.h"
#include "rules/small_scatters.h"

namespace tower::rules {
namespace {

// ---- scatter along a dimension: batching ----

// self, dim, index and, unless it is a number, src.
void scatter_vmap(VmapFrame& f) {
  const bool scalar = f.logical_dim(0) == 0;
  shift_dims(f, {1}, std::max<int64_t>(f.logical_dim(0), 1));
  for (uint8_t arg : f.op.tensor_args())
    if (f.tensor(arg).dim() == 1) f.stack[arg] = f.tensor(arg).unsqueeze(1);
  f.call();
  if (scalar) f.result(f.stack[0].toTensor().squeeze(1));
}

// ---- scatter along a dimension: derivatives ----

// The gradient of what was read of src, which may be larger than index: zero for the rest.
Tensor padded(const Tensor& part, at::IntArrayRef src) {
  if (part.sizes().equals(src)) return part;
  Ints pad;
  for (size_t d = src.size(); d-- > 0;) {
    pad.push_back(0);
    pad.push_back(src[d] - part.size(static_cast<int64_t>(d)));
  }
  return at::constant_pad_nd(part, pad);
}
Tensor read(const Tensor& from, int64_t dim, const Tensor& index, at::IntArrayRef src) {
  return padded(from.gather(dim, index), src);
}
// The part of src that is read.
Tensor corner(Tensor src, const Tensor& index) {
  for (int64_t d = 0; d < index.dim(); ++d)
    if (src.dim() == index.dim() && src.size(d) != index.size(d)) src = src.narrow(d, 0, index.size(d));
  return src;
}

Tensor without_written(const Tensor& t, int64_t dim, const Tensor& index) { return t.scatter(dim, index, 0); }

// The source's gradient first: then the cotangent with zeros where it went is the base's, and may be made in place.
void pull_back_scatter(VjpFrame& f) {
  if (!f.cotangents[0].defined()) return;
  const int64_t dim = f.args[1].toInt();
  const Tensor &index = f.args[2].toTensor(), &ct = f.cotangents[0];
  if (f.wants(3)) {
    Tensor gradient = ct.gather(dim, index);
    if (index.dim() > 0 && index.size(dim) > 1) gradient = of_those_that_stay(gradient, index, dim, index.sizes());
    f.give(3, padded(gradient, f.meta(3).sizes));
  }
  if (f.wants(0)) f.give(0, overwritten<at::_ops::scatter_value>(taken_cotangent(f), dim, index, 0));
}

// ---- scatter along a dimension: in place ----

bool fits_along(const Tensor& base, const Stack& stack, int64_t least_index) {
  if (base.dim() == 0) return false;
  const int64_t size = base.size(at::maybe_wrap_dim(stack[1].toInt(), base.dim()));
  return in_range(stack[2].toTensor(), least_index * size, size);
}
template <bool add>
bool write_along(const Tensor& base, const Stack& stack) {
  const Tensor &index = stack[2].toTensor(), &src = stack[3].toTensor();
  if (!goes_into(src, base) || !fits_along(base, stack, 0)) return false;
  if constexpr (add) base.scatter_add_(stack[1].toInt(), index, src);
  else base.scatter_(stack[1].toInt(), index, src);
  return true;
}
bool write_number_along(const Tensor& base, const Stack& stack) {
  if (!fits_along(base, stack, 0)) return false;
  base.scatter_(stack[1].toInt(), stack[2].toTensor(), stack[3].toScalar());
  return true;
}
template <bool add>
bool write_slices(const Tensor& base, const Stack& stack) {
  const Tensor &index = stack[2].toTensor(), &source = stack[3].toTensor();
  if (!goes_into(source, base) || !fits_along(base, stack, 0)) return false;
  if constexpr (add) base.index_add_(stack[1].toInt(), index, source, stack[4].toScalar());
  else base.index_copy_(stack[1].toInt(), index, source);
  return true;
}
bool write_number_to_slices(const Tensor& base, const Stack& stack) {
  if (!fits_along(base, stack, -1)) return false;
  base.index_fill_(stack[1].toInt(), stack[2].toTensor(), stack[3].toScalar());
  return true;
}

// Sums and means: how many numbers each element of the result is made of.
Tensor parts_of_mean(const Tensor& like, int64_t dim, const Tensor& index, bool include_self) {
  const Tensor start = include_self ? at::ones_like(like) : at::zeros_like(like);
  return start.scatter_add(dim, index, at::ones(index.sizes(), like.options())).clamp_min(1);
}

// Products. For each element of src the product of the others that meet it, the value in self included: elements
// sorted by where they go, running products within equal destinations from both sides. Exact at zeros to any order.
Tensor products_of_others(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src, bool include_self) {
  const auto sorted = index.dim() == 0 ? std::tuple(index, at::zeros_like(index)) : index.sort(dim);
  const Tensor &place = std::get<0>(sorted), &order = std::get<1>(sorted);
  const Tensor x = src.gather(dim, order);
  Tensor others = at::ones_like(x);
  if (x.dim() > 0 && x.size(dim) > 1) {
    const Tensor as_before = place.eq(delayed(place, dim, -1)), as_after = place.eq(advanced(place, dim, -1));
    // before[k] = before[k-1] x[k-1] where the destination is the same, else 1: a linear recurrence.
    const auto running = [&](const Tensor& same, const Tensor& neighbour) {
      return recurrence(neighbour * same, same.logical_not().to(x.scalar_type()), dim);
    };
    const Tensor before = running(as_before, delayed(x, dim, 0));
    const Tensor after = running(as_after.flip(dim), advanced(x, dim, 0).flip(dim)).flip(dim);
    others = before * after;
  }
  if (include_self) others = others * self.gather(dim, place);
  return at::zeros_like(src).scatter(dim, order, others);
}
Tensor products_of_src(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
  return at::scatter_reduce(at::ones_like(self), dim, index, src, "prod", true);
}

// Extrema: ties share evenly.
struct Winners {
  Tensor self, src, count;
};
Winners winners(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src, bool include_self,
                const Tensor& y) {
  const auto type = y.scalar_type();
  Tensor of_self = self.eq(y).to(type);
  if (!include_self) of_self = without_written(of_self, dim, index);
  const Tensor of_src = src.eq(y.gather(dim, index)).to(type);
  return {of_self, of_src, of_self.scatter_add(dim, index, of_src)};
}

std::tuple<Tensor, Tensor> scatter_reduce_vjp(Ct<0> ct, const Tensor& self, int64_t dim, const Tensor& index,
                                              const Tensor& all_src, const std::string& reduce, bool include_self,
                                              Out<0> y) {
  const auto sizes = all_src.sizes();
  const Tensor src = corner(all_src, index);
  const auto unwritten = [&](const Tensor& t) { return include_self ? t : without_written(t, dim, index); };
  if (reduce == "sum") return {unwritten(*ct), read(*ct, dim, index, sizes)};
  if (reduce == "mean") {
    const Tensor share = *ct / parts_of_mean(*ct, dim, index, include_self);
    return {unwritten(share), read(share, dim, index, sizes)};
  }
  if (reduce == "prod") {
    const Tensor others = products_of_others(self, dim, index, src, include_self).conj();
    const Tensor of_self = *ct * products_of_src(self, dim, index, src).conj();
    return {unwritten(of_self), padded(ct->gather(dim, index) * others, sizes)};
  }
  const Winners w = winners(self, dim, index, src, include_self, *y);
  const Tensor share = *ct / w.count;
  return {w.self * share, padded(w.src * share.gather(dim, index), sizes)};
}

Tensor scatter_reduce_jvp(Tan<0> dself, Tan<3> dsrc, const Tensor& self, int64_t dim, const Tensor& index,
                          const Tensor& all_src, const std::string& reduce, bool include_self, Out<0> y) {
  const Tensor src = corner(all_src, index);
  const Tensor along_src = dsrc->defined() ? corner(*dsrc, index) : at::zeros_like(src);
  Tensor along_self = dself->defined() ? *dself : at::zeros_like(self);
  if (reduce == "sum" || reduce == "mean")
    return at::scatter_reduce(along_self, dim, index, along_src, reduce, include_self);
  if (reduce == "prod") {
    along_self = along_self * products_of_src(self, dim, index, src);
    if (!include_self) along_self = without_written(along_self, dim, index);
    return along_self.scatter_add(dim, index, along_src * products_of_others(self, dim, index, src, include_self));
  }
  const Winners w = winners(self, dim, index, src, include_self, *y);
  return (w.self * along_self).scatter_add(dim, index, w.src * along_src) / w.count;
}

// ---- whole slices along a dimension ----

// index_add and index_copy: with an index of each example's own, every element is told where it goes.
template <bool add>
void index_write_vmap(VmapFrame& f) {
  const bool scalar = f.logical_dim(0) == 0, one = f.logical_dim(3) == 0;
  const int64_t rank = std::max<int64_t>(f.logical_dim(0), 1);
  const int64_t dim = at::maybe_wrap_dim(f.stack[1].toInt(), rank) + 1;
  f.to_front(0, true);
  f.to_front(3, true);
  Tensor self = f.tensor(0), source = f.tensor(3);
  f.stack[0] = IValue();  // so that it may be overwritten
  if (scalar) self = self.unsqueeze(1);
  if (one) source = source.unsqueeze(1);
  if (!f.batched(2)) {
    f.stack[0] = std::move(self);
    f.stack[1] = dim;
    if (f.tensor(2).dim() == 0) f.stack[2] = f.tensor(2).unsqueeze(0);
    f.stack[3] = source;
    f.call();
  } else {
    f.to_front(2, false);
    Tensor index = f.tensor(2);
    if (index.dim() == 1) index = index.unsqueeze(1);
    std::vector<int64_t> ones(static_cast<size_t>(source.dim()), 1);
    ones[0] = f.batch_size;
    ones[static_cast<size_t>(dim)] = index.size(1);
    TORCH_CHECK_INDEX(index.size(1) == source.size(dim), f.op.name(), ": Number of indices (", index.size(1),
                      ") should be equal to source.size(dim): (", source.size(dim), "), for dim: ", dim - 1);
    index = index.view(ones).expand(source.sizes());
    if constexpr (add) {
      const Tensor each = times(source, f.stack[4].toScalar());
      f.result(overwritten<at::_ops::scatter_add>(std::move(self), dim, index, each));
    } else {
      f.result(overwritten<at::_ops::scatter_src>(std::move(self), dim, index, source));
    }
  }
  if (scalar) f.result(f.stack[0].toTensor().squeeze(1));
}

void index_fill_vmap(VmapFrame& f) {
  const bool scalar = f.logical_dim(0) == 0;
  const int64_t dim = at::maybe_wrap_dim(f.stack[1].toInt(), std::max<int64_t>(f.logical_dim(0), 1)) + 1;
  f.to_front(0, true);
  Tensor self = scalar ? f.tensor(0).unsqueeze(1) : f.tensor(0), y;
  f.stack[0] = IValue();  // so that it may be overwritten
  if (!f.batched(2)) {
    y = overwritten<at::_ops::index_fill_int_Scalar>(std::move(self), dim, f.tensor(2), f.stack[3].toScalar());
  } else {
    f.to_front(2, false);
    Tensor index = f.tensor(2);
    if (index.dim() == 1) index = index.unsqueeze(1);
    std::vector<int64_t> ones(static_cast<size_t>(self.dim()), 1), sizes = self.sizes().vec();
    ones[0] = f.batch_size;
    ones[static_cast<size_t>(dim)] = sizes[static_cast<size_t>(dim)] = index.size(1);
    const int64_t n = self.size(dim);
    index = at::where(index.lt(0), index + n, index);
    y = overwritten<at::_ops::scatter_value>(std::move(self), dim, index.view(ones).expand(sizes),
                                             f.stack[3].toScalar());
  }
  f.result(scalar ? y.squeeze(1) : y);
}

// The gradient of a source that was spread by index: read where it went.
Tensor read_slices(const Tensor& ct, int64_t dim, const Tensor& index, const Meta& source) {
  return in_shape(ct.index_select(dim, index), source.sizes);
}

void pull_back_slices(VjpFrame& f) {
  if (!f.cotangents[0].defined()) return;
  const int64_t dim = f.args[1].toInt();
  const Tensor &index = f.args[2].toTensor(), &ct = f.cotangents[0];
  if (f.wants(3)) {
    Tensor gradient = ct.index_select(dim, index);
    if (index.numel() > 1) {
      Ints shape(static_cast<size_t>(ct.dim()), 1);
      shape[static_cast<size_t>(at::maybe_wrap_dim(dim, ct.dim()))] = index.numel();
      gradient = of_those_that_stay(gradient, index, 0, shape);
    }
    f.give(3, in_shape(gradient, f.meta(3).sizes));
  }
  if (f.wants(0)) f.give(0, overwritten<at::_ops::index_fill_int_Scalar>(taken_cotangent(f), dim, index, 0));
}

// ---- demands ----

// The kernels look at what the shape functions do not.
template <auto shape_function>
void demand_slices(const Example& e) {
  if (e.numel(3) > 0) own_demands<shape_function>(e);  // it selects a first slice
  Sizes self = e.sizes(0), source = e.sizes(3);
  const int64_t dim = at::maybe_wrap_dim(e[1].toInt(), e.dim(0));
  if (self.size() == source.size() && !self.empty()) self[static_cast<size_t>(dim)] = source[static_cast<size_t>(dim)];
  TORCH_CHECK(self == source,
              "source tensor shape must match self tensor shape, excluding the specified dimension. "
              "Got self.shape = ",
              at::IntArrayRef(e.sizes(0)), " source.shape = ", at::IntArrayRef(source));
}

void demand_added_slices(const Example& e) {
  demand_slices<at::meta::index_add>(e);
  // Of more dimensions the kernel leaves where there are no elements, before it looks at the indices.
  TORCH_CHECK_INDEX(e.dim(0) > 1 || e.numel(0) > 0 || e.numel(2) == 0, "index out of range in self");
}

void demand_filling(const Example& e) {
  TORCH_CHECK(e.dim(2) <= 1, "Index has to be a vector/scalar");
  TORCH_CHECK_INDEX(e.dtype(2) == at::kLong || e.dtype(2) == at::kInt,
                    "index_fill_(): Expected dtype int64 or int32 for index, but got ", e.dtype(2));
  const bool complex = e[3].isTensor() ? e.is_complex(3) : e[3].toScalar().isComplex();
  TORCH_CHECK(e.is_complex(0) || !complex,
              "index_fill_(): Converting complex Scalar to non-complex type is not supported");
}

}  // namespace

void scatter() {
  // What a derivative of those needs that write a source: where, and the source's shape.
  constexpr Keeps kIndexAndShape{Mask{1} << 2, Mask{1} << 3, 0};
  // ---- along a dimension ----
  op<at::_ops::scatter_src>()
      .small(small::scatter_src)
      .depends(Depends::by_scatter)
      .vmap(scatter_vmap)
      .evaluated_by(evaluate_in_rows<at::_ops::scatter_src, write_along<false>>);
  overwrites(record_of("aten::scatter", "src"), 3, kIndexAndShape, pull_back_scatter);
  op<at::_ops::scatter_value>()
      .small(small::scatter_value)
      .depends(Depends::by_scatter)
      .vmap(scatter_vmap)
      .evaluated_by(evaluate_in_rows<at::_ops::scatter_value, write_number_along>);
  overwrites_with_number(record_of("aten::scatter", "value"), 3);
  op<at::_ops::scatter_add>()
      .small(small::scatter_add)
      .depends(Depends::by_scatter)
      .vmap(scatter_vmap)
      .evaluated_by(evaluate_in_rows<at::_ops::scatter_add, write_along<true>>)
      .vjp<0>([](Ct<0> ct) { return *ct; })
      .vjp<3>(
          [](Ct<0> ct, Skip, int64_t dim, const Tensor& index, Shape src) { return read(*ct, dim, index, src.sizes); });
  linear_by_overwriting(record_of("aten::scatter_add", ""), 3);
  op<at::_ops::scatter_reduce_two>()
      .small(small::scatter_reduce)
      .depends(Depends::by_scatter)
      .vmap(scatter_vmap)
      .vjp<0, 3>(scatter_reduce_vjp)
      .jvp<0, 3>(scatter_reduce_jvp);
  // The older spelling of the same: "add" and "multiply".
  op<at::_ops::scatter_reduce>()
      .depends(Depends::by_scatter)
      .decomposes(
          [](const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src, const std::string& reduce) {
            return at::scatter_reduce(self, dim, index, src, reduce == "add" ? "sum" : "prod", true);
          });
  op<at::_ops::scatter_value_reduce>()
      .depends(Depends::by_scatter)
      .decomposes(
          [](const Tensor& self, int64_t dim, const Tensor& index, const Scalar& value, const std::string& reduce) {
            const Tensor src = at::full(index.sizes(), value, self.options());
            return at::scatter_reduce(self, dim, index, src, reduce == "add" ? "sum" : "prod", true);
          });

  // ---- slices by index ----
  op<at::_ops::index_add>()
      .small(small::index_add)
      .depends(Depends::by_index_along)
      .vmap(index_write_vmap<true>)
      .evaluated_by(evaluate_in_rows<at::_ops::index_add, write_slices<true>>)
      .vjp<0>([](Ct<0> ct) { return *ct; })
      .vjp<3>([](Ct<0> ct, Skip, int64_t dim, const Tensor& index, Shape source, const Scalar& alpha) {
        return times_conjugate(read_slices(*ct, dim, index, source), alpha);
      });
  linear_by_overwriting(record_of("aten::index_add", ""), 3);
  compiler::set_adding_rule(record_of("aten::index_add", ""), look_ups::index_add);
  op<at::_ops::index_copy>()
      .small(small::index_copy)
      .depends(Depends::on_moved)
      .vmap(index_write_vmap<false>)
      .evaluated_by(evaluate_in_rows<at::_ops::index_copy, write_slices<false>>);
  overwrites(record_of("aten::index_copy", ""), 3, kIndexAndShape, pull_back_slices);
  op<at::_ops::index_fill_int_Scalar>()
      .small(small::index_fill)
      .depends(Depends::on_moved)
      .vmap(index_fill_vmap)
      .evaluated_by(evaluate_overwriting<at::_ops::index_fill_int_Scalar, write_number_to_slices>);
  overwrites_with_number(record_of("aten::index_fill", "int_Scalar"), 3);
  op<at::_ops::index_fill_int_Tensor>()
      .depends(Depends::on_moved)
      .decomposes([](const Tensor& self, int64_t dim, const Tensor& index, const Tensor& value) {
        TORCH_CHECK(value.dim() == 0, "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
                    value.dim(), " dimension(s).");
        const Tensor mask = at::zeros(self.sizes(), self.options().dtype(at::kBool)).index_fill(dim, index, 1);
        return at::where(mask, value.to(self.scalar_type()), self);
      });

  // "prod", "mean", "amax", "amin" of whole slices.
  op<at::_ops::index_reduce>().decomposes([](const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                                             const std::string& reduce, bool include_self) {
    TORCH_CHECK(index.dim() <= 1, "index_reduce_(): Index is supposed to be a vector, but got dim: ", index.dim());
    TORCH_CHECK(self.scalar_type() == source.scalar_type(),
                "index_reduce_(): self and source expected to have the same scalar type");
    const int64_t along = at::maybe_wrap_dim(dim, self.dim());
    TORCH_CHECK(along < std::max<int64_t>(source.dim(), 1), "index_reduce_(): Indexing dim ", dim,
                " is out of bounds of the source tensor with dim ", source.dim());
    TORCH_CHECK(index.numel() == (source.dim() == 0 ? 1 : source.size(along)), "index_reduce_(): Number of indices (",
                index.numel(), ") should be equal to source.size(dim)");
    for (int64_t d = 0; d < std::max(self.dim(), source.dim()); ++d)
      TORCH_CHECK(d == along || (self.dim() == source.dim() && self.size(d) == source.size(d)),
                  "index_reduce_(): self and source should have the same sizes but for the indexed dimension, got ",
                  self.sizes(), " and ", source.sizes());
    std::vector<int64_t> ones(static_cast<size_t>(source.dim()), 1);
    if (!ones.empty()) ones[static_cast<size_t>(at::maybe_wrap_dim(dim, source.dim()))] = index.numel();
    return at::scatter_reduce(self, dim, index.reshape(ones).expand(source.sizes()), source, reduce, include_self);
  });

  // Which of the two puts what where is worked out for every element, whatever the shapes.
  demands<at::_ops::index_add>(demand_added_slices);
  demands<at::_ops::index_copy>(own_demands<at::meta::index_copy>);
  demands<at::_ops::index_reduce>(demand_slices<at::meta::index_reduce>);
  demands<at::_ops::index_fill_int_Scalar>(demand_filling);
  demands<at::_ops::index_fill_int_Tensor>(demand_filling);
}

}  // namespace tower::rules
