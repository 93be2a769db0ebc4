// Loss functions of two tensors, element by element, with their reduction: written in terms of pointwise operators, so
// that a reduction is per example under vmap by itself. Losses over classes are in class_losses.cpp.
#include "rules/losses.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "records/demands.h"
#include "records/masks.h"
#include "records/op.h"
#include "rules/kernel_demands.h"
#include "rules/registry.h"
#include "rules/terms.h"

namespace tower::rules {
namespace {

Tensor weighted(const Tensor& t, const Tensor& weight) { return weight.defined() ? t * weight : t; }

// Without a branch, so that no infinity of the one not taken gets into derivatives.
Tensor huber(const Tensor& d, double delta) {
  const Tensor c = d.clamp(-delta, delta);
  return c * (d - c * 0.5);
}

// LibTorch's binary cross entropy takes logarithms to be at least -100.
Tensor cross_entropy_log(const Tensor& log) { return log.clamp_min(-100); }

// Evaluates the kernel without its reduction, on all examples, and reduces each example.
void vmap_cross_entropy(VmapFrame& frame) {
  constexpr size_t reduction = 3;
  const int64_t mode = frame.stack[reduction].toInt();
  frame.to_front(0, true);
  frame.to_front(1, true);
  if (frame.is_tensor(2) && frame.batched(2)) {
    frame.to_front(2, false);
    while (frame.tensor(2).dim() < frame.tensor(0).dim()) frame.stack[2] = frame.tensor(2).unsqueeze(1);
  }
  frame.stack[reduction] = static_cast<int64_t>(at::Reduction::None);
  frame.call();
  frame.result(reduce_examples(frame.tensor(0), mode));
}

// Σ x y / (‖x‖ ‖y‖), each length at least eps. LibTorch writes the bound into a tensor behind autograd's back.
Tensor cosine_similarity(const Tensor& a, const Tensor& b, int64_t dim, double eps) {
  TORCH_CHECK(eps >= 0, "cosine_similarity: eps must be non-negative, got: ", eps);
  const at::ScalarType type = at::result_type(a, b);
  TORCH_CHECK(at::isFloatingType(type), "expected common dtype to be floating point, yet common dtype is ", type);
  const auto pair = at::broadcast_tensors({a.to(type), b.to(type)});
  const auto direction = [&](const Tensor& t) { return t / at::linalg_vector_norm(t, 2, dim, true).clamp_min(eps); };
  return (direction(pair[0]) * direction(pair[1])).sum(dim);
}

// ---- what the kernels demand ----

// The losses are weighted in place.
void demand_weight(const Example& e, size_t weight, at::IntArrayRef losses, at::ScalarType type) {
  if (!e.has(weight)) return;
  const Sizes sizes = e.sizes(weight);
  TORCH_CHECK(at::is_expandable_to(sizes, losses), "output with shape ", losses,
              " doesn't match the broadcast shape with weights of shape ", at::IntArrayRef(sizes));
  demand_castable(e.dtype(weight), type);
}

}  // namespace

Tensor reduce(const Tensor& losses, int64_t reduction) {
  if (reduction == at::Reduction::Mean) return losses.mean();
  return reduction == at::Reduction::Sum ? losses.sum() : losses;
}

Tensor reduce_examples(const Tensor& losses, int64_t reduction) {
  if (reduction == at::Reduction::None) return losses;
  const Tensor flat = losses.dim() == 1 ? losses.unsqueeze(1) : losses.flatten(1);
  return reduction == at::Reduction::Mean ? flat.mean(1) : flat.sum(1);
}

Tensor spread(const Tensor& g, const Tensor& slope, int64_t reduction) {
  return reduction == at::Reduction::Mean ? slope * (g / static_cast<double>(slope.numel())) : slope * g;
}

void losses() {
  // (a - b)²
  op<at::_ops::mse_loss>().decomposes([](const Tensor& a, const Tensor& b, int64_t reduction) {
    const Tensor d = a - b;
    return reduce(d * d, reduction);
  });
  op<at::_ops::mse_loss_backward>().decomposes([](const Tensor& g, const Tensor& a, const Tensor& b,
                                                  int64_t reduction) { return spread(g, 2 * (a - b), reduction); });

  // d² / 2β near zero, |d| - β/2 beyond: Huber's loss over β.
  op<at::_ops::smooth_l1_loss>().decomposes([](const Tensor& a, const Tensor& b, int64_t reduction, double beta) {
    TORCH_CHECK(beta >= 0, "smooth_l1_loss does not support negative values for beta.");
    const Tensor d = a - b;
    return reduce(beta == 0 ? d.abs() : huber(d, beta) / beta, reduction);
  });
  op<at::_ops::smooth_l1_loss_backward>().decomposes(
      [](const Tensor& g, const Tensor& a, const Tensor& b, int64_t reduction, double beta) {
        const Tensor d = a - b;
        return spread(g, beta == 0 ? d.sgn() : d.clamp(-beta, beta) / beta, reduction);
      });

  // d² / 2 near zero, δ (|d| - δ/2) beyond.
  op<at::_ops::huber_loss>().decomposes([](const Tensor& a, const Tensor& b, int64_t reduction, double delta) {
    TORCH_CHECK(delta > 0, "huber_loss does not support non-positive values for delta.");
    return reduce(huber(a - b, delta).to(a.scalar_type()), reduction);
  });
  op<at::_ops::huber_loss_backward>().decomposes(
      [](const Tensor& g, const Tensor& a, const Tensor& b, int64_t reduction, double delta) {
        return spread(g, (a - b).clamp(-delta, delta), reduction);
      });

  // log(1 + e^(-yx)); beyond 50 it is -yx to the last digit.
  op<at::_ops::soft_margin_loss>().decomposes([](const Tensor& x, const Tensor& y, int64_t reduction) {
    TORCH_CHECK(x.sizes().equals(at::infer_size(x.sizes(), y.sizes())), "soft_margin_loss: the target's shape ",
                y.sizes(), " does not broadcast to the input's, ", x.sizes());
    return reduce(at::softplus(-(x * y), 1, 50).to(x.scalar_type()), reduction);
  });
  op<at::_ops::soft_margin_loss_backward>().decomposes(
      [](const Tensor& g, const Tensor& x, const Tensor& y, int64_t reduction) {
        return spread(g, -(at::sigmoid(-(x * y)) * y), reduction).to(x.scalar_type());
      });

  // -y log x - (1 - y) log(1 - x)
  op<at::_ops::binary_cross_entropy>()
      .vmap(vmap_cross_entropy)
      .vjp<0>([](Ct<0> ct, const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction) {
        return at::binary_cross_entropy_backward(*ct, x, y, given(weight), reduction);
      })
      .vjp<1>([](Ct<0> ct, const Tensor& x, Skip, const Tensor& weight, int64_t reduction) {
        const Tensor slope = cross_entropy_log((-x).log1p()) - cross_entropy_log(x.log());
        return spread(*ct, weighted(slope, weight), reduction);
      })
      .jvp<0>([](Tan<0> t, const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction) {
        return reduce(at::binary_cross_entropy_backward(*t, x, y, given(weight), at::Reduction::None), reduction);
      })
      .jvp<1>([](Tan<1> t, const Tensor& x, Skip, const Tensor& weight, int64_t reduction) {
        const Tensor slope = cross_entropy_log((-x).log1p()) - cross_entropy_log(x.log());
        return reduce(*t * weighted(slope, weight), reduction);
      })
      .decomposes([](const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction) {
        const Tensor loss = (y - 1) * cross_entropy_log((-x).log1p()) - y * cross_entropy_log(x.log());
        return reduce(weighted(loss, weight).to(x.scalar_type()), reduction);
      });
  op<at::_ops::binary_cross_entropy_backward>().decomposes(
      [](const Tensor& g, const Tensor& x, const Tensor& y, const Tensor& weight, int64_t reduction) {
        const Tensor slope = (x - y) / (x * one_minus(x)).clamp_min(static_cast<double>(1e-12F));
        return spread(g, weighted(slope, weight), reduction);
      });
  // (1 - y) x - (1 + (p - 1) y) log σ(x), p the weight of positive examples.
  op<at::_ops::binary_cross_entropy_with_logits>().decomposes([](const Tensor& x, const Tensor& y, const Tensor& weight,
                                                                 const Tensor& positive_weight, int64_t reduction) {
    const auto both = at::infer_size(x.sizes(), y.sizes());  // LibTorch writes into what was made like one of them
    TORCH_CHECK(y.sizes().equals(both) && (!positive_weight.defined() || x.sizes().equals(both)), "Target size (",
                y.sizes(), ") must be the same as input size (", x.sizes(), ")");
    const Tensor log = at::log_sigmoid(x);
    const Tensor loss = one_minus(y) * x - (positive_weight.defined() ? ((positive_weight - 1) * y + 1) * log : log);
    return reduce(weighted(loss, weight).to(y.scalar_type()), reduction);
  });

  op<at::_ops::cosine_similarity>().decomposes(cosine_similarity);
  demands<at::_ops::mse_loss>([](const Example& e) {
    const auto type = c10::promoteTypes(e.dtype(0), e.dtype(1));
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::isComplexType(type), "\"mse_cpu\" not implemented for '", type, "'");
  });
  demands<at::_ops::huber_loss>(
      [](const Example& e) { demand_castable(c10::promoteTypes(e.dtype(0), e.dtype(1)), e.dtype(0)); });
  demands<at::_ops::binary_cross_entropy>([](const Example& e) {
    TORCH_CHECK(e.dtype(0) == e.dtype(1), "Found dtype ", e.dtype(1), " but expected ", e.dtype(0));
    demand_weight(e, 2, e.sizes(0), e.dtype(0));
  });
  demands<at::_ops::binary_cross_entropy_with_logits>([](const Example& e) {
    // LibTorch writes into what was made like the target.
    demand_castable(e.dtype(0), e.dtype(1));
    if (e.has(3)) demand_castable(c10::promoteTypes(e.dtype(1), e.dtype(3)), e.dtype(0));
    if (e.has(3)) demand_castable(e.dtype(3), e.dtype(1));
    demand_weight(e, 2, at::infer_size(e.sizes(0), e.sizes(1)), e.dtype(1));
  });
}

}  // namespace tower::rules
