// Losses over classes: negative log likelihood and margins. A target is the number of a class.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "records/masks.h"
#include "records/op.h"
#include "rules/kernel_demands.h"
#include "rules/losses.h"
#include "rules/registry.h"
#include "rules/small_classes.h"

namespace tower::rules {
namespace {

constexpr int64_t kNone = at::Reduction::None;
using Pair = std::tuple<Tensor, Tensor>;

// ---- negative log likelihood: -w[y] x[y], where y is not the ignored class ----
//
// The classes are dimension 1 of x, or dimension 0 if x is a single item. `Kernels` are those for items with or without
// further dimensions (pixels).

struct Nll {
  static Pair forward(const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction, int64_t ignore) {
    return at::nll_loss_forward(x, y, given(weight), reduction, ignore);
  }
  static Tensor backward(const Tensor& g, const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction,
                         int64_t ignore, const Tensor& total) {
    return at::nll_loss_backward(g, x, y, given(weight), reduction, ignore, total);
  }
};
struct Nll2d {
  static Pair forward(const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction, int64_t ignore) {
    return at::nll_loss2d_forward(x, y, given(weight), reduction, ignore);
  }
  static Tensor backward(const Tensor& g, const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction,
                         int64_t ignore, const Tensor& total) {
    return at::nll_loss2d_backward(g, x, y, given(weight), reduction, ignore, total);
  }
};

// The class, and any class where it is ignored.
Tensor safe_class(const Tensor& y, int64_t ignore) { return y.to(at::kLong).masked_fill(y == ignore, 0); }

// Each example as a row.
Tensor flat(const Tensor& t) { return t.dim() == 1 ? t.unsqueeze(1) : t.flatten(1); }

// The weight of each target's class. A batch of weights [B, C] goes with targets [B, …].
Tensor class_weights(const Tensor& weight, const Tensor& y, int64_t ignore, at::TensorOptions options) {
  if (!weight.defined()) return (y != ignore).to(options);
  const Tensor classes = safe_class(y, ignore);
  const Tensor w =
      weight.dim() == 1 ? at::take(weight, classes) : at::gather(weight, 1, flat(classes)).reshape(y.sizes());
  return zero_where(y == ignore, w);
}

Tensor sum_examples(const Tensor& t) { return reduce_examples(t, at::Reduction::Sum); }

template <class Kernels>
void vmap_nll_forward(VmapFrame& frame) {
  const int64_t reduction = frame.stack[3].toInt(), ignore = frame.stack[4].toInt();
  const bool single = frame.logical_dim(0) == 1;
  const bool own_weights = frame.is_tensor(2) && frame.batched(2);
  frame.to_front(0, true);
  frame.to_front(1, true);
  if (own_weights) frame.to_front(2, false);
  const Tensor x = frame.tensor(0), y = frame.tensor(1);
  const Tensor weight = frame.is_tensor(2) ? frame.tensor(2).flatten(own_weights ? 1 : 0) : Tensor();

  Tensor losses = std::get<0>(Kernels::forward(single ? x : x.flatten(0, 1), single ? y : y.flatten(0, 1),
                                               own_weights ? Tensor() : weight, kNone, ignore))
                      .reshape(y.sizes());
  if (own_weights) losses = losses * class_weights(weight, y, ignore, x.options());
  Tensor total = reduction == kNone && !single ? at::zeros({frame.batch_size}, x.options())
                                               : sum_examples(class_weights(weight, y, ignore, x.options()));
  if (reduction != kNone) losses = sum_examples(losses);
  if (reduction == at::Reduction::Mean) losses = losses / total;
  frame.stack.clear();
  frame.stack.emplace_back(std::move(losses));
  frame.stack.emplace_back(std::move(total));
  frame.out_dims.assign(2, 0);
}

template <class Kernels>
void vmap_nll_backward(VmapFrame& frame) {
  const int64_t reduction = frame.stack[4].toInt(), ignore = frame.stack[5].toInt();
  const bool single = frame.logical_dim(1) == 1;
  const bool own_weights = frame.is_tensor(3) && frame.batched(3);
  for (size_t i : {0, 1, 2, 6}) frame.to_front(i, true);
  if (own_weights) frame.to_front(3, false);
  const Tensor x = frame.tensor(1), y = frame.tensor(2), total = frame.tensor(6);
  const Tensor weight = frame.is_tensor(3) ? frame.tensor(3).flatten(own_weights ? 1 : 0) : Tensor();

  Tensor g = frame.tensor(0);
  if (reduction == at::Reduction::Mean) g = g / total;
  while (g.dim() < y.dim()) g = g.unsqueeze(-1);
  if (own_weights) g = g * class_weights(weight, y, ignore, x.options());
  g = g.expand(y.sizes());
  frame.result(Kernels::backward(single ? g : g.flatten(0, 1), single ? x : x.flatten(0, 1),
                                 single ? y : y.flatten(0, 1), own_weights ? Tensor() : weight, kNone, ignore,
                                 at::zeros({}, x.options()))
                   .reshape(x.sizes()));
}

void demand_items(const Example& e) {
  TORCH_CHECK(e.dim(0) == 1 || e.dim(0) == 2, "input tensor should be 1D or 2D");
  TORCH_CHECK(e.dim(1) <= 1, "0D or 1D target tensor expected, multi-target not supported");
  const bool single = e.dim(0) == 1 && e.dim(1) == 0;
  TORCH_CHECK(single || e.size(0, 0) == e.size(1, 0), "size mismatch (got input: ", at::IntArrayRef(e.sizes(0)),
              ", target: ", at::IntArrayRef(e.sizes(1)), ")");
  TORCH_CHECK(!e.has(2) || (e.dim(2) == 1 && e.size(2, 0) == e.size(0, -1)),
              "weight tensor should be defined either for all ", e.size(0, -1),
              " classes or no classes but got weight tensor of shape: ", at::IntArrayRef(e.sizes(2)));
  demand_kernel_dtypes(e);
}

void demand_pixels(const Example& e) {
  TORCH_CHECK(e.dim(1) == 3,
              "only batches of spatial targets supported (3D tensors) but got targets of dimension: ", e.dim(1));
  TORCH_CHECK(e.dim(0) == 4,
              "only batches of spatial inputs supported (4D tensors), but got input of dimension: ", e.dim(0));
  TORCH_CHECK(!e.has(2) || e.numel(2) == e.size(0, 1),  // whatever its dimensions
              "weight tensor should be defined either for all or no classes");
  TORCH_CHECK(e.size(0, 0) == e.size(1, 0) && e.size(0, 2) == e.size(1, 1) && e.size(0, 3) == e.size(1, 2),
              "size mismatch (got input: ", at::IntArrayRef(e.sizes(0)), ", target: ", at::IntArrayRef(e.sizes(1)),
              ")");
  demand_kernel_dtypes(e);
}

// In terms of other operators, for derivatives with respect to the weights.
Pair nll_forward(const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction, int64_t ignore) {
  const int64_t classes = x.dim() == 1 ? 0 : 1;
  const Tensor w = class_weights(weight, y, ignore, x.options());
  const Tensor chosen = x.gather(classes, safe_class(y, ignore).unsqueeze(classes)).squeeze(classes);
  const Tensor losses = zero_where(y == ignore, -w * chosen);
  const Tensor total = reduction == kNone && x.dim() > 1 ? at::zeros({}, x.options()) : w.sum();
  if (reduction == kNone) return {losses, total};
  return {reduction == at::Reduction::Mean ? losses.sum() / total : losses.sum(), total};
}

Tensor nll_backward(const Tensor& g, const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction,
                    int64_t ignore, const Tensor& total) {
  const int64_t classes = x.dim() == 1 ? 0 : 1;
  const Tensor w = class_weights(weight, y, ignore, x.options());
  // Where all are ignored, g may be infinite.
  const Tensor slope = zero_where(y == ignore, -w * (reduction == at::Reduction::Mean ? g / total : g));
  return at::zeros_like(x).scatter(classes, safe_class(y, ignore).unsqueeze(classes), slope.unsqueeze(classes));
}

template <class Kernels, class Forward, class Backward>
void negative_log_likelihood(Check check) {
  op<Forward>()
      .small(small::nll_forward)
      .vmap(vmap_nll_forward<Kernels>)
      .template inactive<1>()
      .template nondifferentiable_outputs<1>()
      .template vjp<0>([](Ct<0> ct, const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction,
                          int64_t ignore, Out<1> total) {
        return ct->defined() ? Kernels::backward(*ct, x, y, weight, reduction, ignore, *total) : Tensor();
      })
      .template jvp<0>([](Tan<0> t, Skip, const Tensor& y, const Tensor& weight, int64_t reduction, int64_t ignore) {
        return std::get<0>(Kernels::forward(*t, y, weight, reduction, ignore));
      })
      .decomposes(nll_forward);
  op<Backward>()
      .small(small::nll_backward)
      .vmap(vmap_nll_backward<Kernels>)
      .template inactive<1, 2>()
      .template vjp<0>([](Ct<0> ct, Skip, Skip, const Tensor& y, const Tensor& weight, int64_t reduction,
                          int64_t ignore) { return std::get<0>(Kernels::forward(*ct, y, weight, reduction, ignore)); })
      .template jvp<0>(
          [](Tan<0> t, Skip, const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction, int64_t ignore,
             const Tensor& total) { return Kernels::backward(*t, x, y, weight, reduction, ignore, total); })
      .decomposes(nll_backward);
  demands<Forward>(check);
}

// ---- cross entropy: the negative log likelihood of what softmax says ----

void check_cross_entropy(const Tensor& x, int64_t classes, const Tensor& weight, double smoothing) {
  TORCH_CHECK_VALUE(smoothing <= 1, "label_smoothing must be between 0.0 and 1.0. Got: ", smoothing);
  TORCH_CHECK(!weight.defined() || (weight.dim() == 1 && weight.numel() == x.size(classes)),
              "cross_entropy: weight tensor should be defined either for all ", x.size(classes),
              " classes or no classes but got weight tensor of shape: ", weight.sizes());
}

// Weights of the classes, to go with logits [N, C, …] or [C].
Tensor beside_classes(const Tensor& weight, const Tensor& logits) {
  Ints sizes(static_cast<size_t>(logits.dim()), 1);
  sizes[logits.dim() == 1 ? 0 : 1] = weight.numel();
  return weight.reshape(sizes);
}

// Where targets are probabilities of the classes.
Tensor cross_entropy_of_probabilities(const Tensor& x, Tensor y, const Tensor& weight, int64_t reduction,
                                      int64_t ignore, double smoothing) {
  TORCH_CHECK(at::isFloatingType(y.scalar_type()),
              "Expected floating point type for target with class probabilities, got ", y.scalar_type());
  TORCH_CHECK(ignore < 0, "ignore_index is not supported for floating point target");
  const int64_t dim = x.dim() == 1 ? 0 : 1, classes = x.size(dim);
  check_cross_entropy(x, dim, weight, smoothing);
  if (smoothing > 0) y = y * (1 - smoothing) + smoothing / static_cast<double>(classes);
  const Tensor logits = at::log_softmax(x, dim);
  Tensor losses = -(logits * y);
  if (weight.defined()) losses = losses * beside_classes(weight, losses);
  if (reduction == kNone) return losses.sum(dim);
  if (reduction == at::Reduction::Sum) return losses.sum();
  // The mean is over items; that of none is not a number.
  return losses.sum() / (static_cast<double>(losses.numel()) / static_cast<double>(classes));
}

// LibTorch's composite picks the targets that are not ignored, whose number may differ from example to example. Here
// they count as zero.
Tensor cross_entropy(const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction, int64_t ignore,
                     double smoothing) {
  if (x.sizes() == y.sizes()) return cross_entropy_of_probabilities(x, y, weight, reduction, ignore, smoothing);
  const int64_t dim = x.dim() == 1 ? 0 : 1;
  const Tensor logits = at::log_softmax(x, dim);
  const Tensor nll = at::nll_loss_nd(logits, y, given(weight), reduction, ignore);
  if (smoothing <= 0) return nll;
  check_cross_entropy(x, dim, weight, smoothing);
  const Tensor ignored = y == ignore;
  const Tensor all = weight.defined() ? logits * beside_classes(weight, logits) : logits;
  Tensor smooth = zero_where(ignored, -all.sum(dim));
  TORCH_CHECK(smooth.dim() == logits.dim() - 1, "cross_entropy: targets of shape ", y.sizes(), " for scores of shape ",
              x.sizes());
  if (reduction != kNone) smooth = smooth.sum();
  if (reduction == at::Reduction::Mean) smooth = smooth / class_weights(weight, y, ignore, x.options()).sum();
  return nll * (1 - smoothing) + smooth * (smoothing / static_cast<double>(x.size(dim)));
}

// ---- margins ----

// Nothing where it is not a number, as the kernels count what exceeds the margin.
Tensor positive_part(const Tensor& t) { return keep_where(t > 0, t); }

// Items [N, C] and their targets [N] of what may be a single item.
Tensor as_items(const Tensor& x) { return x.dim() == 0 ? x.reshape({1, 1}) : x.dim() == 1 ? x.unsqueeze(0) : x; }

void check_margin(const Tensor& x, const Tensor& y, const Scalar& p, const Tensor& weight) {
  TORCH_CHECK(p.toDouble() == 1 || p.toDouble() == 2, "multi_margin_loss: p must be 1 or 2");
  const Tensor items = as_items(x);
  TORCH_CHECK(x.dim() <= 2 && items.size(1) != 0, "multi_margin_loss: expected a vector or a matrix, got ", x.sizes());
  TORCH_CHECK(y.dim() <= 1 && y.numel() == items.size(0), "multi_margin_loss: inconsistent target size ", y.sizes());
  TORCH_CHECK(!weight.defined() || (weight.dim() == 1 && weight.numel() == items.size(1)),
              "multi_margin_loss: inconsistent weight size");
}

// What each class exceeds its margin by, and which classes are not the target. Both [N, C].
Pair excess(const Tensor& items, const Tensor& y, const Scalar& margin) {
  const Tensor z = items - items.gather(1, y) + margin;
  return {positive_part(z), at::arange(items.size(1), y.options()) != y};
}

// The mean of no items is zero to the kernels.
Tensor reduce_margins(const Tensor& losses, int64_t reduction) {
  return reduce(losses,
                reduction == at::Reduction::Mean && losses.numel() == 0 ? int64_t{at::Reduction::Sum} : reduction);
}

// Σ w[y] max(0, m - x[y] + x[c])^p / C over classes c ≠ y.
Tensor multi_margin(const Tensor& x, const Tensor& target, const Scalar& p, const Scalar& margin, const Tensor& weight,
                    int64_t reduction) {
  check_margin(x, target, p, weight);
  const Tensor y = target.reshape({-1, 1}), items = as_items(x);
  const auto [z, others] = excess(items, y, margin);
  Tensor losses = p.toDouble() == 1 ? z : z * z;
  if (weight.defined()) losses = losses * at::take(weight, y);
  return reduce_margins(keep_where(others, losses).mean(1).reshape(target.sizes()), reduction);
}

Tensor multi_margin_backward(const Tensor& g, const Tensor& x, const Tensor& target, const Scalar& p,
                             const Scalar& margin, const Tensor& weight, int64_t reduction) {
  check_margin(x, target, p, weight);
  const Tensor y = target.reshape({-1, 1}), items = as_items(x);
  const auto [z, others] = excess(items, y, margin);
  Tensor slope = p.toDouble() == 1 ? (z > 0).to(x.scalar_type()) : 2 * z;
  if (weight.defined()) slope = slope * at::take(weight, y);
  slope = keep_where(others, slope) / static_cast<double>(items.size(1));
  slope = slope.scatter(1, y, -slope.sum(1, true));
  Tensor per_item = g.dim() == 0 ? g : g.reshape({-1, 1});
  if (reduction == at::Reduction::Mean) per_item = per_item / static_cast<double>(items.size(0));
  return (slope * per_item).reshape(x.sizes());
}

// The targets of an item are the classes listed before the first -1.
struct Labels {
  Tensor items, listed, classes, is_target;  // [N, C] each; `classes` means nothing where nothing is listed

