// Convolution and its backward operator. A batch goes where convolution already has independence: into the items when
// the weight is shared, into the groups when every example has its own weight.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <algorithm>

#include "interpreters/vmap.h"
#include "records/demands.h"
#include "records/op.h"
#include "rules/registry.h"
#include "rules/small_convolutions.h"

namespace tower::rules {
namespace {

struct Settings {
  Ints stride, padding, dilation;
  bool transposed;
  Ints output_padding;
  int64_t groups;
};

Settings settings_at(const Stack& stack, size_t first) {
  return {stack[first].toIntVector(), stack[first + 1].toIntVector(), stack[first + 2].toIntVector(),
          stack[first + 3].toBool(),  stack[first + 4].toIntVector(), stack[first + 5].toInt()};
}

Tensor call(const Tensor& x, const Tensor& w, const Tensor& bias, const Settings& s, int64_t groups) {
  return at::convolution(x, w, bias.defined() ? std::optional<Tensor>(bias) : std::nullopt, s.stride, s.padding,
                         s.dilation, s.transposed, s.output_padding, groups);
}

// [B, n, c, …] to [n, B·c, …]: the batch becomes groups of channels.
Tensor batch_to_channels(const Tensor& t) { return t.transpose(0, 1).flatten(1, 2); }
// [n, B·c, …] to [B, n, c, …].
Tensor channels_to_batch(const Tensor& t, int64_t batch) {
  return t.unflatten(1, {batch, t.size(1) / batch}).transpose(0, 1);
}
// [B·n, …] to [B, n, …].
Tensor items_to_batch(const Tensor& t, int64_t batch, int64_t items) { return t.unflatten(0, {batch, items}); }

Tensor per_channel(const Tensor& bias, int64_t spatial) {
  Tensor b = bias.unsqueeze(-2);  // items
  for (int64_t d = 0; d < spatial; ++d) b = b.unsqueeze(-1);
  return b;
}

void convolution_vmap(VmapFrame& f) {
  if (f.batch_size == 0) return run_loop(f.level, f, false);  // there are no zero groups
  for (size_t i : {0, 1, 2})
    if (f.is_tensor(i)) f.to_front(i, false);
  const Tensor x = f.tensor(0), w = f.tensor(1), bias = f.is_tensor(2) ? f.tensor(2) : Tensor();
  const Settings s = settings_at(f.stack, 3);
  const bool bias_apart = bias.defined() && f.batched(2);
  const int64_t spatial = f.logical_dim(1) - 2;
  const int64_t batch = f.batch_size;
  Tensor y;
  if (!f.batched(1)) {
    const Tensor shared_bias = bias_apart ? Tensor() : bias;
    if (f.batched(0)) y = items_to_batch(call(x.flatten(0, 1), w, shared_bias, s, s.groups), batch, x.size(1));
    else y = call(x, w, shared_bias, s, s.groups).unsqueeze(0);
    if (bias_apart) y = y + per_channel(bias, spatial);
    return f.result(y);
  }
  // Own weights: [B, out, in/groups, …]; transposed convolution has [B, in, out/groups, …].
  Tensor grouped_x;
  if (f.batched(0)) {
    grouped_x = batch_to_channels(x);
  } else if (s.groups == 1 && !s.transposed) {
    // One input and many filters: more output channels.
    y = channels_to_batch(call(x, w.flatten(0, 1), Tensor(), s, 1), batch);
  } else {
    Sizes sizes{batch};
    sizes.append(x.sizes().begin(), x.sizes().end());
    grouped_x = batch_to_channels(x.unsqueeze(0).expand(sizes));
  }
  if (!y.defined()) y = channels_to_batch(call(grouped_x, w.flatten(0, 1), Tensor(), s, batch * s.groups), batch);
  if (bias.defined()) y = y + per_channel(bias, spatial);
  f.result(y);
}

// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
// groups, output_mask)
std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& g, const Tensor& x, const Tensor& w, const Settings& s,
                                            int64_t groups, std::array<bool, 3> mask) {
  const int64_t out = g.size(1);
  return at::convolution_backward(g, x, w, at::IntArrayRef(&out, 1), s.stride, s.padding, s.dilation, s.transposed,
                                  s.output_padding, groups, mask);
}

Tensor sum_but_channels(const Tensor& g, bool batched) {
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < g.dim() - batched; ++d)
    if (d != 1) dims.push_back(d + batched);
  return g.sum(dims);
}

// Whether the kernel sees one pixel at a time: then convolution is a product of matrices for each pixel.
bool is_product(at::IntArrayRef weight, const Settings& s) {
  const auto all = [](const Ints& v, int64_t n) {
    return std::all_of(v.begin(), v.end(), [&](int64_t i) { return i == n; });
  };
  return !s.transposed && s.groups == 1 && all(s.stride, 1) && all(s.padding, 0) &&
         c10::multiply_integers(weight.slice(2)) == 1;
}

