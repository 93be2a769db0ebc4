// Writing to any places: by several indices, by a number for each place, by a mask.
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "core/broadcast.h"
#include "core/wrapper.h"
#include "records/demands.h"
#include "records/dims.h"
#include "records/index_plan.h"
#include "records/op.h"
#include "records/overwriting.h"
#include "rules/registry.h"
#include "rules/repeated_places.h"
#include "rules/small_indexing.h"

namespace tower::rules {
namespace {

// ---- index_put ----

// Where the only index is a mask (its first dimension), else -1. If every place that it lets through gets the same, as
// in y[mask] = 7, where() does what index_put does, and how many places there are does not matter.
int64_t place_of_mask(c10::ArrayRef<Tensor> indices) {
  int64_t place = -1;
  for (size_t e = 0; e < indices.size(); ++e) {
    if (!indices[e].defined()) continue;
    if (place >= 0 || indices[e].scalar_type() != at::kBool) return -1;
    place = static_cast<int64_t>(e);
  }
  return place;
}

// Dimensions of size 1 for the mask to line up with those of what it masks, behind `batch` dimensions of its own.
Tensor spread_mask(Tensor mask, int64_t batch, int64_t place, int64_t rank) {
  while (mask.dim() < batch + rank - place) mask = mask.unsqueeze(-1);
  for (int64_t d = 0; d < place; ++d) mask = mask.unsqueeze(batch);
  return mask;
}

// The sizes of values that are the same for every place that a mask lets through, with a dimension of size 1 for each
// of the mask's; nothing if they differ from place to place. `others`: the number of dimensions behind the mask's.
std::optional<Ints> beside_mask(at::IntArrayRef values, int64_t mask_dims, int64_t others) {
  Ints sizes = values.vec();
  const int64_t places = static_cast<int64_t>(sizes.size()) - 1 - others;
  if (places < 0) return sizes;
  if (sizes[static_cast<size_t>(places)] != 1) return std::nullopt;
  const auto at = sizes.erase(sizes.begin() + places);
  sizes.insert(at, static_cast<size_t>(mask_dims), 1);
  return sizes;
}

// Puts one value by a mask that differs between examples, of this batch or of one further out. False, with nothing
// changed, where it is not so simple.
bool put_by_mask(VmapFrame& f, int64_t rank) {
  std::vector<Tensor> indices;
  for (const auto& element : f.stack[1].toListRef())
    indices.push_back(element.isTensor() ? element.toTensor() : Tensor());
  const int64_t place = place_of_mask(indices);
  if (place < 0) return false;
  Tensor mask = indices[static_cast<size_t>(place)];
  const int64_t batch = f.list_dims[1][static_cast<size_t>(place)];
  if (batch == VmapFrame::kUnbatched) {
    if (!as_wrapper(strip_constants(mask))) return false;
    mask = mask.unsqueeze(0);
  } else {
    mask = mask.movedim(batch, 0);
  }
  const Ints whole = logical_sizes(f, 0), of_mask = mask.sizes().slice(1).vec();
  // Sizes that do not match are index_put's to refuse, which where() would broadcast.
  if (place + of_mask.size() > whole.size() || !std::equal(of_mask.begin(), of_mask.end(), whole.begin() + place))
    return false;
  const int64_t mask_dims = mask.dim() - 1;
  const auto sizes = beside_mask(logical_sizes(f, 2), mask_dims, rank - place - mask_dims);
  if (!sizes || f.tensor(0).scalar_type() != f.tensor(2).scalar_type()) return false;
  mask = spread_mask(mask, 1, place, rank);
  f.to_front(0, true);
  f.to_front(2, false);
  const Tensor self = f.tensor(0);
  Tensor value = f.tensor(2).reshape(f.batched(2) ? with_batch(f, *sizes) : *sizes);
  if (f.batched(2))
    while (value.dim() < rank + 1) value = value.unsqueeze(1);
  f.result(f.stack[3].toBool() ? at::where(mask, self + value, self) : at::where(mask, value, self));
  return true;
}

void index_put_vmap(VmapFrame& f) {
  const int64_t rank = f.logical_dim(0);
  if (put_by_mask(f, rank)) return;
  const IndexPlan plan(f, rank);
  f.to_front(0, true);
  // The indexed dimensions right behind the batch: then the values are [batch, indices, others].
  Ints order{0};
  for (int64_t d : plan.dims) order.push_back(1 + d);
  for (int64_t d = 0; d < rank; ++d)
    if (std::find(plan.dims.begin(), plan.dims.end(), d) == plan.dims.end()) order.push_back(1 + d);
  const bool in_order = std::is_sorted(order.begin(), order.end());
  Tensor self = in_order ? f.tensor(0) : f.tensor(0).permute(order);

  std::vector<int64_t> index_sizes;
  for (const Tensor& i : plan.indices)
    index_sizes = at::infer_size(index_sizes, i.dim() > plan.rank ? i.sizes().slice(1) : i.sizes());
  // The values of one example in the shape of what they replace.
  const auto others = self.sizes().slice(1 + plan.dims.size());
  std::vector<int64_t> shape(others.begin(), others.begin() + plan.place());
  shape.insert(shape.end(), index_sizes.begin(), index_sizes.end());
  shape.insert(shape.end(), others.begin() + plan.place(), others.end());
  TORCH_CHECK(at::is_expandable_to(logical_sizes(f, 2), shape), "shape mismatch: value tensor of shape ",
              logical_sizes(f, 2), " cannot be broadcast to indexing result of shape ", shape);
  f.to_front(2, false);
  Tensor values = f.tensor(2);
  if (f.batched(2))
    while (values.dim() < static_cast<int64_t>(shape.size()) + 1) values = values.unsqueeze(1);
  values = values.expand(with_batch(f, shape));
  if (plan.place() > 0) {
    Ints from, to;
    for (int64_t d = 0; d < plan.rank; ++d) {
      from.push_back(1 + plan.place() + d);
      to.push_back(1 + d);
    }
    values = values.movedim(from, to);
  }
  // Places that are the same in all examples are written in all of them: no index chooses among the examples.
  Tensor examples;
  if (plan.any_batched)
    examples = at::arange(f.batch_size, at::TensorOptions().dtype(at::kLong).device(self.device()))
                   .view(with_batch(f, std::vector<int64_t>(static_cast<size_t>(plan.rank), 1)));
  std::vector<Tensor> indices = plan.indices;
  indices.insert(indices.begin(), examples);
  f.stack[0] = std::move(self);
  f.stack[1] = optional_list(indices);
  f.stack[2] = std::move(values);
  f.call();
  if (in_order) return;
  Ints back(order.size());
  for (size_t k = 0; k < order.size(); ++k) back[static_cast<size_t>(order[k])] = static_cast<int64_t>(k);
  f.result(f.stack[0].toTensor().permute(back));
}

// NOTE [Places that are written twice]: of values by index, masks among them.
Tensor of_last_values(const Tensor& gradient, const Tensor& base, const std::vector<Tensor>& indices) {
  Tensor place;  // among the dimensions that are indexed
  int64_t dim = 0, indexed = 0, first = 0, behind = 0;
  const auto add = [&](const Tensor& index) {
    if (indexed++ == 0) first = dim;
    const int64_t size = base.size(dim++);
    const Tensor at = at::where(index.lt(0), index + size, index).to(at::kLong);
    place = place.defined() ? place * size + at : at;
    behind = base.dim() - dim;
  };
  for (const Tensor& index : indices) {
    if (!index.defined()) ++dim;
    else if (index.scalar_type() != at::kBool && index.scalar_type() != at::kByte) add(index);
    else
      for (const Tensor& of_mask : index.nonzero().unbind(1)) add(of_mask);
  }
  // Dimensions that are indexed side by side are replaced where they are, others in front.
  const bool side_by_side = first + indexed + behind == base.dim();
  Ints shape = place.sizes().vec();
  shape.insert(shape.end(), static_cast<size_t>(side_by_side ? behind : base.dim() - indexed), 1);
  return of_those_that_stay(gradient, place.reshape({-1}), 0, shape);
}

Tensor gradient_of_values(const Tensor& ct, const std::vector<Tensor>& indices, const Meta& values, bool accumulates) {
  const int64_t place = place_of_mask(indices);
  if (place >= 0) {
    const Tensor& mask = indices[static_cast<size_t>(place)];
    if (const auto sizes = beside_mask(values.sizes, mask.dim(), ct.dim() - place - mask.dim()))
      return summed_to(at::where(spread_mask(mask, 0, place, ct.dim()), ct, 0), *sizes).reshape(values.sizes);
  }
  Tensor gradient = at::index(ct, optional_list(indices));
  const bool is_one = std::all_of(indices.begin(), indices.end(),
                                  [](const Tensor& index) { return !index.defined() || index.numel() <= 1; });
  if (place < 0 && !accumulates && !is_one) gradient = of_last_values(gradient, ct, indices);
  return summed_to(gradient, values.sizes);
}

bool all_in_range(const Tensor& base, const OptionalTensors& indices) {
  if (static_cast<int64_t>(indices.size()) > base.dim()) return false;
  for (size_t d = 0; d < indices.size(); ++d) {
    const std::optional<Tensor> index = indices.get(d);
    const int64_t size = base.size(static_cast<int64_t>(d));
    if (index && index->defined() && !in_range(*index, -size, size)) return false;
  }
  return true;
}

// Masks, and indices that may be wrong, are checked by reading what will be written.
bool write_by_index(const Tensor& base, const Stack& stack) {
  const Tensor& values = stack[2].toTensor();
  const auto indices = stack[1].to<OptionalTensors>();
  if (!goes_into(values, base)) return false;
  if (!all_in_range(base, indices) && !at::is_expandable_to(values.sizes(), at::index(base, indices).sizes()))
    return false;
  base.index_put_(indices, values, stack[3].toBool());
  return true;
}

void pull_back_by_index(VjpFrame& f) {
  if (!f.cotangents[0].defined()) return;
  std::vector<Tensor> indices;
  for (const auto& index : f.args[1].toListRef()) indices.push_back(index.isTensor() ? index.toTensor() : Tensor());
  if (f.wants(2)) f.give(2, gradient_of_values(f.cotangents[0], indices, f.meta(2), f.args[3].toBool()));
  if (!f.wants(0)) return;
  Tensor ct = taken_cotangent(f);
  if (f.args[3].toBool()) return f.give(0, std::move(ct));
  Stack call(f.args.begin(), f.args.end());
  call[2] = at::zeros({}, ct.options());
  call[0] = std::move(ct);
  f.give(0, call_overwriting(f.op, std::move(call)));
}

template <class... Op>
void puts_by_index() {
  (op<Op>()
       .small(small::index_put)
       .depends(Depends::by_indices)
       .vmap(index_put_vmap)
       .evaluated_by(evaluate_overwriting<Op, write_by_index>),
   ...);
  (overwrites(record_of(Op::name, Op::overload_name), 2, Keeps{Mask{1} << 1, Mask{1} << 2, 0}, pull_back_by_index),
   ...);
}

// ---- masks ----

// Where in the source each element that the mask lets through comes from.
Tensor places_in_source(const Tensor& mask) { return (mask.reshape(-1).to(at::kLong).cumsum(0) - 1).clamp_min(0); }

}  // namespace

void index_put() {
  puts_by_index<at::_ops::index_put, at::_ops::_unsafe_index_put, at::_ops::_index_put_impl>();
  op<at::_ops::put>().decomposes([](const Tensor& self, const Tensor& index, const Tensor& source, bool accumulate) {
    const int64_t n = self.numel();
    const Tensor flat = self.reshape(-1), from = source.reshape(-1), at = index.reshape(-1);
    const Tensor place = at::where(at.lt(0), at + n, at);
    return (accumulate ? flat.index_add(0, place, from) : flat.index_copy(0, place, from)).view(self.sizes());
  });
  op<at::_ops::masked_scatter>().decomposes([](const Tensor& self, const Tensor& mask, const Tensor& source) {
    const auto sizes = at::infer_size(self.sizes(), mask.sizes());
    const Tensor open = mask.expand(sizes);
    TORCH_CHECK(at::equal(open.sum().le(source.numel()), at::ones({}, open.options())),
                "masked_scatter: Number of elements of source < number of ones in mask");
    if (source.numel() == 0) return self.expand(sizes).clone();
    return at::where(open, source.reshape(-1).index_select(0, places_in_source(open)).view(sizes), self);
  });
  op<at::_ops::masked_scatter_backward>().decomposes([](const Tensor& grad, const Tensor& mask, const Ints& sizes) {
    const int64_t n = product(sizes);
    const Tensor open = mask.expand(grad.sizes());
    if (n == 0) return at::zeros(sizes, grad.options());
    return at::zeros({n}, grad.options())
        .index_add(0, places_in_source(open), grad.masked_fill(open.logical_not(), 0).reshape(-1))
        .view(sizes);
  });
  demands<at::_ops::put>([](const Example& e) {
    TORCH_CHECK(e.dtype(1) == at::kLong, "put_(): Expected a long tensor for index, but got ", e.dtype(1));
    demand_same_dtype(e, {0, 2});
    TORCH_CHECK(e.numel(1) == e.numel(2),
                "put_(): Expected source and index to have the same number of elements, but "
                "got source.numel() = ",
                e.numel(2), ", index.numel() = ", e.numel(1));
    TORCH_CHECK_INDEX(e.numel(0) != 0 || e.numel(1) == 0, "put_(): Tried to put elements into an empty tensor");
  });
  demands<at::_ops::masked_scatter>([](const Example& e) {
    TORCH_CHECK(e.dtype(0) == e.dtype(2), "masked_scatter: expected self and source to have same dtypes but got",
                e.dtype(0), " and ", e.dtype(2));
    TORCH_CHECK(e.dtype(1) == at::kBool, "masked_scatter_ only supports boolean masks, but got mask with dtype ",
                e.dtype(1));
  });
}

}  // namespace tower::rules
