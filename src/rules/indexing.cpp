// Reading by index: index, index_select, gather, take, masked_select.
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "core/broadcast.h"
#include "records/demands.h"
#include "records/dims.h"
#include "records/index_plan.h"
#include "records/op.h"
#include "records/overwriting.h"
#include "rules/look_ups.h"
#include "rules/registry.h"
#include "rules/small_indexing.h"
#include "tower/errors.h"

namespace tower::rules {
namespace {

Tensor range(int64_t n, const Tensor& like) {
  return at::arange(n, at::TensorOptions().dtype(at::kLong).device(like.device()));
}

// ---- index ----

void index_vmap(VmapFrame& f) {
  IndexPlan plan(f, f.logical_dim(0));
  f.to_front(0, false);
  const Tensor x = f.tensor(0);
  const bool x_batched = f.batched(0);
  const auto look_up = [&](const std::vector<Tensor>& indices) {
    f.stack[0] = x;
    f.stack[1] = optional_list(indices);
    f.call();
    return f.stack[0].toTensor();
  };
  std::vector<Tensor> by_dim(plan.dims.empty() ? 0 : static_cast<size_t>(plan.dims.back() + 1));
  for (size_t k = 0; k < plan.dims.size(); ++k) by_dim[static_cast<size_t>(plan.dims[k])] = plan.indices[k];
  // The batch dimension belongs to the indices alone: it comes out where they do.
  if (!x_batched) return f.result(look_up(by_dim), plan.place());
  if (!plan.any_batched) {
    by_dim.insert(by_dim.begin(), Tensor());
    return f.result(look_up(by_dim), plan.adjacent ? 0 : plan.rank);
  }
  // Every example reads from itself: the number of the example is one more index.
  by_dim.insert(by_dim.begin(), range(f.batch_size, x).view(with_batch(f, std::vector<int64_t>(plan.rank, 1))));
  Tensor y = look_up(by_dim);
  if (plan.place() > 0) {
    // The indices are no longer adjacent to the batch's, which put them in front of the dimensions before them.
    std::vector<int64_t> from, to;
    for (int64_t d = 0; d < plan.rank; ++d) {
      from.push_back(1 + d);
      to.push_back(1 + plan.place() + d);
    }
    y = y.movedim(from, to);
  }
  f.result(y);
}

Tensor index_transpose(Ct<0> ct, Shape x, const std::vector<Tensor>& indices) {
  return overwritten<at::_ops::index_put>(at::zeros(x.sizes, ct->options()), optional_list(indices), *ct, true);
}

// ---- one dimension ----

void index_select_vmap(VmapFrame& f) {
  const bool scalar = f.logical_dim(0) == 0;
  f.to_front(0, f.batched(1) && f.batched(0));
  const Tensor x = scalar ? f.tensor(0).unsqueeze(-1) : f.tensor(0);
  const int64_t dim = at::maybe_wrap_dim(f.stack[1].toInt(), std::max<int64_t>(f.logical_dim(0), 1));
  if (f.in_dims[2] == VmapFrame::kUnbatched) {
    const Tensor y = at::index_select(x, dim + 1, f.tensor(2));
    return f.result(scalar ? y.squeeze(-1) : y);
  }
  f.to_front(2, false);
  Tensor index = f.tensor(2);
  if (index.dim() == 1) index = index.unsqueeze(1);
  TORCH_CHECK_INDEX(index.dim() == 2, "index_select(): Index is supposed to be a vector");
  const int64_t k = index.size(1);
  Tensor y;
  int64_t batch = 0;
  if (!f.batched(0)) {
    auto sizes = x.sizes().vec();
    sizes[static_cast<size_t>(dim)] = k;
    sizes.insert(sizes.begin() + dim, f.batch_size);
    y = at::index_select(x, dim, index.reshape(-1)).view(sizes);
    batch = dim;
  } else {
    auto sizes = x.sizes().vec();
    sizes[static_cast<size_t>(dim) + 1] = k;
    std::vector<int64_t> ones(sizes.size(), 1);
    ones[0] = f.batch_size;
    ones[static_cast<size_t>(dim) + 1] = k;
    y = at::gather(x, dim + 1, index.view(ones).expand(sizes));
  }
  f.result(scalar ? y.squeeze(-1) : y, batch);
}

void gather_vmap(VmapFrame& f) {
  const int64_t rank = std::max<int64_t>(f.logical_dim(0), 1);
  const bool scalar = f.logical_dim(2) == 0;
  shift_dims(f, {1}, rank);
  for (size_t arg : {0, 2})
    if (f.tensor(arg).dim() == 1) f.stack[arg] = f.tensor(arg).unsqueeze(1);
  f.call();
  if (scalar) f.result(f.stack[0].toTensor().squeeze(1));
}

// ---- everything ----

// Counts negative indices from the end.
Tensor wrapped(const Tensor& index, int64_t n) { return at::where(index.lt(0), index + n, index); }

void take_vmap(VmapFrame& f) {
  if (!f.batched(0)) {
    f.out_dims.assign(1, f.in_dims[1]);
    return f.call();
  }
  const auto sizes = logical_sizes(f, 1);
  const Tensor x = batch_of_rows(f, 0);
  const int64_t n = x.size(1);
  TORCH_CHECK_INDEX(n > 0 || product(sizes) == 0, "take(): tried to take from an empty tensor");
  if (f.batched(1)) return f.result(in_shape(x.gather(1, wrapped(batch_of_rows(f, 1), n)), with_batch(f, sizes)));
  f.result(in_shape(x.index_select(1, wrapped(f.tensor(1).reshape(-1), n)), with_batch(f, sizes)));
}

// ---- a part that begins at a number in a tensor ----

Tensor places_of_part(const Tensor& start, int64_t size, int64_t length) {
  return wrapped(start, size).unsqueeze(-1) + at::arange(length, start.options());
}

// Self, dim, start, length. Where each example has a start of its own, the part is read by index.
void narrow_vmap(VmapFrame& f) {
  if (!f.batched(2)) {
    f.stack[1] = physical_dim(f, 0, f.stack[1].toInt());
    f.out_dims.assign(1, f.in_dims[0]);
    return f.call();
  }
  const int64_t dim = at::maybe_wrap_dim(f.stack[1].toInt(), f.logical_dim(0)) + 1;
  TORCH_CHECK(f.logical_dim(2) == 0 && c10::isIntegralType(f.tensor(2).scalar_type(), /*includeBool=*/false),
              "start must be an 0-dim integral Tensor.");
  f.to_front(0, true);
  const Tensor x = f.tensor(0), places = places_of_part(f.tensor(2).to(at::kLong), x.size(dim), f.stack[3].toInt());
  Ints shape(static_cast<size_t>(x.dim()), 1), part = x.sizes().vec();
  shape[0] = f.batch_size;
  shape[static_cast<size_t>(dim)] = part[static_cast<size_t>(dim)] = places.size(1);
  f.result(x.gather(dim, places.view(shape).expand(part)));
}

// ---- repeats ----

// With a size given, the examples' results are alike in shape: the element at a position belongs to the first entry
// whose running total is beyond it.
void repeat_interleave_vmap(VmapFrame& f) {
  if (f.stack[1].isNone())
    throw UnsupportedError(f.level.describe() + ": " + f.op.name() +
                           " is not supported: the size of its result depends on the repeats, which differ between "
                           "examples. Give output_size, pass the repeats as a number, or from outside of the mapped "
                           "function.");
  TORCH_CHECK(f.logical_dim(0) == 1, "repeat_interleave only accept 1D vector as repeat");
  f.to_front(0, false);
  const Tensor repeats = f.tensor(0);
  TORCH_CHECK(at::isIntegralType(repeats.scalar_type(), /*includeBool=*/false),
              "repeat_interleave: repeats must be integers, not ", repeats.scalar_type());
  // Unlike a number read out of a batch, equality may be asked for.
  const auto everywhere = [](const Tensor& holds) { return at::equal(holds, at::ones_like(holds)); };
  TORCH_CHECK(everywhere(repeats.ge(0)), "repeats can not be negative");
  const int64_t size = f.stack[1].toInt();
  const Tensor ends = repeats.cumsum(1);
  TORCH_CHECK(everywhere(repeats.sum(1).eq(size)),
              "repeat_interleave: the repeats of each example must add up to output_size, ", size);
  const Tensor positions = range(size, repeats).expand({f.batch_size, size});
  f.result(
      at::searchsorted(ends, positions.contiguous(), /*out_int32=*/false, /*right=*/true).to(repeats.scalar_type()));
}

// ---- masks ----

void masked_select_vmap(VmapFrame& f) {
  if (f.batched(1))
    throw UnsupportedError(
        f.level.describe() +
        ": aten::masked_select with a mask that differs between examples: how many elements it picks "
        "depends on the data. Use where() or masked_fill(), whose results have one shape.");
  const auto sizes = at::infer_size(logical_sizes(f, 0), f.tensor(1).sizes());
  const int64_t missing = static_cast<int64_t>(sizes.size()) - f.logical_dim(0);
  f.to_front(0, false);
  Tensor x = f.tensor(0);
  for (int64_t d = 0; d < missing; ++d) x = x.unsqueeze(1);
  const Tensor rows = in_shape(x.expand(with_batch(f, sizes)), {f.batch_size, product(sizes)});
  const Tensor places = at::nonzero(f.tensor(1).expand(sizes).reshape(-1)).select(1, 0);
  f.result(rows.index_select(1, places));
}

// Indices that a mask lets point anywhere, brought into range.
OptionalTensors clamped(const std::vector<Tensor>& indices, at::IntArrayRef sizes) {
  std::vector<Tensor> result = indices;
  for (size_t d = 0; d < result.size(); ++d)
    if (result[d].defined()) result[d] = result[d].clamp(-sizes[d], sizes[d] - 1);
  return optional_list(result);
}

// Every example may have as many as the others: then the results have one shape.
void nonzero_vmap(VmapFrame& f) {
  const Tensor counts = batch_of_rows(f, 0).ne(0).sum(1);
  f.to_front(0, false);
  const Tensor found = at::nonzero(f.tensor(0));
  const int64_t each = f.batch_size > 0 ? found.size(0) / f.batch_size : 0;
  if (!at::equal(counts, at::full_like(counts, each)))
    throw UnsupportedError(
        f.level.describe() + ": " + f.op.name() +
        ": how many elements it finds depends on the data and differs between the examples, so that their results have "
        "different shapes. Use where() with three arguments, whose result has one shape, or call it outside of the "
        "mapped function.");
  f.result(found.narrow(1, 1, found.size(1) - 1).view({f.batch_size, each, found.size(1) - 1}));
}

void demand_integer_indices(const Example& e) {
  for (const Meta& index : e.list(2))
    TORCH_CHECK(index.dtype == at::kLong || index.dtype == at::kInt || index.dtype == at::ScalarType::Undefined,
                e.op().name(), " found unexpected index type ", index.dtype);
}

// A mask is as many indices as it has true places.
bool looks_up_by_mask(c10::ArrayRef<IValue> args) {
  const auto indices = args[1].toListRef();
  return std::any_of(indices.begin(), indices.end(), [](const IValue& index) {
    if (!index.isTensor() || !index.toTensor().defined()) return false;
    const at::ScalarType dtype = index.toTensor().scalar_type();
    return dtype == at::kBool || dtype == at::kByte;
  });
}

}  // namespace

void indexing() {
  for (const char* name : {"aten::index_select", "aten::gather", "aten::take"})
    compiler::set_looks_up(record_of(name, ""));
  compiler::set_looks_up(record_of("aten::index", "Tensor"));
  compiler::set_look_up_rule(record_of("aten::index_select", ""), look_ups::index_select);
  compiler::set_look_up_rule(record_of("aten::gather", ""), look_ups::gather);
  compiler::set_look_up_rule(record_of("aten::take", ""), look_ups::take);
  for (const char* name : {"aten::index", "aten::_unsafe_index"})
    compiler::set_look_up_rule(record_of(name, "Tensor"), look_ups::index);
  op<at::_ops::index_Tensor>()
      .small(small::index)
      .depends(Depends::on_moved)
      .vmap(index_vmap)
      .linear<0>(index_transpose)
      .shape_by_values(looks_up_by_mask);
  op<at::_ops::_unsafe_index_Tensor>()
      .small(small::index)
      .depends(Depends::on_moved)
      .vmap(index_vmap)
      .linear<0>(index_transpose);

  op<at::_ops::index_select>()
      .small(small::index_select)
      .depends(Depends::on_moved)
      .vmap(index_select_vmap)
      .linear<0>([](Ct<0> ct, Shape x, int64_t dim, const Tensor& index) {
        return overwritten<at::_ops::index_add>(at::zeros(x.sizes, ct->options()), dim, index, *ct, 1);
      });
  op<at::_ops::gather>()
      .small(small::gather)
      .depends(Depends::on_moved)
      .vmap(gather_vmap)
      .linear<0>([](Ct<0> ct, Shape x, int64_t dim, const Tensor& index) {
        return overwritten<at::_ops::scatter_add>(at::zeros(x.sizes, ct->options()), dim, index, *ct);
      });
  op<at::_ops::take>()
      .small(small::take)
      .depends(Depends::on_moved)
      .vmap(take_vmap)
      .linear<0>([](Ct<0> ct, Shape x, const Tensor& index) {
        return at::put(at::zeros(x.sizes, ct->options()), index, *ct, true);
      });

  op<at::_ops::masked_select>()
      .depends(Depends::on_moved)
      .vmap(masked_select_vmap)
      .linear<0>([](Ct<0> ct, Shape x, const Tensor& mask) {
        const auto sizes = at::infer_size(x.sizes, mask.sizes());
        const Tensor all = at::zeros(sizes, ct->options());
        return summed_to(at::masked_scatter(all, mask, *ct), x.sizes);
      });
  op<at::_ops::_unsafe_masked_index>().decomposes(
      [](const Tensor& x, const Tensor& mask, const std::vector<Tensor>& indices, const Scalar& fill) {
        if (x.numel() == 0) return x.new_full(mask.sizes(), fill);
        return at::index(x, clamped(indices, x.sizes())).masked_fill(mask.logical_not(), fill);
      });
  op<at::_ops::_unsafe_masked_index_put_accumulate>().decomposes(
      [](const Tensor& x, const Tensor& mask, const std::vector<Tensor>& indices, const Tensor& values) {
        if (x.numel() == 0) return x.clone();
        return at::index_put(x, clamped(indices, x.sizes()), values.masked_fill(mask.logical_not(), 0), true);
      });

  op<at::_ops::nonzero>().vmap(nonzero_vmap).no_derivative();
  op<at::_ops::narrow_Tensor>()
      .vmap(narrow_vmap)
      .vjp<0>([](Ct<0> ct, Shape x, int64_t dim, const Tensor& start, int64_t length) {
        const auto size = x.sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, ct->dim()))];
        return at::zeros(x.sizes, ct->options()).index_copy(dim, places_of_part(start, size, length), *ct);
      })
      .jvp<0>([](Tan<0> t, Skip, int64_t dim, const Tensor& start, int64_t length) {
        return at::narrow(*t, dim, start, length);
      })
      .inverse([](const Tensor& base, const Tensor& written, c10::ArrayRef<IValue> args, size_t) {
        const int64_t dim = args[1].toInt();
        return base.index_copy(dim, places_of_part(args[2].toTensor(), base.size(dim), args[3].toInt()), written);
      });
  // Its shape is given, so it can be worked out without reading the data: true places first, in their order.
  op<at::_ops::nonzero_static>().no_derivative().decomposes([](const Tensor& x, int64_t size, int64_t fill) {
    const Tensor flat = x.ne(0).reshape(-1);
    const int64_t n = flat.size(0);
    Tensor place = std::get<1>(flat.to(at::kByte).sort(/*stable=*/true, 0, /*descending=*/true));
    place = n < size ? at::constant_pad_nd(place, {0, size - n}) : place.narrow(0, 0, size);
    const Tensor found = range(size, x).lt(flat.sum());
    std::vector<Tensor> coordinates(static_cast<size_t>(x.dim()));
    for (int64_t d = x.dim(); d-- > 0;) {
      const int64_t extent = std::max<int64_t>(x.size(d), 1);
      coordinates[static_cast<size_t>(d)] = at::where(found, place.remainder(extent), fill);
      place = place.div(extent, "floor");
    }
    return coordinates.empty() ? at::empty({size, 0}, place.options()) : at::stack(coordinates, 1);
  });
  op<at::_ops::one_hot>().shape_by_values([](c10::ArrayRef<IValue> args) { return args[1].toInt() < 0; });
  op<at::_ops::one_hot>().no_derivative().decomposes([](const Tensor& x, int64_t classes) {
    // Without a number of classes it is read out of the data.
    const int64_t n = classes >= 0 ? classes : x.max().item<int64_t>() + 1;
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.push_back(n);
    return at::zeros(sizes, x.options()).scatter(-1, x.unsqueeze(-1), 1);
  });

  // ---- membership ----
  op<at::_ops::isin_Tensor_Tensor>().no_derivative().decomposes(
      [](const Tensor& x, const Tensor& among, Skip, bool invert) {
        const Tensor found = x.unsqueeze(-1).eq(among.reshape(-1)).any(-1);
        return invert ? found.logical_not() : found;
      });
  op<at::_ops::isin_Tensor_Scalar>().no_derivative().decomposes(
      [](const Tensor& x, const Scalar& value, Skip, bool invert) { return invert ? x.ne(value) : x.eq(value); });
  op<at::_ops::isin_Scalar_Tensor>().no_derivative().decomposes(
      [](const Scalar& value, const Tensor& among, Skip, bool invert) {
        return invert ? among.ne(value).all() : among.eq(value).any();
      });
  op<at::_ops::repeat_interleave_Tensor>()
      .vmap(repeat_interleave_vmap)
      .no_derivative()
      .shape_by_values([](c10::ArrayRef<IValue> args) { return args[1].isNone(); });
  demands<at::_ops::index_select>([](const Example& e) {
    TORCH_CHECK(e.dim(0) > 0 || e.numel(2) == 1, "index_select(): Index to scalar can have only 1 value, got ",
                e.numel(2), " value(s)");
  });
  demands<at::_ops::take>([](const Example& e) {
    TORCH_CHECK(e.dtype(1) == at::kLong, "take(): Expected a long tensor for index, but got ", e.dtype(1));
  });
  demands<at::_ops::masked_select>([](const Example& e) {
    TORCH_CHECK(e.dtype(1) == at::kBool, "masked_select: expected BoolTensor for mask, but got ", e.dtype(1));
  });
  demands<at::_ops::_unsafe_masked_index>(demand_integer_indices);
  demands<at::_ops::_unsafe_masked_index_put_accumulate>(demand_integer_indices);
  demands<at::_ops::isin_Tensor_Tensor>([](const Example& e) {
    for (const size_t i : {0, 1})
      TORCH_CHECK(e.dtype(i) != at::kBool && !e.is_complex(i),
                  "Unsupported input type encountered for isin(): ", e.dtype(i));
  });
}

}  // namespace tower::rules
