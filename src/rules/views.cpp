// Views: results that share memory with their argument, with how a write through one reaches its base. Nearly all are
// served under vmap by the same view of the whole value, the batch dimension staying where it is.
#include "frontend/views.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/InferSize.h>
#include <ATen/Operators.h>

#include <limits>

#include "core/broadcast.h"
#include "records/dims.h"
#include "records/op.h"
#include "rules/registry.h"
#include "tower/errors.h"

namespace tower::rules {
namespace {

using Args = c10::ArrayRef<IValue>;
using MaybeInt = std::optional<int64_t>;

// ---- batching ----

// The batch dimension of the results is `dim`.
void finish(VmapFrame& f, int64_t dim) {
  f.call();
  f.out_dims.assign(flatten_outputs(f.stack).size(), dim);
}

// The result is the argument itself.
void same_vmap(VmapFrame& f) { finish(f, f.in_dims[0]); }

// One dimension is named by argument `arg`, and stays.
VmapRule at_dim(size_t arg) {
  return [arg](VmapFrame& f) {
    f.stack[arg] = physical_dim(f, 0, f.stack[arg].toInt());
    finish(f, f.in_dims[0]);
  };
}

// One dimension is named by argument `arg`, and goes away.
VmapRule without_dim(size_t arg) {
  return [arg](VmapFrame& f) {
    const int64_t dim = physical_dim(f, 0, f.stack[arg].toInt());
    f.stack[arg] = dim;
    finish(f, f.in_dims[0] - (dim < f.in_dims[0]));
  };
}

// A view is another tensor than its base, also where it has the same shape.
Tensor viewed(const Tensor& t, at::IntArrayRef sizes) {
  return t.sizes().equals(sizes) ? t.alias() : in_shape(t, sizes);
}

void view_vmap(VmapFrame& f) {
  const auto sizes = at::infer_size(f.stack[1].toIntVector(), product(logical_sizes(f, 0)));
  f.to_front(0, false);
  f.result(viewed(f.tensor(0), with_batch(f, sizes)));
}

void view_dtype_vmap(VmapFrame& f) {
  const auto type = f.stack[1].toScalarType();
  TORCH_CHECK(f.logical_dim(0) > 0 || c10::elementSize(type) == c10::elementSize(f.tensor(0).scalar_type()),
              "self.dim() cannot be 0 to view ", f.tensor(0).scalar_type(), " as ", type, " (different element sizes)");
  f.to_front(0, false);
  finish(f, 0);
}

void expand_vmap(VmapFrame& f) {
  const auto sizes = f.stack[1].toIntVector();
  const int64_t missing = static_cast<int64_t>(sizes.size()) - f.logical_dim(0);
  for (int64_t d = 0; d < missing; ++d)
    TORCH_CHECK(sizes[static_cast<size_t>(d)] >= 0, "expand: a new leading dimension cannot have size -1");
  f.to_front(0, false);
  Tensor t = f.tensor(0);
  for (int64_t d = 0; d < missing; ++d) t = t.unsqueeze(1);
  f.stack[0] = t;
  f.stack[1] = with_batch(f, sizes);
  finish(f, 0);
}

void transpose_vmap(VmapFrame& f) {
  const int64_t a = physical_dim(f, 0, f.stack[1].toInt()), b = physical_dim(f, 0, f.stack[2].toInt());
  if (a == b) return f.result(f.tensor(0).alias(), f.in_dims[0]);
  f.stack[1] = a;
  f.stack[2] = b;
  finish(f, f.in_dims[0]);
}

void t_vmap(VmapFrame& f) {
  TORCH_CHECK(f.logical_dim(0) <= 2, "t() expects a tensor with <= 2 dimensions, but self is ", f.logical_dim(0), "D");
  const int64_t batch = f.in_dims[0];
  f.result(f.logical_dim(0) < 2 ? f.tensor(0).alias() : f.tensor(0).transpose(past(0, batch), past(1, batch)), batch);
}

void permute_vmap(VmapFrame& f) {
  std::vector<int64_t> order{f.in_dims[0]};
  for (int64_t d : f.stack[1].toIntVector()) order.push_back(physical_dim(f, 0, d));
  f.stack[1] = order;
  finish(f, 0);
}

void unsqueeze_vmap(VmapFrame& f) {
  const int64_t dim = past(at::maybe_wrap_dim(f.stack[1].toInt(), f.logical_dim(0) + 1), f.in_dims[0]);
  f.stack[1] = dim;
  finish(f, f.in_dims[0] + (dim <= f.in_dims[0]));
}

// Squeezes the given dimensions of the example where they have size one.
void squeeze_dims_of(VmapFrame& f, const Ints& dims) {
  const Tensor t = f.tensor(0);
  Ints gone;
  int64_t batch = f.in_dims[0];
  for (int64_t d : dims) {
    const int64_t dim = at::maybe_wrap_dim(d, f.logical_dim(0));
    if (f.logical_dim(0) == 0 || t.size(past(dim, f.in_dims[0])) != 1) continue;
    gone.push_back(past(dim, f.in_dims[0]));
    batch -= gone.back() < f.in_dims[0];
  }
  f.result(gone.empty() ? t.alias() : t.squeeze(gone), batch);
}
void squeeze_vmap(VmapFrame& f) {
  Ints all;
  for (int64_t d = 0; d < f.logical_dim(0); ++d) all.push_back(d);
  squeeze_dims_of(f, all);
}
void squeeze_dim_vmap(VmapFrame& f) { squeeze_dims_of(f, {f.stack[1].toInt()}); }
void squeeze_each_vmap(VmapFrame& f) { squeeze_dims_of(f, f.stack[1].toIntVector()); }

void diagonal_vmap(VmapFrame& f) {
  const int64_t a = physical_dim(f, 0, f.stack[2].toInt()), b = physical_dim(f, 0, f.stack[3].toInt());
  f.stack[2] = a;
  f.stack[3] = b;
  finish(f, f.in_dims[0] - (a < f.in_dims[0]) - (b < f.in_dims[0]));
}

void unfold_vmap(VmapFrame& f) {
  if (f.logical_dim(0) > 0) return at_dim(1)(f);
  at::maybe_wrap_dim(f.stack[1].toInt(), f.logical_dim(0));  // throws unless it means the only place
  f.to_front(0, false);
  f.result(f.tensor(0).unsqueeze(1).unfold(1, f.stack[2].toInt(), f.stack[3].toInt()).select(1, 0));
}

// ---- how a write reaches the base ----

Tensor reshaped_back(const Tensor& base, const Tensor& written, Args, size_t) {
  return in_shape(written, base.sizes());
}
Tensor written_itself(const Tensor&, const Tensor& written, Args, size_t) { return written; }

Tensor transposed_back(const Tensor&, const Tensor& written, Args args, size_t) {
  return written.transpose(args[1].toInt(), args[2].toInt());
}

Ints inverse_permutation(const Ints& order) {
  Ints inverse(order.size());
  const auto rank = static_cast<int64_t>(order.size());
  for (int64_t k = 0; k < rank; ++k)
    inverse[static_cast<size_t>(at::maybe_wrap_dim(order[static_cast<size_t>(k)], rank))] = k;
  return inverse;
}

// Whether a dimension of size one, or none, is shown several times.
bool expands(const Tensor& base, Args args) {
  const auto sizes = args[1].toIntVector();
  const auto missing = static_cast<int64_t>(sizes.size()) - base.dim();
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
    const int64_t now = sizes[static_cast<size_t>(d)];
    if (now != -1 && now != (d < missing ? 1 : base.size(d - missing))) return true;
  }
  return false;
}

bool windows_overlap(const Tensor& base, Args args) {
  if (base.dim() == 0) return false;
  const int64_t size = args[2].toInt(), step = args[3].toInt();
  return size > step && base.size(args[1].toInt()) - size >= step;
}
Tensor unfolded_back(const Tensor& base, const Tensor& written, Args args, size_t) {
  const int64_t size = args[2].toInt(), step = args[3].toInt();
  if (base.dim() == 0) return size == 0 ? base : in_shape(written, base.sizes());
  const int64_t dim = at::maybe_wrap_dim(args[1].toInt(), base.dim()), windows = written.size(dim);
  const auto options = at::TensorOptions().dtype(at::kLong).device(base.device());
  const Tensor places = at::arange(windows, options).mul(step).unsqueeze(1) + at::arange(size, options);
  return at::index_copy(base, dim, places.flatten(), written.movedim(-1, dim + 1).flatten(dim, dim + 1));
}

// The start of part `k` of a split, and its end.
Tensor write_slice(const Tensor& base, const Tensor& written, int64_t dim, int64_t start) {
  return at::slice_scatter(base, written, dim, start, start + written.size(dim));
}

// ---- what is shown whole ----

constexpr int64_t kNotWhole = -1;

int64_t wrapped(const IValue& dim, const Sizes& base) {
  return at::maybe_wrap_dim(dim.toInt(), static_cast<int64_t>(base.size()));
}

Sizes dims_in_order(size_t rank) {
  Sizes dims;
  for (size_t d = 0; d < rank; ++d) dims.push_back(static_cast<int64_t>(d));
  return dims;
}
Sizes keeps_all(const Sizes& base, Args, size_t) { return dims_in_order(base.size()); }

using KeepsDims = std::function<Sizes(const Sizes& base, Args args, size_t out)>;
// A part of the dimension that argument `arg` names.
KeepsDims keeps_all_but(size_t arg) {
  return [arg](const Sizes& base, Args args, size_t) {
    Sizes dims = dims_in_order(base.size());
    if (!dims.empty()) dims[static_cast<size_t>(wrapped(args[arg], base))] = kNotWhole;
    return dims;
  };
}
// Without the dimension that argument `arg` names.
KeepsDims keeps_others(size_t arg) {
  return [arg](const Sizes& base, Args args, size_t) {
    Sizes dims = dims_in_order(base.size());
    dims.erase(dims.begin() + wrapped(args[arg], base));
    return dims;
  };
}

Sizes slice_keeps(const Sizes& base, Args args, size_t out) {
  constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
  if (args[2].to<MaybeInt>().value_or(0) == 0 && args[3].to<MaybeInt>().value_or(kEnd) == kEnd && args[4].toInt() == 1)
    return keeps_all(base, args, out);
  return keeps_all_but(1)(base, args, out);
}

// From either end, as far as sizes are the same.
Sizes view_keeps(const Sizes& base, Args args, size_t) {
  const auto sizes = at::infer_size(args[1].toIntVector(), product(base));
  Sizes dims(sizes.size(), kNotWhole);
  const size_t rank = std::min(sizes.size(), base.size());
  size_t front = 0;
  for (; front < rank && sizes[front] == base[front]; ++front) dims[front] = static_cast<int64_t>(front);
  for (size_t d = 1; d + front <= rank && sizes[sizes.size() - d] == base[base.size() - d]; ++d)
    dims[sizes.size() - d] = static_cast<int64_t>(base.size() - d);
  return dims;
}

Sizes expand_keeps(const Sizes& base, Args args, size_t) {
  const auto sizes = args[1].toIntVector();
  const size_t missing = sizes.size() - base.size();
  Sizes dims(sizes.size(), kNotWhole);
  for (size_t d = 0; d < base.size(); ++d)
    if (const int64_t size = sizes[missing + d]; size == -1 || size == base[d])
      dims[missing + d] = static_cast<int64_t>(d);
  return dims;
}

// What has one element goes, and so nothing is there whatever its size.
Sizes squeeze_keeps(const Sizes& base, const Ints& squeezed) {
  Sizes dims;
  for (size_t d = 0; d < base.size(); ++d) {
    const bool named = std::any_of(squeezed.begin(), squeezed.end(), [&](int64_t s) {
      return at::maybe_wrap_dim(s, static_cast<int64_t>(base.size())) == static_cast<int64_t>(d);
    });
    if (!named || base[d] != 1) dims.push_back(named ? kNotWhole : static_cast<int64_t>(d));
  }
  return dims;
}

Sizes unsqueeze_keeps(const Sizes& base, Args args, size_t) {
  Sizes dims = dims_in_order(base.size());
  dims.insert(dims.begin() + at::maybe_wrap_dim(args[1].toInt(), static_cast<int64_t>(base.size()) + 1), kNotWhole);
  return dims;
}

Sizes transpose_keeps(const Sizes& base, Args args, size_t) {
  Sizes dims = dims_in_order(base.size());
  if (!dims.empty())
    std::swap(dims[static_cast<size_t>(wrapped(args[1], base))], dims[static_cast<size_t>(wrapped(args[2], base))]);
  return dims;
}

Sizes permute_keeps(const Sizes& base, Args args, size_t) {
  Sizes dims;
  for (const int64_t d : args[1].toIntVector())
    dims.push_back(at::maybe_wrap_dim(d, static_cast<int64_t>(base.size())));
  return dims;
}

// The diagonal is the last dimension.
Sizes diagonal_keeps(const Sizes& base, Args args, size_t) {
  Sizes dims;
  for (int64_t d = 0; d < static_cast<int64_t>(base.size()); ++d)
    if (d != wrapped(args[2], base) && d != wrapped(args[3], base)) dims.push_back(d);
  dims.push_back(kNotWhole);
  return dims;
}

// A window's elements are the last dimension.
Sizes unfold_keeps(const Sizes& base, Args args, size_t out) {
  Sizes dims = keeps_all_but(1)(base, args, out);
  dims.push_back(kNotWhole);
  return dims;
}

// ---- derivatives ----

std::vector<int64_t> resized(at::IntArrayRef sizes, int64_t dim, int64_t size) {
  std::vector<int64_t> result = sizes.vec();
  result[static_cast<size_t>(dim)] = size;
  return result;
}

Tensor cat_parts(Cts cts, const Meta& x, const Ints& parts, int64_t dim) {
  const int64_t d = at::maybe_wrap_dim(dim, x.dim());
  std::vector<std::vector<int64_t>> sizes;
  for (int64_t part : parts) sizes.push_back(resized(x.sizes, d, part));
  return at::cat(filled(cts.tensors, sizes), d);
}

// What the parts of a split into equal pieces measure.
Tensor cat_equal_parts(Cts cts, Shape x, int64_t split_size, int64_t dim) {
  int64_t left = x.sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))];
  Ints parts;
  for (size_t k = 0; k < cts.size(); ++k) {
    parts.push_back(std::min(split_size, left));
    left -= parts.back();
  }
  return cat_parts(cts, x, parts, dim);
}

