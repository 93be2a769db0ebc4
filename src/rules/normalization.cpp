// Batch, layer and group normalization. Layer normalization has rules, which call its kernels; the others are
// decomposed into it, reductions and pointwise operators. Statistics are computed as the kernels do, in the dtype of
// the input.
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <algorithm>

#include "core/bind.h"
#include "core/broadcast.h"
#include "frontend/mutation.h"
#include "records/demands.h"
#include "records/op.h"
#include "rules/folds.h"
#include "rules/losses.h"
#include "rules/registry.h"
#include "rules/small_norms.h"

namespace tower::rules {
namespace {

Tensor scaled(Tensor x, const Tensor& weight, const Tensor& bias) {
  if (weight.defined()) x = x * weight;
  return bias.defined() ? x + bias : x;
}

// Autocast gives half precision inputs and single precision weights: then the kernels compute in the weights'
// precision, and their result has the input's.
Tensor in_precision_of(const Tensor& weight, const Tensor& x) {
  return weight.defined() && weight.scalar_type() != x.scalar_type() ? x.to(weight.scalar_type()) : x;
}

// A tensor of one value per channel, shaped to broadcast over [n, c, …] of `dim` dimensions.
Tensor per_channel(const Tensor& t, int64_t dim) {
  if (!t.defined()) return t;
  Ints shape(static_cast<size_t>(dim), 1);
  shape[1] = t.numel();
  return t.reshape(shape);
}

Ints all_but_channels(int64_t dim) {
  Ints dims{0};
  for (int64_t d = 2; d < dim; ++d) dims.push_back(d);
  return dims;
}

// Statistics of an input over its last dimensions. Of no rows the kernel that LibTorch composes, for devices without
// one of their own, gives statistics of the input's shape.
Tensor statistics(const Tensor& t, Ints input, size_t over) {
  if (t.numel() != 0) return t;
  std::fill(input.end() - static_cast<std::ptrdiff_t>(over), input.end(), 1);
  return t.reshape(input);
}

struct BatchNorm {
  Tensor y, mean, rstd;  // statistics have one value per channel
};

// The numbers of each channel in a row; and back, lying as `like` does.
Tensor rows_of_channels(const Tensor& x) { return x.transpose(0, 1).flatten(1); }
Tensor from_rows_of_channels(const Tensor& rows, const Tensor& like) {
  return rows.view(like.transpose(0, 1).sizes()).transpose(0, 1).contiguous(like.suggest_memory_format());
}

// The layer norm of each channel's numbers, whose kernels are several times as fast as batch norm's and var_mean.
BatchNorm batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const Tensor rows = rows_of_channels(in_precision_of(weight, x));
  const auto [normalized, mean, rstd] = at::native_layer_norm(rows, {rows.size(1)}, std::nullopt, std::nullopt, eps);
  const Tensor y =
      scaled(from_rows_of_channels(normalized, x), per_channel(weight, x.dim()), per_channel(bias, x.dim()));
  const auto channels = [&](const Tensor& t) { return statistics(t, rows.sizes().vec(), 1).flatten(); };
  return {y.to(x.scalar_type()), channels(mean), channels(rstd)};
}

// The same as one operator, which has derivatives of its own.
BatchNorm batch_norm_of_batch(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const auto [y, mean, rstd] = at::_native_batch_norm_legit(x, given(weight), given(bias), true, 0, eps);
  return {y, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_by_running_statistics(const Tensor& x, const Tensor& weight,
                                                                    const Tensor& bias, const Tensor& mean,
                                                                    const Tensor& variance, double eps) {
  const Tensor rstd = at::rsqrt(variance + eps);
  const Tensor y = scaled((x - per_channel(mean, x.dim())) * per_channel(rstd, x.dim()), per_channel(weight, x.dim()),
                          per_channel(bias, x.dim()))
                       .to(x.scalar_type());
  const Tensor none = at::empty({0}, x.options());
  return {y, none, none};
}

Tensor updated(const Tensor& running, const Tensor& now, double momentum) {
  return running * (1 - momentum) + now.detach() * momentum;
}

// Before any buffer is written to: each example has statistics of its own.
void check_buffer(const Tensor& running, const Tensor& now) {
  static const Operator& op = *Operator::find("aten::native_batch_norm", "");
  if (running.defined())
    frontend::check_holds(op, running, now,
                          "These are running statistics of batch normalization in training. Map them together with "
                          "the examples (buffers given to functional_call), use batch statistics alone "
                          "(without track_running_stats), or evaluation mode.");
}

// What the running variance takes up. Not from 1 / rstd² - eps, which has no digits where eps is the larger.
Tensor unbiased_variance(const Tensor& x, const Tensor& mean) {
  const Tensor centered = x.detach() - per_channel(mean.detach(), x.dim());
  const double count = static_cast<double>(x.numel()) / static_cast<double>(x.size(1));
  return at::linalg_vector_norm(centered, 2, all_but_channels(x.dim())).square() / (count - 1);
}

// The result, the batch's statistics, and the running ones after it.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> batch_norm_in_training(const Tensor& x, const Tensor& weight,
                                                                          const Tensor& bias, const Tensor& mean,
                                                                          const Tensor& variance, double momentum,
                                                                          double eps) {
  const BatchNorm n = batch_norm_of_batch(x, weight, bias, eps);
  return {n.y, n.mean, n.rstd, updated(mean, n.mean, momentum),
          updated(variance, unbiased_variance(x, n.mean), momentum)};
}

Ints last(int64_t count, int64_t dim) {
  Ints dims;
  for (int64_t d = dim - count; d < dim; ++d) dims.push_back(d);
  return dims;
}

// The gradient through x ↦ (x - mean) rstd with both from x itself over `dims`, for g = the gradient of the result.
Tensor normalized_backward(const Tensor& g, const Tensor& normalized, const Tensor& rstd, const Ints& dims) {
  return rstd * (g - g.mean(dims, true) - normalized * (g * normalized).mean(dims, true));
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor& g, const Tensor& x, const Tensor& weight,
                                                       const Tensor& running_mean, const Tensor& running_var,
                                                       const Tensor& save_mean, const Tensor& save_rstd, bool training,
                                                       double eps, const std::vector<bool>& mask) {
  const int64_t dim = x.dim();
  const Ints dims = all_but_channels(dim);
  const Tensor mean = per_channel(training ? save_mean : running_mean, dim);
  const Tensor rstd = per_channel(training ? save_rstd : at::rsqrt(running_var + eps), dim);
  const Tensor normalized = (x - mean) * rstd;
  const Tensor weighted = weight.defined() ? g * per_channel(weight, dim) : g;
  Tensor dx, dw, db;
  if (mask[0]) dx = training ? normalized_backward(weighted, normalized, rstd, dims) : weighted * rstd;
  if (mask[1]) dw = (g * normalized).sum(dims);
  if (mask[2]) db = g.sum(dims);
  return {dx, dw, db};
}

// ---- layer normalization ----

Ints all_but_last(int64_t count, int64_t dim) {
  Ints dims;
  for (int64_t d = 0; d < dim - count; ++d) dims.push_back(d);
  return dims;
}

struct LayerNormGradients {
  Tensor x, weight, bias;
};

LayerNormGradients layer_norm_backward_formula(const Tensor& g, const Tensor& x, const Ints& shape, const Tensor& mean,
                                               const Tensor& rstd, const Tensor& weight, const Tensor& bias,
                                               std::array<bool, 3> mask) {
  const auto count = static_cast<int64_t>(shape.size());
  const Ints outer = all_but_last(count, x.dim());
  const Tensor normalized = (x - mean) * rstd;
  const auto reduce = [&](const Tensor& t) { return outer.empty() ? t : t.sum(outer); };
  LayerNormGradients d;
  if (mask[0]) d.x = normalized_backward(weight.defined() ? g * weight : g, normalized, rstd, last(count, x.dim()));
  if (mask[1] && weight.defined()) d.weight = reduce(g * normalized);
  if (mask[2] && bias.defined()) d.bias = reduce(g);
  return d;
}

LayerNormGradients layer_norm_backward(const Tensor& g, const Tensor& x, const Ints& shape, const Tensor& mean,
                                       const Tensor& rstd, const Tensor& weight, const Tensor& bias,
                                       std::array<bool, 3> mask) {
  // LibTorch's forward mode has no rule for the kernel.
  for (const Tensor& t : {g, x, mean, rstd, weight})
    if (t.defined() && is_libtorch_dual(t))
      return layer_norm_backward_formula(g, x, shape, mean, rstd, weight, bias, mask);
  auto [dx, dw, db] = at::native_layer_norm_backward(g, x, shape, mean, rstd, given(weight), given(bias), mask);
  return {dx, dw, db};
}

// Adds what comes through the statistics, for cotangents shaped like them.
void add_through_statistics(Tensor& dx, const Tensor& dmean, const Tensor& drstd, const Tensor& x, const Tensor& mean,
                            const Tensor& rstd) {
  const double count = static_cast<double>(x.numel()) / static_cast<double>(mean.numel());
  const auto add = [&](const Tensor& more) {
    const Tensor gradient = more.expand(x.sizes()).to(x.scalar_type());
    dx = dx.defined() ? dx + gradient : gradient.contiguous(x.suggest_memory_format());
  };
  if (dmean.defined()) add(dmean / count);
  if (drstd.defined()) add(drstd * rstd.square() * (x - mean) * rstd / -count);
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_vjp(Cts cts, const Tensor& x, const Ints& shape, const Tensor& weight,
                                                  const Tensor& bias, Skip, Out<1> mean, Out<2> rstd, Wants<0> wants_x,
                                                  Wants<2> wants_weight, Wants<3> wants_bias) {
  LayerNormGradients d;
  if (cts[0].defined())
    d = layer_norm_backward(cts[0], x, shape, *mean, *rstd, weight, bias,
                            {wants_x.wanted, wants_weight.wanted, wants_bias.wanted});
  if (wants_x) add_through_statistics(d.x, cts[1], cts[2], x, *mean, *rstd);
  return {d.x, d.weight, d.bias};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_vjp(Cts cts, const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                  Skip, Skip, Skip, Out<1> mean, Out<2> rstd, Wants<0> wants_x,
                                                  Wants<1> wants_weight, Wants<2> wants_bias) {
  const auto channels = [&](const Tensor& t) { return per_channel(t, x.dim()); };
  const Ints dims = all_but_channels(x.dim());
  Tensor dx, dw, db;
  if (const Tensor& g = cts[0]; g.defined()) {
    if (wants_x) {
      const Tensor rows = rows_of_channels(weight.defined() ? g * channels(weight) : g);
      const auto d = layer_norm_backward(rows, rows_of_channels(x).to(rows.scalar_type()), {rows.size(1)},
                                         mean->unsqueeze(1), rstd->unsqueeze(1), {}, {}, {true, false, false});
      dx = from_rows_of_channels(d.x, x).to(x.scalar_type());
    }
    if (wants_weight) dw = (g * ((x - channels(*mean)) * channels(*rstd))).sum(dims);
    if (wants_bias) db = g.sum(dims).to(bias.scalar_type());
  }
  if (wants_x) add_through_statistics(dx, channels(cts[1]), channels(cts[2]), x, channels(*mean), channels(*rstd));
  return {dx, dw, db};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_jvp(Tan<0> dx, Tan<2> dweight, Tan<3> dbias, const Tensor& x,
                                                  const Ints& shape, const Tensor& weight, Skip, Skip, OutShape<0> out,
                                                  Out<1> mean, Out<2> rstd) {
  const Ints dims = last(static_cast<int64_t>(shape.size()), x.dim());
  Tensor dy, dmean, drstd;
  const auto add = [&](const Tensor& term) { dy = dy.defined() ? dy + term : term; };
  if (dx->defined() || dweight->defined()) {
    const Tensor normalized = (x - *mean) * *rstd;
    if (dx->defined()) {
      dmean = dx->mean(dims, true);
      const Tensor slope = (*dx * normalized).mean(dims, true);
      drstd = -rstd->square() * slope;
      add(scaled((*dx - dmean - normalized * slope) * *rstd, weight, {}));
    }
    if (dweight->defined()) add(normalized * *dweight);
  }
  if (dbias->defined()) add(*dbias);
  return {dy.expand(out.sizes).to(out.dtype), dmean, drstd};
}

// The kernel treats leading dimensions alike. Weights of every example's own come after it.
void layer_norm_vmap(VmapFrame& f) {
  const auto shape = f.stack[1].toIntVector();
  f.to_front(0, true);
  Tensor own[2];
  for (const uint8_t i : {2, 3}) {
    if (!f.is_tensor(i) || !(f.batched(2) || f.batched(3))) continue;
    f.to_front(i, false);
    Tensor t = f.tensor(i);
    TORCH_CHECK(t.sizes().slice(f.batched(i)) == at::IntArrayRef(shape),
                "native_layer_norm: weight and bias must have the shape ", at::IntArrayRef(shape), ", not ",
                t.sizes().slice(f.batched(i)));
    if (f.batched(i))
      while (t.dim() < f.tensor(0).dim()) t = t.unsqueeze(1);
    own[i - 2] = t;
    f.stack[i] = IValue();
  }
  const Ints input = f.tensor(0).sizes().vec();
  TORCH_CHECK(input.size() > shape.size(),
              "native_layer_norm: the input has fewer dimensions than "
              "normalized_shape ",
              at::IntArrayRef(shape));
  f.call();
  f.stack[0] = scaled(f.tensor(0), own[0], own[1]).to(f.tensor(0).scalar_type());
  for (const size_t i : {1, 2}) f.stack[i] = statistics(f.tensor(i), input, shape.size());
  f.out_dims.assign(3, 0);
}

// The kernel sums the gradients of weight and bias over all examples, and reads statistics whatever their strides.
void layer_norm_backward_vmap(VmapFrame& f) {
  for (const size_t i : {0, 1, 3, 4}) f.to_front(i, true);
  for (const size_t i : {3, 4}) f.stack[i] = f.tensor(i).contiguous();
  for (const size_t i : {5, 6})
    if (f.is_tensor(i)) f.to_front(i, false);
  const auto tensor = [&](size_t i) { return f.is_tensor(i) ? f.tensor(i) : Tensor(); };
  const Tensor g = f.tensor(0), x = f.tensor(1), mean = f.tensor(3), rstd = f.tensor(4), weight = tensor(5),
               bias = tensor(6);
  const Ints shape = f.stack[2].toIntVector();
  const auto mask = f.stack[7].toBoolList();
  Ints outer = all_but_last(static_cast<int64_t>(shape.size()), x.dim());
  outer.erase(outer.begin());  // the examples
  const auto reduce = [&](const Tensor& t, const Tensor& like) {
    return (outer.empty() ? t : t.sum(outer)).to(like.scalar_type());
  };
  LayerNormGradients d;
  if (mask[0]) {
    const std::array<bool, 3> only_x{true, false, false};
    if (weight.defined() && f.batched(5)) {
      Tensor own = weight;
      while (own.dim() < x.dim()) own = own.unsqueeze(1);
      d = layer_norm_backward((g * own).to(x.scalar_type()), x, shape, mean, rstd, {}, {}, only_x);
    } else {
      d = layer_norm_backward(g, x, shape, mean, rstd, weight, {}, only_x);
    }
  }
  if (mask[1] && weight.defined()) d.weight = reduce(g * ((x - mean) * rstd), weight);
  if (mask[2] && bias.defined()) d.bias = reduce(g, bias);
  f.stack.clear();
  for (const Tensor& t : {d.x, d.weight, d.bias}) f.stack.emplace_back(t);
  f.out_dims.assign(3, 0);
}

// ---- what the kernels demand ----

// Parameters have the dtype of the input, or single precision beside half.
void demand_normal_dtypes(const Example& e, std::initializer_list<size_t> parameters) {
  demand_floating(e, 0);
  for (const size_t i : parameters)
    TORCH_CHECK(
        !e.has(i) || e.dtype(i) == e.dtype(0) || (e.dtype(i) == at::kFloat && at::isReducedFloatingType(e.dtype(0))),
        "mixed dtype (CPU): all inputs must share same datatype, but got ", e.dtype(0), " and '",
        e.op().argument_name(i), "' of ", e.dtype(i));
}

// One number for each channel. The kernels read as many of each.
void demand_batch_norm(const Example& e, std::initializer_list<size_t> parameters, bool training) {
  demand_normal_dtypes(e, parameters);
  TORCH_CHECK(!training || e.numel(0) != 0,
              "input tensor must have at least one element, but got input_sizes = ", at::IntArrayRef(e.sizes(0)));
  for (const size_t i : parameters)
    TORCH_CHECK(!e.has(i) || (e.numel(i) == e.size(0, 1) && (i <= 2 || e.dim(i) == 1)), "'", e.op().argument_name(i),
                "' should contain ", e.size(0, 1), " elements, one for each channel, not ",
                at::IntArrayRef(e.sizes(i)));
}

}  // namespace

void normalization() {
  op<at::_ops::native_layer_norm>()
      .maps_rows(over_last(1), folds::layer_norm)
      .depends(Depends::on_last_dims)
      .vmap(layer_norm_vmap)
      .vjp<0, 2, 3>(layer_norm_vjp)
      .jvp<0, 2, 3>(layer_norm_jvp);
  op<at::_ops::native_layer_norm_backward>()
      .small(small::layer_norm_backward)
      .vmap(layer_norm_backward_vmap)
      .decomposes([](const Tensor& g, const Tensor& x, const Ints& shape, const Tensor& mean, const Tensor& rstd,
                     const Tensor& weight, const Tensor& bias, const std::vector<bool>& mask) {
        const auto d = layer_norm_backward_formula(g, x, shape, mean, rstd, weight, bias, {mask[0], mask[1], mask[2]});
        return std::tuple(d.x, d.weight, d.bias);
      });

  op<at::_ops::native_group_norm>().decomposes([](const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t n,
                                                  int64_t c, int64_t inner, int64_t groups, double eps) {
    const Tensor grouped = in_precision_of(weight, x).reshape({n, groups, c / groups * inner});
    const auto [by_group, mean, rstd] =
        at::native_layer_norm(grouped, {c / groups * inner}, std::nullopt, std::nullopt, eps);
    // The input may have any shape of so many elements.
    const Tensor normalized = by_group.reshape({n, c, inner});
    const Tensor y = scaled(normalized, per_channel(weight, 3), per_channel(bias, 3)).reshape(x.sizes());
    const auto groups_of = [&](const Tensor& t) { return statistics(t, grouped.sizes().vec(), 1).squeeze(-1); };
    return std::tuple(y.to(x.scalar_type()), groups_of(mean), groups_of(rstd));
  });

  op<at::_ops::native_group_norm_backward>().decomposes([](const Tensor& g, const Tensor& x, const Tensor& mean,
                                                           const Tensor& rstd, const Tensor& weight, int64_t n,
                                                           int64_t c, int64_t inner, int64_t groups,
                                                           const std::vector<bool>& mask) {
    const Ints by_group{n, groups, c / groups * inner};
    const Tensor normalized = ((x.reshape(by_group) - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)).reshape({n, c, inner});
    const Tensor cotangent = g.reshape({n, c, inner});
    Tensor dx, dw, db;
    if (mask[0]) {
      const Tensor weighted = weight.defined() ? cotangent * weight.view({1, c, 1}) : cotangent;
      dx = normalized_backward(weighted.reshape(by_group), normalized.reshape(by_group), rstd.unsqueeze(-1), {2})
               .reshape(x.sizes());
    }
    if (mask[1]) dw = (cotangent * normalized).sum(Ints{0, 2});
    if (mask[2]) db = cotangent.sum(Ints{0, 2});
    return std::tuple(dx, dw, db);
  });

  // w = v g / |v|, with one norm for each index of `dim`.
  op<at::_ops::_weight_norm_interface>().decomposes([](const Tensor& v, const Tensor& g, int64_t dim) {
    const bool reduced = v.scalar_type() == at::kHalf || v.scalar_type() == at::kBFloat16;
    const Tensor wide = reduced ? v.to(at::kFloat) : v;
    const Tensor norm = at::norm_except_dim(wide, 2, dim);
    return std::tuple((wide * (g / norm)).to(v.scalar_type()), norm);
  });

  op<at::_ops::_weight_norm_interface_backward>().decomposes(
      [](const Tensor& grad, const Tensor& v, const Tensor& g, const Tensor& norm, int64_t dim) {
        TORCH_CHECK(dim == 0 || dim == v.dim() - 1, "fused kernels can only be applied for first or last dim");
        const Tensor dg = summed_to(grad * v, norm.sizes()) / norm;
        const Tensor dv = g / norm * (grad - v * (dg / norm));
        return std::tuple(dv.to(v.scalar_type()), dg.to(g.scalar_type()));
      });

  // LibTorch's native_batch_norm writes to the running statistics without saying so in its schema. Here that is an
  // in-place write like any other: no gradient flows into it, and a batched value into an unbatched buffer is refused.
  op<at::_ops::native_batch_norm>().decomposes([](const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                  const Tensor& running_mean, const Tensor& running_var, bool training,
                                                  double momentum, double eps) {
    if (!training) return batch_norm_by_running_statistics(x, weight, bias, running_mean, running_var, eps);
    const BatchNorm n = batch_norm_of_batch(x, weight, bias, eps);
    Tensor mean, variance;
    if (running_mean.defined()) mean = updated(running_mean, n.mean, momentum);
    if (running_var.defined()) variance = updated(running_var, unbiased_variance(x, n.mean), momentum);
    check_buffer(running_mean, mean);
    check_buffer(running_var, variance);
    if (mean.defined()) Tensor(running_mean).copy_(mean);
    if (variance.defined()) Tensor(running_var).copy_(variance);
    return std::tuple(n.y, n.mean, n.rstd);
  });
  op<at::_ops::_native_batch_norm_legit_functional>().decomposes(
      [](const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
         const Tensor& running_var, bool training, double momentum, double eps) {
        if (training) return batch_norm_in_training(x, weight, bias, running_mean, running_var, momentum, eps);
        auto [y, mean, rstd] = batch_norm_by_running_statistics(x, weight, bias, running_mean, running_var, eps);
        return std::tuple(y, mean, rstd, running_mean, running_var);
      });
  op<at::_ops::_native_batch_norm_legit_no_training>().decomposes(
      [](const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
         const Tensor& running_var, double,
         double eps) { return batch_norm_by_running_statistics(x, weight, bias, running_mean, running_var, eps); });
  // The fourth result is memory that kernels of other devices keep for the derivative.
  op<at::_ops::_batch_norm_with_update_functional>().decomposes(
      [](const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
         const Tensor& running_var, double momentum, double eps) {
        auto [y, mean, rstd, new_mean, new_var] =
            batch_norm_in_training(x, weight, bias, running_mean, running_var, momentum, eps);
        return std::tuple(y, mean, rstd, at::empty({0}, x.options().dtype(at::kByte)), new_mean, new_var);
      });
  op<at::_ops::_batch_norm_no_update>().decomposes([](const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                      const Tensor& running_mean, const Tensor& running_var, double,
                                                      double eps) {
    auto [y, mean, rstd] = batch_norm_by_running_statistics(x, weight, bias, running_mean, running_var, eps);
    return std::tuple(y, mean, rstd, at::empty({0}, x.options().dtype(at::kByte)));
  });
  op<at::_ops::_native_batch_norm_legit_no_stats>()
      .vjp<0, 1, 2>(batch_norm_vjp)
      .decomposes([](const Tensor& x, const Tensor& weight, const Tensor& bias, bool, double, double eps) {
        const BatchNorm n = batch_norm(x, weight, bias, eps);
        return std::tuple(n.y, n.mean, n.rstd);
      });

  op<at::_ops::native_batch_norm_backward>().decomposes(batch_norm_backward);
  op<at::_ops::batch_norm_backward>().decomposes([](const Tensor& g, const Tensor& x, const Tensor& weight,
                                                    const Tensor& running_mean, const Tensor& running_var,
                                                    const Tensor& save_mean, const Tensor& save_rstd, bool training,
                                                    double eps, const std::vector<bool>& mask, const Tensor&) {
    return batch_norm_backward(g, x, weight, running_mean, running_var, save_mean, save_rstd, training, eps, mask);
  });
  demands<at::_ops::native_layer_norm>([](const Example& e) {
    const auto shape = e[1].toIntVector();
    TORCH_CHECK(!shape.empty(), "Expected normalized_shape to be at least 1-dimensional");
    demand_normal_dtypes(e, {2, 3});
  });
  demands<at::_ops::native_group_norm>([](const Example& e) {
    const int64_t channels = e[4].toInt(), groups = e[6].toInt();
    TORCH_CHECK(groups > 0 && channels % groups == 0,
                "Expected number of channels in input to be divisible by num_groups, but got input of shape ",
                at::IntArrayRef(e.sizes(0)), " and num_groups=", groups);
    for (const size_t i : {1, 2})
      TORCH_CHECK(!e.has(i) || (e.dim(i) == 1 && e.size(i, 0) == channels), "Expected ", e.op().argument_name(i),
                  " to be a vector of size equal to the number of channels in input, but got ", e.op().argument_name(i),
                  " of shape ", at::IntArrayRef(e.sizes(i)), " and ", channels, " channels");
    demand_normal_dtypes(e, {1, 2});
  });
  demands<at::_ops::native_batch_norm>([](const Example& e) { demand_batch_norm(e, {1, 2, 3, 4}, e[5].toBool()); });
  demands<at::_ops::_native_batch_norm_legit_functional>([](const Example& e) {
    demand_batch_norm(e, {1, 2, 3, 4}, e[5].toBool());
  });
  demands<at::_ops::_native_batch_norm_legit_no_training>([](const Example& e) {
    demand_batch_norm(e, {1, 2, 3, 4}, false);
  });
  demands<at::_ops::_batch_norm_with_update_functional>([](const Example& e) {
    demand_batch_norm(e, {1, 2, 3, 4}, true);
  });
  demands<at::_ops::_batch_norm_no_update>([](const Example& e) { demand_batch_norm(e, {1, 2, 3, 4}, false); });
  demands<at::_ops::_native_batch_norm_legit_no_stats>([](const Example& e) { demand_batch_norm(e, {1, 2}, true); });
}

}  // namespace tower::rules