// g [B, n, out, …], x [B, n, in, …]: over the pixels of all items. There groups would do little work each.
Tensor weight_gradient_of_product(const Tensor& g, const Tensor& x, at::IntArrayRef weight) {
  // Without a copy where there is one item an example.
  const auto pixels = [](const Tensor& t) { return t.flatten(3).transpose(1, 2).flatten(2); };
  Sizes sizes{g.size(0)};
  sizes.append(weight.begin(), weight.end());
  return at::bmm(pixels(g), pixels(x).transpose(1, 2)).view(sizes);
}

void convolution_backward_vmap(VmapFrame& f) {
  if (f.batch_size == 0) return run_loop(f.level, f, false);  // there are no zero groups
  for (size_t i : {0, 1, 2}) f.to_front(i, false);
  const Settings s = settings_at(f.stack, 4);
  const auto list = f.stack[10].toBoolList();
  const std::array<bool, 3> mask{list[0], list[1], list[2]};
  const Tensor g = f.tensor(0), x = f.tensor(1), w = f.tensor(2);
  const int64_t batch = f.batch_size;
  Tensor dx, dw, db;
  const bool shared_weight = !f.batched(2);
  const auto expanded = [&](size_t i) {
    const Tensor t = f.tensor(i);
    if (f.batched(i)) return t;
    Sizes sizes{batch};
    sizes.append(t.sizes().begin(), t.sizes().end());
    return t.unsqueeze(0).expand(sizes);
  };
  if (mask[0]) {
    if (shared_weight) {
      // Only the shape of the input matters for its own gradient.
      const Tensor items = expanded(1).flatten(0, 1);
      dx = items_to_batch(std::get<0>(backward(expanded(0).flatten(0, 1), items, w, s, s.groups, {true, false, false})),
                          batch, items.size(0) / batch);
    } else {
      dx = channels_to_batch(std::get<0>(backward(batch_to_channels(expanded(0)), batch_to_channels(expanded(1)),
                                                  w.flatten(0, 1), s, batch * s.groups, {true, false, false})),
                             batch);
    }
  }
  if (mask[1]) {
    // Per-example gradients of the weight, whatever the weight itself is.
    Sizes weight(w.sizes().slice(f.batched(2)));
    const Tensor gs = expanded(0), xs = expanded(1);
    if (is_product(weight, s)) {
      dw = weight_gradient_of_product(gs, xs, weight);
    } else {
      // Only the weight's shape matters for its own gradient.
      const int64_t out = weight[0];
      weight[0] *= batch;
      dw = std::get<1>(backward(batch_to_channels(gs), batch_to_channels(xs), at::empty(weight, w.options()), s,
                                batch * s.groups, {false, true, false}))
               .unflatten(0, {batch, out});
    }
  }
  if (mask[2]) db = sum_but_channels(expanded(0), true);
  f.stack.clear();
  f.stack.emplace_back(dx);
  f.stack.emplace_back(dw);
  f.stack.emplace_back(db);
  f.out_dims.assign(3, 0);
}

// The kernel for transposed convolution asks for a result, that for groups gives an empty one.
void demand_room(const Example& e) {
  const auto at = [&](size_t arg, int64_t d) {
    const auto list = e[arg].toIntVector();
    return list[list.size() == 1 ? 0 : static_cast<size_t>(d)];
  };
  for (int64_t d = 0; d < e.dim(1) - 2; ++d) {
    const int64_t size =
        (e.size(0, d + 2) - 1) * at(3, d) - 2 * at(4, d) + at(5, d) * (e.size(1, d + 2) - 1) + at(7, d) + 1;
    TORCH_CHECK(size >= 1, "Calculated output size per channel is ", size, " along dimension ", d,
                ". Output size is too small");
  }
}

}  // namespace