Tensor stack_parts(Cts cts, Shape x, int64_t dim) {
  const int64_t d = at::maybe_wrap_dim(dim, x.dim());
  std::vector<int64_t> part(x.sizes.begin(), x.sizes.end());
  part.erase(part.begin() + d);
  return at::stack(filled(cts.tensors, std::vector<std::vector<int64_t>>(cts.size(), part)), d);
}

Tensor back_to_shape(Ct<0> ct, Shape x) { return in_shape(*ct, x.sizes); }
// A tangent may lie in memory in another order than its primal: no view of it need exist.
// The sizes as they were asked for: a shape of the output would keep the output, which is all of the memory it shows.
Tensor to_shape(Tan<0> dx, Skip, const Ints& sizes) { return viewed(*dx, at::infer_size(sizes, dx->numel())); }
Tensor as_it_is(Ct<0> ct) { return *ct; }

int64_t end_of(const MaybeInt& end) { return end.value_or(std::numeric_limits<int64_t>::max()); }

constexpr auto kRows = at::MemoryFormat::Contiguous;

std::vector<Tensor> cloned(std::vector<Tensor> views) {
  for (Tensor& v : views) v = v.clone(kRows);
  return views;
}

}  // namespace

void views() {
  // ---- shapes ----
  op<at::_ops::view>()
      .moves(Moves::in_order)
      .vmap(view_vmap)
      .vjp<0>(back_to_shape)
      .jvp<0>(to_shape)
      .inverse(reshaped_back)
      .keeps_dims(view_keeps);
  op<at::_ops::_unsafe_view>()
      .moves(Moves::in_order)
      .vmap(view_vmap)
      .vjp<0>(back_to_shape)
      .jvp<0>(to_shape)
      .keeps_dims(view_keeps);
  // The strides that it is given belong to the memory of one value: nothing may be read by them elsewhere.
  op<at::_ops::_reshape_alias>()
      .moves(Moves::in_order)
      .vmap(view_vmap)
      .decomposes([](const Tensor& x, const Ints& sizes) { return viewed(x, sizes); })
      .inverse(reshaped_back);
  op<at::_ops::view_dtype>()
      .vmap(view_dtype_vmap)
      .no_derivative()
      .inverse([](const Tensor& base, const Tensor& written, Args, size_t) { return written.view(base.scalar_type()); })
      .keeps_dims([](const Sizes& base, Args, size_t) {
        Sizes dims = dims_in_order(base.size());
        if (!dims.empty()) dims.back() = kNotWhole;
        return dims;
      });
  op<at::_ops::expand>()
      .moves(Moves::broadcast)
      .vmap(expand_vmap)
      .linear<0>([](Ct<0> ct, Shape x) { return summed_to(*ct, x.sizes); })
      .inverse(reshaped_back)
      .repeats(expands)
      .keeps_dims(expand_keeps);
  op<at::_ops::squeeze>()
      .moves(Moves::in_order)
      .vmap(squeeze_vmap)
      .linear<0>(back_to_shape)
      .inverse(reshaped_back)
      .keeps_dims([](const Sizes& base, Args, size_t) {
        const Sizes all = dims_in_order(base.size());
        return squeeze_keeps(base, Ints(all.begin(), all.end()));
      });
  op<at::_ops::squeeze_dim>()
      .moves(Moves::in_order)
      .vmap(squeeze_dim_vmap)
      .linear<0>(back_to_shape)
      .inverse(reshaped_back)
      .keeps_dims([](const Sizes& base, Args args, size_t) { return squeeze_keeps(base, {args[1].toInt()}); });
  op<at::_ops::squeeze_dims>()
      .moves(Moves::in_order)
      .vmap(squeeze_each_vmap)
      .linear<0>(back_to_shape)
      .inverse(reshaped_back)
      .keeps_dims([](const Sizes& base, Args args, size_t) { return squeeze_keeps(base, args[1].toIntVector()); });
  op<at::_ops::unsqueeze>()
      .moves(Moves::in_order)
      .vmap(unsqueeze_vmap)
      .linear<0>([](Ct<0> ct, Skip, int64_t dim) { return ct->squeeze(dim); })
      .inverse(reshaped_back)
      .keeps_dims(unsqueeze_keeps);

  // ---- orders of dimensions ----
  op<at::_ops::transpose_int>()
      .moves(Moves::elements)
      .vmap(transpose_vmap)
      .linear<0>([](Ct<0> ct, Skip, int64_t a, int64_t b) { return ct->transpose(a, b); })
      .inverse(transposed_back)
      .keeps_dims(transpose_keeps);
  op<at::_ops::t>()
      .moves(Moves::elements)
      .vmap(t_vmap)
      .linear<0>([](Ct<0> ct) { return ct->t(); })
      .inverse([](const Tensor&, const Tensor& written, Args, size_t) { return written.t(); })
      .keeps_dims([](const Sizes& base, Args, size_t) {
        const Sizes dims = dims_in_order(base.size());
        return Sizes(dims.rbegin(), dims.rend());
      });
  op<at::_ops::permute>()
      .moves(Moves::elements)
      .vmap(permute_vmap)
      .linear<0>([](Ct<0> ct, Skip, const Ints& order) { return ct->permute(inverse_permutation(order)); })
      .inverse([](const Tensor&, const Tensor& written, Args args, size_t) {
        return written.permute(inverse_permutation(args[1].toIntVector()));
      })
      .keeps_dims(permute_keeps);

  // ---- parts ----
  op<at::_ops::select_int>()
      .moves(Moves::elements)
      .vmap(without_dim(1))
      .linear<0>(
          [](Ct<0> ct, Shape x, int64_t dim, int64_t index) { return at::select_backward(*ct, x.sizes, dim, index); })
      .inverse([](const Tensor& base, const Tensor& written, Args args, size_t) {
        return at::select_scatter(base, written, args[1].toInt(), args[2].toInt());
      })
      .keeps_dims(keeps_others(1));
  op<at::_ops::slice_Tensor>()
      .moves(Moves::elements)
      .vmap(at_dim(1))
      .linear<0>([](Ct<0> ct, Shape x, int64_t dim, const MaybeInt& start, const MaybeInt& end, int64_t step) {
        return at::slice_backward(*ct, x.sizes, dim, start.value_or(0), end_of(end), step);
      })
      .inverse([](const Tensor& base, const Tensor& written, Args args, size_t) {
        return at::slice_scatter(base, written, args[1].toInt(), args[2].to<MaybeInt>(), args[3].to<MaybeInt>(),
                                 args[4].toInt());
      })
      .keeps_dims(slice_keeps);
  op<at::_ops::diagonal>()
      .moves(Moves::elements)
      .vmap(diagonal_vmap)
      .linear<0>([](Ct<0> ct, Shape x, int64_t offset, int64_t dim1, int64_t dim2) {
        return at::diagonal_backward(*ct, x.sizes, offset, dim1, dim2);
      })
      .inverse([](const Tensor& base, const Tensor& written, Args args, size_t) {
        return at::diagonal_scatter(base, written, args[1].toInt(), args[2].toInt(), args[3].toInt());
      })
      .keeps_dims(diagonal_keeps);
  op<at::_ops::unfold>()
      .moves(Moves::elements)
      .vmap(unfold_vmap)
      .linear<0>([](Ct<0> ct, Shape x, int64_t dim, int64_t size, int64_t step) {
        return at::unfold_backward(*ct, x.sizes, dim, size, step);
      })
      .inverse(unfolded_back)
      .repeats(windows_overlap)
      .keeps_dims(unfold_keeps);
  op<at::_ops::unbind_int>()
      .moves(Moves::elements)
      .vmap(without_dim(1))
      .linear<0>(stack_parts)
      .inverse([](const Tensor& base, const Tensor& written, Args args, size_t out) {
        return at::select_scatter(base, written, args[1].toInt(), static_cast<int64_t>(out));
      })
      .keeps_dims(keeps_others(1));
  op<at::_ops::split_Tensor>()
      .moves(Moves::elements)
      .vmap(at_dim(2))
      .linear<0>(cat_equal_parts)
      .inverse([](const Tensor& base, const Tensor& written, Args args, size_t out) {
        return write_slice(base, written, args[2].toInt(), static_cast<int64_t>(out) * args[1].toInt());
      })
      .keeps_dims(keeps_all_but(2));
  op<at::_ops::split_with_sizes>()
      .moves(Moves::elements)
      .vmap(at_dim(2))
      .linear<0>([](Cts cts, Shape x, const Ints& sizes, int64_t dim) { return cat_parts(cts, x, sizes, dim); })
      .inverse([](const Tensor& base, const Tensor& written, Args args, size_t out) {
        const auto sizes = args[1].toIntVector();
        int64_t start = 0;
        for (size_t k = 0; k < out; ++k) start += sizes[k];
        return write_slice(base, written, args[2].toInt(), start);
      })
      .keeps_dims(keeps_all_but(2));
  op<at::_ops::unsafe_split_Tensor>()
      .moves(Moves::elements)
      .vmap(at_dim(2))
      .linear<0>(cat_equal_parts)
      .keeps_dims(keeps_all_but(2));
  op<at::_ops::unsafe_split_with_sizes>()
      .moves(Moves::elements)
      .vmap(at_dim(2))
      .linear<0>([](Cts cts, Shape x, const Ints& sizes, int64_t dim) { return cat_parts(cts, x, sizes, dim); })
      .keeps_dims(keeps_all_but(2));

  // ---- the whole ----
  op<at::_ops::alias>()
      .moves(Moves::nothing)
      .vmap(same_vmap)
      .linear<0>(as_it_is)
      .inverse(written_itself)
      .keeps_dims(keeps_all);
  op<at::_ops::lift_fresh>()
      .moves(Moves::nothing)
      .vmap(same_vmap)
      .linear<0>(as_it_is)
      .inverse(written_itself)
      .keeps_dims(keeps_all);
  op<at::_ops::lift>().moves(Moves::nothing).vmap(same_vmap).linear<0>(as_it_is).keeps_dims(keeps_all);
  // What is written to a detached tensor changes the values of the tensor it was detached from, not its derivatives.
  op<at::_ops::detach>()
      .moves(Moves::nothing)
      .vmap(same_vmap)
      .no_derivative()
      .inverse([](const Tensor& base, const Tensor& written, Args, size_t) {
        return frontend::with_history_of(base, written, true);
      })
      .keeps_dims(keeps_all);

  // ---- views of which a copy is asked for, which lie by rows ----
  op<at::_ops::view_copy>().moves(Moves::in_order).decomposes([](const Tensor& x, const Ints& sizes) {
    return x.reshape(sizes).clone(kRows);
  });
  op<at::_ops::view_copy_dtype>().decomposes(
      [](const Tensor& x, at::ScalarType type) { return x.view(type).clone(kRows); });
  op<at::_ops::_reshape_copy>().decomposes(
      [](const Tensor& x, const Ints& sizes) { return x.reshape(sizes).clone(kRows); });
  op<at::_ops::_reshape_alias_copy>().decomposes(
      [](const Tensor& x, const Ints& sizes, Skip) { return x.reshape(sizes).clone(kRows); });
  op<at::_ops::expand_copy>().moves(Moves::elements).decomposes([](const Tensor& x, const Ints& sizes, bool implicit) {
    return x.expand(sizes, implicit).clone(kRows);
  });
  op<at::_ops::squeeze_copy>().decomposes([](const Tensor& x) { return x.squeeze().clone(kRows); });
  op<at::_ops::squeeze_copy_dim>().decomposes([](const Tensor& x, int64_t dim) { return x.squeeze(dim).clone(kRows); });
  op<at::_ops::squeeze_copy_dims>().decomposes(
      [](const Tensor& x, const Ints& dims) { return x.squeeze(dims).clone(kRows); });
  op<at::_ops::unsqueeze_copy>().depends(Depends::on_moved).decomposes([](const Tensor& x, int64_t dim) {
    return x.unsqueeze(dim).clone(kRows);
  });
  op<at::_ops::transpose_copy_int>().decomposes(
      [](const Tensor& x, int64_t a, int64_t b) { return x.transpose(a, b).clone(kRows); });
  op<at::_ops::t_copy>().decomposes([](const Tensor& x) { return x.t().clone(kRows); });
  op<at::_ops::permute_copy>().moves(Moves::elements).decomposes([](const Tensor& x, const Ints& order) {
    return x.permute(order).clone(kRows);
  });
  op<at::_ops::select_copy_int>().decomposes(
      [](const Tensor& x, int64_t dim, int64_t index) { return x.select(dim, index).clone(kRows); });
  op<at::_ops::slice_copy_Tensor>().decomposes(
      [](const Tensor& x, int64_t dim, const MaybeInt& start, const MaybeInt& end, int64_t step) {
        return at::slice(x, dim, start, end, step).clone(kRows);
      });
  op<at::_ops::narrow_copy>()
      .moves(Moves::elements)
      .decomposes([](const Tensor& x, int64_t dim, int64_t start, int64_t length) {
        return x.narrow(dim, start, length).clone(kRows);
      });
  op<at::_ops::diagonal_copy>().decomposes([](const Tensor& x, int64_t offset, int64_t dim1, int64_t dim2) {
    return x.diagonal(offset, dim1, dim2).clone(kRows);
  });
  op<at::_ops::unfold_copy>()
      .depends(Depends::on_moved)
      .decomposes([](const Tensor& x, int64_t dim, int64_t size, int64_t step) {
        return x.unfold(dim, size, step).clone(kRows);
      });
  op<at::_ops::unbind_copy_int>().decomposes([](const Tensor& x, int64_t dim) { return cloned(x.unbind(dim)); });
  op<at::_ops::split_copy_Tensor>().decomposes(
      [](const Tensor& x, int64_t size, int64_t dim) { return cloned(x.split(size, dim)); });
  op<at::_ops::split_with_sizes_copy>().decomposes(
      [](const Tensor& x, const Ints& sizes, int64_t dim) { return cloned(x.split_with_sizes(sizes, dim)); });
  op<at::_ops::alias_copy>().depends(Depends::on_its_place).decomposes([](const Tensor& x) { return x.clone(kRows); });
  op<at::_ops::lift_fresh_copy>().decomposes([](const Tensor& x) { return x.clone(kRows); });
  op<at::_ops::detach_copy>().decomposes([](const Tensor& x) { return x.detach().clone(kRows); });
}

}  // namespace tower::rules
