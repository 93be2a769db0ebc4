// Rearranging without sharing memory: cat, stack, flip, roll, repeat, clone, dtype conversion, …
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <ATen/native/TypeProperties.h>

#include "numbers/element.h"
#include "records/demands.h"
#include "records/dims.h"
#include "records/op.h"
#include "rules/registry.h"
#include "rules/small_windows.h"

namespace tower::rules {
namespace {

using compiler::Raw;

using Format = std::optional<at::MemoryFormat>;

// ---- batching ----

// Leading dimensions are batch dimensions to the operator, but one example must have enough of its own.
VmapRule with_matrices(int64_t rank) {
  return [rank](VmapFrame& f) {
    TORCH_CHECK(f.logical_dim(0) >= rank, f.op.name(), ": expected a tensor with at least ", rank,
                " dimensions, but got ", f.logical_dim(0));
    vmap_natively(f);
  };
}

int64_t rank_of(const VmapFrame& f, size_t list) {
  const auto& elements = f.stack[list].toListRef();
  int64_t rank = 0;
  for (size_t e = 0; e < elements.size(); ++e)
    rank = std::max(rank, elements[e].toTensor().dim() - (f.list_dims[list][e] != VmapFrame::kUnbatched));
  return rank;
}

// As ever in LibTorch, vectors without elements may stand among tensors of any shape, and count for nothing.
bool is_legacy_empty(at::IntArrayRef sizes) { return sizes.size() == 1 && sizes[0] == 0; }

void cat_vmap(VmapFrame& f) {
  const int64_t rank = rank_of(f, 0);
  std::vector<Tensor> parts = f.list_to_front(0);
  for (const Tensor& t : parts) TORCH_CHECK(t.dim() > 1, "zero-dimensional tensor cannot be concatenated");
  at::ScalarType type = parts.at(0).scalar_type();  // those that are left out have a say in it
  for (const Tensor& t : parts) type = c10::promoteTypes(type, t.scalar_type());
  if (rank > 1) std::erase_if(parts, [](const Tensor& t) { return is_legacy_empty(t.sizes().slice(1)); });
  f.result(at::cat(parts, at::maybe_wrap_dim(f.stack[1].toInt(), rank) + 1).to(type));
}

void stack_vmap(VmapFrame& f) {
  const int64_t dim = at::maybe_wrap_dim(f.stack[1].toInt(), rank_of(f, 0) + 1) + 1;
  f.result(at::stack(f.list_to_front(0), dim));
}

// Channels-last names the dimensions of one example; the batched value has another one, and its own order.
template <size_t format>
void copy_vmap(VmapFrame& f) {
  const auto asked = f.stack[format].to<Format>();
  if (asked && *asked != at::MemoryFormat::Preserve) {
    TORCH_CHECK(*asked != at::MemoryFormat::ChannelsLast || f.logical_dim(0) == 4,
                "required rank 4 tensor to use channels_last format");
    TORCH_CHECK(*asked != at::MemoryFormat::ChannelsLast3d || f.logical_dim(0) == 5,
                "required rank 5 tensor to use channels_last_3d format");
    f.to_front(0, false);
    f.stack[format] = at::MemoryFormat::Contiguous;
    if (*asked != at::MemoryFormat::Contiguous) {
      f.stack[0] = f.tensor(0).movedim(2, -1);
      f.call();
      return f.result(f.tensor(0).movedim(-1, 2));
    }
  }
  f.out_dims.assign(1, f.in_dims[0]);
  f.call();
}

void roll_vmap(VmapFrame& f) {
  if (!f.stack[2].toIntVector().empty()) {
    TORCH_CHECK_INDEX(f.logical_dim(0) > 0, "roll: a dimension was given, but the tensor has no dimensions");
    return vmap_along(f, {2});
  }
  // Without dimensions, the elements of an example are rolled in their order.
  const auto shifts = f.stack[1].toIntVector();
  const auto sizes = logical_sizes(f, 0);
  TORCH_CHECK(shifts.size() == 1, "shifts and dimensions must align. shifts: ", shifts.size(), ", dims:0");
  f.result(in_shape(batch_of_rows(f, 0).roll(shifts[0], 1), with_batch(f, sizes)));
}

void repeat_vmap(VmapFrame& f) {
  auto repeats = f.stack[1].toIntVector();
  const int64_t missing = static_cast<int64_t>(repeats.size()) - f.logical_dim(0);
  TORCH_CHECK(missing >= 0,
              "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
  f.to_front(0, false);
  Tensor t = f.tensor(0);
  for (int64_t d = 0; d < missing; ++d) t = t.unsqueeze(1);
  repeats.insert(repeats.begin(), 1);
  f.result(t.repeat(repeats));
}

void pad_vmap(VmapFrame& f) {
  TORCH_CHECK(static_cast<int64_t>(f.stack[1].toIntVector().size()) <= 2 * f.logical_dim(0),
              "Length of pad should be no more than twice the number of dimensions of the input. Pad length is ",
              f.stack[1].toIntVector().size(), " while the input has ", f.logical_dim(0), " dimensions.");
  f.to_front(0, false);
  f.call();
}

void diag_embed_vmap(VmapFrame& f) {
  shift_dims(f, {2, 3}, f.logical_dim(0) + 1);
  f.call();
}

// LibTorch may take five dimensions that are not in order for a volume's, which the kernels do not know.
void image_vmap(VmapFrame& f) {
  f.to_front(0, false);
  if (f.tensor(0).dim() == 5) f.stack[0] = f.tensor(0).contiguous();
  with_matrices(3)(f);
}

// The kernel does not work out the shape of an empty result.
Tensor unshuffled(const Tensor& t, int64_t factor) {
  if (t.numel() > 0 || t.dim() < 3 || factor <= 0) return at::pixel_unshuffle(t, factor);
  Ints sizes = t.sizes().vec();
  const size_t rank = sizes.size();
  sizes[rank - 3] *= factor * factor;
  sizes[rank - 2] /= factor;
  sizes[rank - 1] /= factor;
  return t.reshape(sizes);
}

void pixel_unshuffle_vmap(VmapFrame& f) {
  if (f.batch_size > 0 || f.logical_dim(0) < 3) return image_vmap(f);
  f.to_front(0, false);
  f.result(unshuffled(f.tensor(0), f.stack[1].toInt()));
}

// Channels are dimension 1, behind the items; the batch is merged into these.
void shuffle_vmap(VmapFrame& f) {
  const auto sizes = logical_sizes(f, 0);
  TORCH_CHECK(sizes.size() >= 3, "channel_shuffle expects input with > 2 dims, but got ", sizes.size());
  f.to_front(0, true);
  f.stack[0] = f.tensor(0).flatten(0, 1);
  // What LibTorch composes it of on other devices than the CPU reshapes by a size that no elements leave open.
  if (f.tensor(0).numel() > 0) f.call();
  f.result(in_shape(f.stack[0].toTensor(), with_batch(f, sizes)));
}

// ---- derivatives ----

std::vector<Tensor> cat_transpose(Ct<0> ct, const Shapes& tensors, int64_t dim) {
  std::vector<Tensor> parts;
  int64_t start = 0;
  for (const Meta& t : tensors) {
    if (is_legacy_empty(t.sizes)) {
      parts.push_back(at::zeros({0}, ct->options()));
      continue;
    }
    const int64_t length = t.sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, t.dim()))];
    parts.push_back(ct->narrow(dim, start, length));
    start += length;
  }
  return parts;
}