void convolution() {
  op<at::_ops::convolution>()
      .small(small::convolution)
      .depends(Depends::on_window)
      .vmap(convolution_vmap)
      .vjp<0, 1, 2>([](Ct<0> ct, const Tensor& x, const Tensor& w, Skip, const Ints& stride, const Ints& padding,
                       const Ints& dilation, bool transposed, const Ints& output_padding, int64_t groups,
                       Wants<0> wants_x, Wants<1> wants_w, Wants<2> wants_b) {
        return backward(*ct, x, w, {stride, padding, dilation, transposed, output_padding, groups}, groups,
                        {wants_x.wanted, wants_w.wanted, wants_b.wanted});
      })
      .jvp<0, 1, 2>([](Tan<0> dx, Tan<1> dw, Tan<2> db, const Tensor& x, const Tensor& w, Skip, const Ints& stride,
                       const Ints& padding, const Ints& dilation, bool transposed, const Ints& output_padding,
                       int64_t groups, OutShape<0> y) {
        const Settings s{stride, padding, dilation, transposed, output_padding, groups};
        Tensor dy;
        if (dx->defined()) dy = call(*dx, w, *db, s, groups);
        if (dw->defined()) {
          const Tensor part = call(x, *dw, dy.defined() ? Tensor() : *db, s, groups);
          dy = dy.defined() ? dy + part : part;
        }
        if (!dy.defined()) dy = per_channel(*db, y.dim() - 2).expand(y.sizes);
        return dy;
      });

  // Each result is linear in the cotangent; the first two are also linear in the weight and in the input.
  op<at::_ops::convolution_backward>()
      .small(small::convolution_backward)
      .vmap(convolution_backward_vmap)
      .vjp<0, 1, 2>([](Cts cts, const Tensor& g, const Tensor& x, const Tensor& w, Skip, const Ints& stride,
                       const Ints& padding, const Ints& dilation, bool transposed, const Ints& output_padding,
                       int64_t groups, Wants<0> wants_g, Wants<1> wants_x, Wants<2> wants_w) {
        const Settings s{stride, padding, dilation, transposed, output_padding, groups};
        const Tensor &ddx = cts[0], &ddw = cts[1], &ddb = cts[2];
        Tensor dg, dx, dw;
        if (wants_g.wanted) {
          if (ddx.defined()) dg = call(ddx, w, ddb, s, groups);
          if (ddw.defined()) {
            const Tensor part = call(x, ddw, dg.defined() ? Tensor() : ddb, s, groups);
            dg = dg.defined() ? dg + part : part;
          }
          if (!dg.defined() && ddb.defined()) dg = per_channel(ddb, g.dim() - 2).expand_as(g);
        }
        if (wants_w.wanted && ddx.defined()) dw = std::get<1>(backward(g, ddx, w, s, groups, {false, true, false}));
        if (wants_x.wanted && ddw.defined()) dx = std::get<0>(backward(g, x, ddw, s, groups, {true, false, false}));
        return std::tuple(dg, dx, dw);
      })
      .jvp<0, 1, 2>([](Tan<0> dg, Tan<1> dx, Tan<2> dw, const Tensor& g, const Tensor& x, const Tensor& w, Skip,
                       const Ints& stride, const Ints& padding, const Ints& dilation, bool transposed,
                       const Ints& output_padding, int64_t groups, const std::vector<bool>& mask) {
        const Settings s{stride, padding, dilation, transposed, output_padding, groups};
        Tensor tx, tw, tb;
        const auto add = [](Tensor& sum, const Tensor& t) { sum = sum.defined() ? sum + t : t; };
        if (dg->defined()) {
          auto [a, b, c] = backward(*dg, x, w, s, groups, {mask[0], mask[1], mask[2]});
          tx = a, tw = b, tb = c;
        }
        if (dx->defined() && mask[1]) add(tw, std::get<1>(backward(g, *dx, w, s, groups, {false, true, false})));
        if (dw->defined() && mask[0]) add(tx, std::get<0>(backward(g, x, *dw, s, groups, {true, false, false})));
        return std::tuple(tx, tw, tb);
      });

  // The kernel by itself, as torch.nn.functional's older spelling calls it.
  op<at::_ops::_slow_conv2d_forward>().decomposes(
      [](const Tensor& x, const Tensor& w, Skip, const Tensor& bias, const Ints& stride, const Ints& padding) {
        return call(x, w, bias, {stride, padding, {1, 1}, false, {0, 0}, 1}, 1);
      });
  op<at::_ops::_slow_conv2d_backward_output_mask>().decomposes([](const Tensor& g, const Tensor& x, const Tensor& w,
                                                                  Skip, const Ints& stride, const Ints& padding,
                                                                  const std::vector<bool>& mask) {
    const Settings s{stride, padding, {1, 1}, false, {0, 0}, 1};
    return backward(g, x, w, s, 1, {mask[0], mask[1], mask[2]});
  });

  // Time first, channels last.
  op<at::_ops::conv_tbc>().decomposes([](const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t pad) {
    return at::conv1d(x.permute({1, 2, 0}), weight.permute({2, 1, 0}), bias, 1, pad).permute({2, 0, 1});
  });
  // The bias is added afterwards where it or the weight is each example's own, and the kernel that takes groups of
  // channels is another one.
  demands<at::_ops::convolution>([](const Example& e) {
    const int64_t rank = e.dim(1);
    TORCH_CHECK(rank >= 3 && e.dim(0) == rank, "Expected ", rank, "-dimensional input for ", rank,
                "-dimensional weight ", at::IntArrayRef(e.sizes(1)), ", but got ", e.dim(0),
                "-dimensional input of size ", at::IntArrayRef(e.sizes(0)), " instead");
    if (e[6].toBool()) demand_room(e);
    if (!e.has(2)) return;
    const int64_t out = e[6].toBool() ? e.size(1, 1) * e[8].toInt() : e.size(1, 0);
    TORCH_CHECK(e.dim(2) == 1 && e.size(2, 0) == out, "Given transposed=", e[6].toBool(), ", weight of size ",
                at::IntArrayRef(e.sizes(1)), ", expected bias to be 1-dimensional with ", out,
                " elements, but got bias of size ", at::IntArrayRef(e.sizes(2)), " instead");
    if (e[6].toBool() && rank == 5) demand_same_dtype(e, {1, 2});
    TORCH_CHECK(!e[6].toBool() || at::canCast(e.dtype(2), e.dtype(1)), "result type ", e.dtype(2),
                " can't be cast to the desired output type ", e.dtype(1));
  });
}

}  // namespace tower::rules