  Labels(const Tensor& x, const Tensor& target) : items(as_items(x)) {
    TORCH_CHECK(x.dim() <= 2 && items.size(1) != 0, "multilabel_margin_loss: expected a vector or a matrix, got ",
                x.sizes());
    const Tensor y = as_items(target).to(at::kLong);
    TORCH_CHECK(y.sizes().equals(items.sizes()) && (x.dim() < 2) == (target.dim() < 2),
                "inconsistent target size: ", target.sizes(), " for input of size: ", x.sizes());
    const int64_t count = items.size(1);
    listed = (y == -1).cumsum(1) == 0;
    classes = y.masked_fill(y == -1, 0);  // also those behind the list must be classes
    is_target = (at::where(listed, y, Scalar(-1)).unsqueeze(2) == at::arange(count, y.options())).any(1);
  }
  // 1 - x[k] + x[c] for listed classes k and others c: [N, k, c]; and which of them count.
  Tensor violation() const { return items.unsqueeze(1) - items.gather(1, classes).unsqueeze(2) + 1; }
  Tensor counts() const { return listed.unsqueeze(2).logical_and(is_target.logical_not().unsqueeze(1)); }
};

// Σ max(0, 1 - x[k] + x[c]) / C over targets k and other classes c.
Pair multilabel_margin(const Tensor& x, const Tensor& target, int64_t reduction) {
  const Labels labels(x, target);
  const Tensor z = keep_where(labels.counts(), positive_part(labels.violation()));
  const Tensor losses = z.sum({1, 2}) / static_cast<double>(labels.items.size(1));
  return {reduce_margins(x.dim() < 2 ? losses.squeeze(0) : losses, reduction),
          labels.is_target.to(x.scalar_type()).reshape(target.sizes())};
}

Tensor multilabel_margin_backward(const Tensor& g, const Tensor& x, const Tensor& target, int64_t reduction,
                                  const Tensor& is_target) {
  Labels labels(x, target);
  labels.is_target = as_items(is_target).ne(0);
  const Tensor violated = labels.counts().logical_and(labels.violation() > 0).to(x.scalar_type());
  const Tensor slope = violated.sum(1).scatter_add(1, labels.classes, -violated.sum(2));
  Tensor per_item = g.dim() == 0 ? g : g.reshape({-1, 1});
  if (reduction == at::Reduction::Mean) per_item = per_item / static_cast<double>(labels.items.size(0));
  return (slope * per_item / static_cast<double>(labels.items.size(1))).reshape(x.sizes());
}

}  // namespace

void class_losses() {
  negative_log_likelihood<Nll, at::_ops::nll_loss_forward, at::_ops::nll_loss_backward>(demand_items);
  negative_log_likelihood<Nll2d, at::_ops::nll_loss2d_forward, at::_ops::nll_loss2d_backward>(demand_pixels);
  op<at::_ops::cross_entropy_loss>().decomposes(cross_entropy);
  op<at::_ops::multi_margin_loss>().decomposes(multi_margin);
  op<at::_ops::multi_margin_loss_backward>().decomposes(multi_margin_backward);
  op<at::_ops::multilabel_margin_loss_forward>().decomposes(multilabel_margin);
  op<at::_ops::multilabel_margin_loss_backward>().decomposes(multilabel_margin_backward);
  demands<at::_ops::multi_margin_loss>([](const Example& e) {
    demand_floating(e, 0);
    demand_dtype(e, 1, at::kLong);
    demand_same_dtype(e, {0, 4});
    demand_kernel_dtypes(e);
  });
  demands<at::_ops::multilabel_margin_loss_forward>([](const Example& e) {
    demand_floating(e, 0);
    demand_dtype(e, 1, at::kLong);
    demand_kernel_dtypes(e);
  });
}

}  // namespace tower::rules