// [r·s] = [r, s], summed over r.
Tensor repeat_transpose(Ct<0> ct, Shape x, const Ints& repeats) {
  const size_t missing = repeats.size() - x.sizes.size();
  Ints split, over;
  for (size_t d = 0; d < repeats.size(); ++d) {
    if (repeats[d] != 1 || d < missing) {
      over.push_back(static_cast<int64_t>(split.size()));
      split.push_back(repeats[d]);
    }
    if (d >= missing) split.push_back(x.sizes[d - missing]);
  }
  return over.empty() ? *ct : in_shape(*ct, split).sum(over);
}

Ints negated(Ints values) {
  for (int64_t& v : values) v = -v;
  return values;
}

Tensor itself(Ct<0> ct) { return *ct; }

// One matrix from blocks along its diagonal, zeros beside them.
Tensor block_diagonal(const std::vector<Tensor>& blocks) {
  std::vector<Tensor> matrices;
  at::native::ResultTypeState types{};  // of the tensors as they are: numbers give way to vectors
  int64_t width = 0;
  for (const Tensor& b : blocks) {
    TORCH_CHECK(b.dim() <= 2, "torch.block_diag: Input tensors must have 2 or fewer dimensions. Input has ", b.dim());
    matrices.push_back(b.dim() == 2 ? b : b.reshape({1, b.numel()}));
    types = at::native::update_result_type_state(b, types);
    width += matrices.back().size(1);
  }
  if (matrices.empty()) return at::empty({1, 0});
  std::vector<Tensor> rows;
  int64_t start = 0;
  for (const Tensor& m : matrices) {
    rows.push_back(at::constant_pad_nd(m, {start, width - start - m.size(1)}));
    start += m.size(1);
  }
  return at::cat(rows).to(at::native::result_type(types));
}

