// Embedding look-ups and their backward operators.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "interpreters/vmap.h"
#include "rules/op.h"
#include "rules/registry.h"
#include "tower/errors.h"

namespace tower::rules {
namespace {

// Tables of all examples, one below the other, and indices that point into the example's own part.
Tensor offset_indices(const Tensor& indices, int64_t batch, int64_t rows) {
  Sizes shape{batch};
  for (int64_t d = 1; d < indices.dim(); ++d) shape.push_back(1);
  return indices + at::arange(batch, indices.options()).mul(rows).view(shape);
}

void embedding_vmap(VmapFrame& f) {
  f.to_front(0, false);
  f.to_front(1, false);
  const Tensor table = f.tensor(0), indices = f.tensor(1);
  if (!f.batched(0)) return f.result(at::embedding(table, indices));
  // One look-up for all examples: rows of all tables side by side.
  if (!f.batched(1)) return f.result(at::embedding(table.transpose(0, 1).flatten(1), indices)
                                         .unflatten(-1, {f.batch_size, table.size(-1)})
                                         .movedim(-2, 0));
  f.result(at::embedding(table.flatten(0, 1), offset_indices(indices, f.batch_size, table.size(1))));
}

// embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq)
void embedding_dense_backward_vmap(VmapFrame& f) {
  if (f.stack[4].toBool()) return run_loop(f.level, f, false);  // frequencies are counted per example
  f.to_front(0, true);
  f.to_front(1, true);
  const int64_t rows = f.stack[2].toInt(), padding = f.stack[3].toInt(), batch = f.batch_size;
  const Tensor grad = f.tensor(0);
  Tensor indices = f.tensor(1);
  Tensor kept = grad;
  if (padding >= 0) kept = grad.masked_fill(indices.eq(padding).unsqueeze(-1), 0);
  const Tensor sums = at::embedding_dense_backward(kept.flatten(0, -2), offset_indices(indices, batch, rows).flatten(),
                                                   batch * rows, -1, false);
  f.result(sums.unflatten(0, {batch, rows}));
}

// LibTorch checks the classes by looking at the values: one check does for the whole batch.
void one_hot_vmap(VmapFrame& f) {
  if (f.stack[1].toInt() < 0)
    throw UnsupportedError(f.level.describe() + ": aten::one_hot without num_classes has a shape that depends on the values, "
                           "which differ between examples. Give num_classes.");
  f.to_front(0, false);
  f.call();
  f.out_dims.assign(1, 0);
}

}  // namespace

void embedding() {
  op<at::_ops::one_hot>().vmap(one_hot_vmap);

  op<at::_ops::embedding>()
      .vmap(embedding_vmap)
      .vjp<0>([](Ct<0> ct, Shape table, const Tensor& indices, int64_t padding, bool scale, bool sparse) {
        if (sparse)
          throw DerivativeError("vjp of aten::embedding: sparse gradients are not supported by transforms. Use sparse = false.");
        return at::embedding_dense_backward(*ct, indices, table.sizes[0], padding, scale);
      })
      // Forward, the padding row is a row like others; LibTorch's reverse mode gives it no gradient.
      .jvp<0>([](Tan<0> dtable, Skip, const Tensor& indices) { return at::embedding(*dtable, indices); });

  op<at::_ops::embedding_dense_backward>()
      .vmap(embedding_dense_backward_vmap)
      .linear<0>([](Ct<0> ct, Skip, const Tensor& indices, int64_t, int64_t padding, bool scale) {
        Tensor rows = at::embedding(*ct, indices);
        if (scale) {
          const Tensor counts = at::zeros({ct->size(0)}, rows.options()).index_add(0, indices.flatten(), at::ones({indices.numel()}, rows.options()));
          rows = rows / counts.index_select(0, indices.flatten()).view(indices.sizes()).unsqueeze(-1);
        }
        return padding < 0 ? rows : rows.masked_fill(indices.eq(padding).unsqueeze(-1), 0);
      });
}

}  // namespace tower::rules
