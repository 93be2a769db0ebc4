// Embedding look-ups and their backward operators, bags of embeddings, and the layer that an LSTM is lowered to.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <limits>

#include "interpreters/vmap.h"
#include "records/demands.h"
#include "records/op.h"
#include "rules/look_ups.h"
#include "rules/registry.h"
#include "rules/small_indexing.h"
#include "tower/dynamic.h"
#include "tower/errors.h"

namespace tower::rules {
namespace {

// Tables of all examples, one below the other, and indices that point into the example's own part.
Tensor offset_indices(const Tensor& indices, int64_t batch, int64_t rows) {
  Sizes shape{batch};
  for (int64_t d = 1; d < indices.dim(); ++d) shape.push_back(1);
  return indices + at::arange(batch, indices.options()).mul(rows).view(shape);
}

// embedding(table, indices, padding_idx, scale_grad_by_freq, sparse). The last three matter to levels below that
// differentiate: the row at padding_idx has no gradient.
void embedding_vmap(VmapFrame& f) {
  const int64_t padding = f.stack[2].toInt();
  const bool scale = f.stack[3].toBool(), sparse = f.stack[4].toBool();
  if (scale && f.batched(1)) return run_loop(f.level, f, false);  // frequencies are counted per example
  f.to_front(0, false);
  f.to_front(1, false);
  const Tensor table = f.tensor(0), indices = f.tensor(1);
  TORCH_CHECK(table.dim() == (f.batched(0) ? 3 : 2), "'weight' must be 2-D");
  if (!f.batched(0)) return f.result(at::embedding(table, indices, padding, scale, sparse));
  // One look-up for all examples: rows of all tables side by side.
  const auto side_by_side = [&](const Tensor& tables, const Tensor& at, int64_t without_gradient) {
    return at::embedding(tables.transpose(0, 1).flatten(1), at, without_gradient, scale, sparse)
        .unflatten(-1, {f.batch_size, tables.size(-1)})
        .movedim(-2, 0);
  };
  if (!f.batched(1)) {
    if (padding >= 0 || scale || sparse) return f.result(side_by_side(table, indices, padding));
    const Tensor own = offset_indices(indices.unsqueeze(0), f.batch_size, table.size(1));
    return f.result(at::embedding(table.flatten(0, 1), own));
  }
  const Tensor rows = at::embedding(table.flatten(0, 1), offset_indices(indices, f.batch_size, table.size(1)));
  if (padding < 0) return f.result(rows);
  // Every example has a padding row of its own.
  const Tensor padded = side_by_side(table.narrow(1, padding, 1), at::zeros({1}, indices.options()), 0);
  Sizes shape{f.batch_size};
  for (int64_t d = 1; d < indices.dim(); ++d) shape.push_back(1);
  shape.push_back(table.size(-1));
  f.result(at::where(indices.eq(padding).unsqueeze(-1), padded.reshape(shape), rows));
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
    throw UnsupportedError(f.level.describe() +
                           ": aten::one_hot without num_classes has a shape that depends on the values, "
                           "which differ between examples. Give num_classes.");
  f.to_front(0, false);
  f.call();
  f.out_dims.assign(1, 0);
}

enum Bags : int64_t { sum, mean, max };  // how a bag's rows are reduced

// The bag of each of `count` indices, where every bag starts at its offset.
Tensor bag_of_each(const Tensor& offsets, int64_t count) {
  const auto integers = offsets.options().dtype(at::kLong);
  const Tensor starts = at::zeros({count + 1}, integers).index_add(0, offsets, at::ones({offsets.size(0)}, integers));
  return starts.cumsum(0).narrow(0, 0, count) - 1;
}

// Rows looked up, then reduced over the bags that `offsets` delimits. The other outputs serve LibTorch's own backward
// operator: the bag of every index, the size of every bag (means, maxima) and the index that was greatest (maxima).
std::tuple<Tensor, Tensor, Tensor, Tensor> embedding_bag(const Tensor& table, const Tensor& indices,
                                                         const Tensor& all_offsets, bool scale, int64_t mode,
                                                         bool sparse, const Tensor& weights, bool last_included,
                                                         int64_t padding) {
  const int64_t count = indices.size(0), bags = all_offsets.size(0) - last_included;
  const auto integers = indices.options().dtype(at::kLong);
  const Tensor bag = bag_of_each(all_offsets.narrow(0, 0, bags), count);

  Tensor rows = at::embedding(table, indices, -1, scale, sparse);
  if (weights.defined()) rows = rows * weights.unsqueeze(-1);
  Tensor counted = at::ones({count}, integers);
  if (padding >= 0) {
    const Tensor padded = indices.eq(padding);
    counted = counted.masked_fill(padded, 0);
    rows = rows.masked_fill(padded.unsqueeze(-1), mode == max ? -std::numeric_limits<double>::infinity() : 0.0);
  }
  Tensor sizes = at::zeros({bags}, integers);  // LibTorch does not count for sums either
  if (mode != sum) sizes = sizes.index_add(0, bag, counted);
  const Tensor none = at::zeros({bags, table.size(1)}, rows.options());
  if (mode != max) {
    const Tensor sums = none.index_add(0, bag, rows);
    return {mode == mean ? sums / sizes.clamp_min(1).unsqueeze(-1) : sums, bag, sizes, sizes.clone()};
  }
  const Tensor bags_of = bag.unsqueeze(-1).expand(rows.sizes());
  const Tensor greatest =
      none.scatter_reduce(0, bags_of, rows, "amax", /*include_self=*/false).masked_fill(sizes.eq(0).unsqueeze(-1), 0);
  const Tensor winners = at::where(rows.eq(greatest.index_select(0, bag)), indices.to(at::kLong).unsqueeze(-1), 0);
  const Tensor chosen =
      at::zeros({bags, table.size(1)}, integers).scatter_reduce(0, bags_of, winners, "amax", /*include_self=*/false);
  return {greatest, bag, sizes, chosen};
}

// All examples' bags and tables one after the other, each table with one more row for what is at padding_idx.
void embedding_bag_dense_backward_vmap(VmapFrame& f) {
  if (f.stack[6].toBool()) return run_loop(f.level, f, false);  // frequencies are counted per example
  for (uint8_t i : f.op.tensor_args())
    if (f.is_tensor(i)) f.to_front(i, true);
  const int64_t batch = f.batch_size, bags = f.tensor(0).size(1);
  const int64_t rows = f.stack[5].toInt(), padding = f.stack[9].toInt();
  if (padding >= 0) f.stack[1] = f.tensor(1).masked_fill(f.tensor(1).eq(padding), rows);
  for (size_t i : {1, 2, 4}) f.stack[i] = offset_indices(f.tensor(i), batch, i == 2 ? bags : rows + 1);
  for (uint8_t i : f.op.tensor_args())
    if (f.is_tensor(i)) f.stack[i] = f.tensor(i).flatten(0, 1);
  f.stack[5] = batch * (rows + 1);
  f.stack[9] = -1;
  f.call();
  f.result(f.tensor(0).unflatten(0, {batch, rows + 1}).narrow(1, 0, rows));
}

// The gradient of the table: each row's share of what its bags got.
Tensor embedding_bag_dense_backward(const Tensor& grad, const Tensor& indices, const Tensor& bag, const Tensor& sizes,
                                    const Tensor& chosen, int64_t rows, bool scale, int64_t mode, const Tensor& weights,
                                    int64_t padding) {
  if (scale)
    throw UnsupportedError(
        "aten::_embedding_bag_dense_backward with scale_grad_by_freq has no derivative: LibTorch's kernel divides by "
        "the "
        "frequencies of other rows. Transform embedding_bag itself.");
  const Tensor none = at::zeros({rows, grad.size(1)}, grad.options());
  if (mode == max)  // an empty bag chose nothing
    return none.scatter_add(0, chosen.to(at::kLong), grad.masked_fill(sizes.eq(0).unsqueeze(-1), 0));
  Tensor each = grad.index_select(0, bag);
  if (mode == mean) each = each / sizes.clamp_min(1).index_select(0, bag).unsqueeze(-1);
  if (weights.defined()) each = each * weights.unsqueeze(-1);
  if (padding >= 0) each = each.masked_fill(indices.eq(padding).unsqueeze(-1), 0);
  return none.index_add(0, indices, each);
}

// The bags as the forward operator gave them; some of its kernels leave them out.
Tensor given_or_counted(const Tensor& bag, const Tensor& offsets, const Tensor& indices) {
  return bag.numel() == 0 ? bag_of_each(offsets, indices.size(0)) : bag;
}

Tensor embedding_bag_backward(const Tensor& grad, const Tensor& indices, const Tensor& offsets, const Tensor& bag,
                              const Tensor& sizes, const Tensor& chosen, int64_t rows, bool scale, int64_t mode,
                              bool sparse, const Tensor& weights, int64_t padding) {
  if (sparse)
    throw UnsupportedError(
        "aten::_embedding_bag_backward: sparse gradients are not supported by transforms. Use sparse = false.");
  return at::_embedding_bag_dense_backward(grad, indices, given_or_counted(bag, offsets, indices), sizes, chosen, rows,
                                           scale, mode, weights, padding);
}

Tensor embedding_bag_weights_backward(const Tensor& grad, const Tensor& table, const Tensor& indices,
                                      const Tensor& offsets, const Tensor& bag, int64_t mode, int64_t padding) {
  TORCH_CHECK(mode == sum, "embedding_bag_backward: per_sample_weights only supported for mode='sum'");
  const Tensor of_bags = grad.index_select(0, given_or_counted(bag, offsets, indices));
  const Tensor products = (of_bags * table.index_select(0, indices)).sum(-1);
  return padding < 0 ? products : products.masked_fill(indices.eq(padding), 0);
}

// One layer of an LSTM in one direction: LibTorch's composite lstm ends here where oneDNN serves the dtype. The
// workspace is for LibTorch's own backward operator.
std::tuple<Tensor, Tensor, Tensor, Tensor> lstm_layer(const Tensor& x, const Tensor& w_input, const Tensor& w_hidden,
                                                      const Tensor& b_input, const Tensor& b_hidden, const Tensor& h0,
                                                      const Tensor& c0, bool reverse, const Ints&, int64_t mode,
                                                      int64_t hidden) {
  constexpr int64_t lstm = 2;
  TORCH_CHECK(mode == lstm, "mkldnn_rnn_layer: only LSTM is known under transforms");
  const int64_t steps = x.size(0);
  const Tensor inputs = at::linear(x, w_input, b_input + b_hidden), recurrent = w_hidden.t();
  Tensor h = h0.reshape({x.size(1), hidden}), c = c0.reshape({x.size(1), hidden});
  std::vector<Tensor> outputs(static_cast<size_t>(steps));
  for (int64_t k = 0; k < steps; ++k) {
    const int64_t t = reverse ? steps - 1 - k : k;
    const auto gates = at::addmm(inputs.select(0, t), h, recurrent).chunk(4, -1);
    c = gates[1].sigmoid() * c + gates[0].sigmoid() * gates[2].tanh();
    h = gates[3].sigmoid() * c.tanh();
    outputs[static_cast<size_t>(t)] = h;
  }
  return {at::stack(outputs), h.reshape(h0.sizes()), c.reshape(c0.sizes()), at::zeros({0}, x.options())};
}

// The gradients of its seven tensors.
using Seven = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
Seven lstm_layer_backward(const Tensor& x, const Tensor& w_input, const Tensor& w_hidden, const Tensor& b_input,
                          const Tensor& b_hidden, const Tensor& h0, const Tensor& c0, Skip, Skip, Skip,
                          const Tensor& of_outputs, const Tensor& of_h, const Tensor& of_c, bool reverse, int64_t mode,
                          int64_t hidden) {
  const auto [outs, pullback] = dynamic::vjp(
      [&](const dynamic::Tensors& in) {
        auto [y, h, c, workspace] =
            lstm_layer(in[0], in[1], in[2], in[3], in[4], in[5], in[6], reverse, {}, mode, hidden);
        return dynamic::Tensors{y, h, c};
      },
      {x, w_input, w_hidden, b_input, b_hidden, h0, c0});
  dynamic::Tensors cotangents{of_outputs, of_h, of_c};
  for (size_t k = 0; k < 3; ++k)
    if (!cotangents[k].defined()) cotangents[k] = at::zeros_like(outs[k]);
  const auto g = pullback(cotangents);
  return {g[0], g[1], g[2], g[3], g[4], g[5], g[6]};
}

void demand_bags(const Example& e) {
  TORCH_CHECK(e.dim(0) == 2 && e.dim(1) == 1 && e.dim(2) == 1,
              "embedding_bag: expected a matrix of weights, and "
              "vectors of indices and offsets, but got ",
              e.dim(0), ", ", e.dim(1), " and ", e.dim(2), " dimensions");
  demand_floating(e, 0);
  demand_same_dtype(e, {0, 6});
  for (const size_t i : {1, 2})
    TORCH_CHECK(e.dtype(i) == at::kLong || e.dtype(i) == at::kInt, "embedding_bag: expected '", e.op().argument_name(i),
                "' to have one of the following scalar types: Long, Int; but got ", e.dtype(i));
}

}  // namespace

void embedding() {
  compiler::set_looks_up(record_of("aten::embedding", ""));
  compiler::set_look_up_rule(record_of("aten::embedding", ""), look_ups::embedding);
  op<at::_ops::_embedding_bag>().decomposes(embedding_bag);
  op<at::_ops::_embedding_bag_forward_only>().decomposes(embedding_bag);
  op<at::_ops::_embedding_bag_dense_backward>()
      .vmap(embedding_bag_dense_backward_vmap)
      .decomposes(embedding_bag_dense_backward);
  op<at::_ops::_embedding_bag_backward>().decomposes(embedding_bag_backward);
  op<at::_ops::_embedding_bag_per_sample_weights_backward>().decomposes(embedding_bag_weights_backward);
  op<at::_ops::mkldnn_rnn_layer>().decomposes(lstm_layer);
  op<at::_ops::mkldnn_rnn_layer_backward>().decomposes(lstm_layer_backward);

  op<at::_ops::one_hot>().vmap(one_hot_vmap);

  op<at::_ops::embedding>()
      .small(small::embedding)
      .depends(Depends::on_moved)
      .vmap(embedding_vmap)
      .vjp<0>([](Ct<0> ct, Shape table, const Tensor& indices, int64_t padding, bool scale, bool sparse) {
        if (sparse)
          throw DerivativeError(
              "vjp of aten::embedding: sparse gradients are not supported by transforms. Call it without `sparse`.");
        return at::embedding_dense_backward(*ct, indices, table.sizes[0], padding, scale);
      })
      // Forward, the padding row is a row like others; LibTorch's reverse mode gives it no gradient.
      .jvp<0>([](Tan<0> dtable, Skip, const Tensor& indices) { return at::embedding(*dtable, indices); });

  op<at::_ops::embedding_dense_backward>()
      .small(small::embedding_dense_backward)
      .vmap(embedding_dense_backward_vmap)
      .linear<0>([](Ct<0> ct, Skip, const Tensor& indices, int64_t, int64_t padding, bool scale) {
        Tensor rows = at::embedding(*ct, indices);
        if (scale) {
          const Tensor counts = at::zeros({ct->size(0)}, rows.options())
                                    .index_add(0, indices.flatten(), at::ones({indices.numel()}, rows.options()));
          rows = rows / counts.index_select(0, indices.flatten()).view(indices.sizes()).unsqueeze(-1);
        }
        return padding < 0 ? rows : rows.masked_fill(indices.eq(padding).unsqueeze(-1), 0);
      });
  demands<at::_ops::embedding>(
      [](const Example& e) { TORCH_CHECK(e.dim(0) == 2, "'weight' must be 2-D, but has ", e.dim(0), " dimensions"); });
  demands<at::_ops::_embedding_bag>(demand_bags);
  demands<at::_ops::_embedding_bag_forward_only>(demand_bags);
}

}  // namespace tower::rules