// Each tensor as `chunks` equal pieces along `dim` (zeros fill up the last), the pieces of all tensors side by side.
Tensor chunked_side_by_side(const std::vector<Tensor>& tensors, int64_t dim, int64_t chunks) {
  TORCH_CHECK(!tensors.empty() && chunks > 0, "_chunk_cat: expected tensors and a positive number of chunks");
  std::vector<Tensor> parts;
  for (const Tensor& t : tensors) {
    const int64_t d = at::maybe_wrap_dim(dim, t.dim()), size = t.size(d), piece = (size + chunks - 1) / chunks;
    Ints pad(static_cast<size_t>(2 * (t.dim() - d)), 0);
    pad.back() = piece * chunks - size;
    std::vector<int64_t> sizes(t.sizes().begin(), t.sizes().begin() + d);
    sizes.push_back(chunks);
    sizes.push_back(piece * product(t.sizes().slice(static_cast<size_t>(d) + 1)));
    parts.push_back(at::constant_pad_nd(t, pad).reshape(sizes));
  }
  return at::cat(parts, at::maybe_wrap_dim(dim, tensors[0].dim()) + 1);
}

}  // namespace

void shapes() {
  // ---- joining ----
  op<at::_ops::cat>().moves(Moves::elements).vmap(cat_vmap).jointly_linear<0>().vjp<0>(cat_transpose);
  op<at::_ops::stack>()
      .moves(Moves::elements)
      .vmap(stack_vmap)
      .jointly_linear<0>()
      .vjp<0>([](Ct<0> ct, Skip, int64_t dim) { return ct->unbind(dim); });
  op<at::_ops::block_diag>().depends(Depends::on_moved).decomposes(block_diagonal);
  op<at::_ops::_chunk_cat>().decomposes(chunked_side_by_side);

  // ---- questions ----
  // LibTorch's forward mode asks them; a transform of torch.func inside of Tower's brings them here.
  op<at::_ops::is_same_size>()
      .vmap([](VmapFrame& f) { f.stack.assign(1, IValue(logical_sizes(f, 0) == logical_sizes(f, 1))); })
      .no_derivative();
  op<at::_ops::_has_same_storage_numel>()
      .vmap([](VmapFrame& f) {
        // An example has no storage of its own: what it would need is what it has.
        f.stack.assign(1, IValue(product(logical_sizes(f, 0)) == product(logical_sizes(f, 1))));
      })
      .no_derivative();

  // The examples are where the batch is.
  op<at::_ops::is_pinned>().vmap([](VmapFrame& f) { f.call(); }).no_derivative();

  // ---- copies ----
  op<at::_ops::clone>().moves(Moves::nothing).element([](Raw x) { return x; }).vmap(copy_vmap<1>).linear<0>(itself);
  op<at::_ops::_to_copy>()
      .depends(Depends::on_its_place)
      .element([](Raw x) { return x; })
      .vmap(copy_vmap<6>)
      .linear<0>([](Ct<0> ct, Shape x) { return ct->device() == x.device ? *ct : ct->to(x.device); });
  op<at::_ops::_pin_memory>()
      .vmap([](VmapFrame& f) {
        f.out_dims.assign(1, f.in_dims[0]);
        f.call();
      })
      .linear<0>(itself);

  // ---- orders ----
  op<at::_ops::flip>().moves(Moves::elements).along({1}).linear<0>([](Ct<0> ct, Skip, const Ints& dims) {
    return ct->flip(dims);
  });
  op<at::_ops::roll>()
      .moves(Moves::elements)
      .vmap(roll_vmap)
      .linear<0>([](Ct<0> ct, Skip, const Ints& shifts, const Ints& dims) { return ct->roll(negated(shifts), dims); });
  op<at::_ops::rot90>().moves(Moves::elements).along({2}).linear<0>([](Ct<0> ct, Skip, int64_t k, const Ints& dims) {
    return ct->rot90(-k, dims);
  });

  // ---- sizes ----
  op<at::_ops::repeat>().moves(Moves::elements).vmap(repeat_vmap).linear<0>(repeat_transpose);
  op<at::_ops::constant_pad_nd>()
      .moves(Moves::elements_or_value)
      .vmap(pad_vmap)
      .vjp<0>([](Ct<0> ct, Skip, const Ints& pad) { return at::constant_pad_nd(*ct, negated(pad)); })
      .jvp<0>([](Tan<0> dx, Skip, const Ints& pad) { return at::constant_pad_nd(*dx, pad); });

  // ---- matrices ----
  op<at::_ops::diag_embed>()
      .moves(Moves::elements_or_zero)
      .vmap(diag_embed_vmap)
      .linear<0>(
          [](Ct<0> ct, Skip, int64_t offset, int64_t dim1, int64_t dim2) { return ct->diagonal(offset, dim1, dim2); });
  op<at::_ops::tril>().moves(Moves::elements_or_zero).vmap(with_matrices(2)).linear<0>([](Ct<0> ct, Skip, int64_t k) {
    return ct->tril(k);
  });
  op<at::_ops::triu>().moves(Moves::elements_or_zero).vmap(with_matrices(2)).linear<0>([](Ct<0> ct, Skip, int64_t k) {
    return ct->triu(k);
  });

  // ---- images ----
  op<at::_ops::pixel_shuffle>().moves(Moves::elements).vmap(image_vmap).linear<0>([](Ct<0> ct, Skip, int64_t factor) {
    return unshuffled(*ct, factor);
  });
  op<at::_ops::pixel_unshuffle>()
      .moves(Moves::elements)
      .vmap(pixel_unshuffle_vmap)
      .linear<0>([](Ct<0> ct, Skip, int64_t factor) { return at::pixel_shuffle(*ct, factor); });
  op<at::_ops::channel_shuffle>()
      .moves(Moves::elements)
      .vmap(shuffle_vmap)
      .linear<0>([](Ct<0> ct, Shape x, int64_t groups) { return at::channel_shuffle(*ct, x.sizes[1] / groups); });
  op<at::_ops::native_channel_shuffle>()
      .moves(Moves::elements)
      .vmap(shuffle_vmap)
      .linear<0>([](Ct<0> ct, Shape x, int64_t groups) { return at::channel_shuffle(*ct, x.sizes[1] / groups); });
  op<at::_ops::im2col>()
      .moves(Moves::elements_or_zero)
      .folds_into_items(4)
      .linear<0>(
          [](Ct<0> ct, Shape x, const Ints& kernel, const Ints& dilation, const Ints& padding, const Ints& stride) {
            const size_t rank = x.sizes.size();
            return at::col2im(*ct, {x.sizes[rank - 2], x.sizes[rank - 1]}, kernel, dilation, padding, stride);
          });
  op<at::_ops::col2im>()
      .small(small::sums)
      .folds_into_items(3)
      .linear<0>([](Ct<0> ct, Skip, Skip, const Ints& kernel, const Ints& dilation, const Ints& padding,
                    const Ints& stride) { return at::im2col(*ct, kernel, dilation, padding, stride); });
  demands<at::_ops::block_diag>([](const Example& e) {
    const auto tensors = e.list(0);
    for (const Meta& t : tensors)
      TORCH_CHECK(t.device == tensors[0].device,
                  "torch.block_diag: input tensors must all be on the same device, but "
                  "are on ",
                  tensors[0].device, " and ", t.device);
  });
  demands<at::_ops::_chunk_cat>([](const Example& e) {
    const auto tensors = e.list(0);
    for (const Meta& t : tensors) {
      TORCH_CHECK(c10::multiply_integers(t.sizes) > 0, "_chunk_cat expects non-empty tensor");
      TORCH_CHECK(t.dtype == tensors[0].dtype, "_chunk_cat expects all input tensors with the same dtype");
    }
  });
}

}  // namespace tower::rules
