// LibTorch's backward operators of activation functions: t f'(x), as a function of t and of x. Linear in t; the
// derivative with respect to x is t f''(x). And those of fake quantization.
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <cmath>
#include <limits>

#include "core/broadcast.h"
#include "numbers/element.h"
#include "records/linearity.h"
#include "records/masks.h"
#include "records/op.h"
#include "rules/registry.h"
#include "rules/terms.h"

namespace tower::rules {
namespace {

using compiler::E;

Tensor outside_of_logit(const Tensor& x, const std::optional<double>& eps) {
  const double low = eps.value_or(0);
  return (x < low).logical_or(x > 1 - low);
}

// Φ the normal distribution and φ its density: (x Φ)'' = (2 - x²) φ.
Tensor gelu_curvature(const Tensor& x) {
  const Tensor square = x * x;
  return (2 - square) * (square * -0.5).exp() / std::sqrt(2 * M_PI);
}

// x (1 + tanh u) / 2 with u = k (x + c x³).
Tensor gelu_tanh_curvature(const Tensor& x) {
  const double k = std::sqrt(2 / M_PI), c = 0.044715;
  const Tensor square = x * x;
  const Tensor h = (k * (x + c * square * x)).tanh();
  const Tensor du = k * (1 + 3 * c * square), ddu = 6 * c * k * x;
  return one_minus(h * h) * (du + 0.5 * x * (ddu - 2 * h * du * du));
}

std::optional<E> gelu_slope(E g, E x, const std::string& approximate) {
  if (approximate == "none") {
    const E cdf = 0.5 * (1 + erf(x * M_SQRT1_2)), pdf = exp(x * x * -0.5) * (M_2_SQRTPI * M_SQRT1_2 * 0.5);
    return g * (cdf + x * pdf);
  }
  if (approximate != "tanh") return std::nullopt;
  const double k = std::sqrt(2 / M_PI), c = 0.044715;
  const E h = tanh(k * (x + c * (x * x * x)));
  return g * (0.5 * (1 + h) + 0.5 * x * ((1 - h * h) * (k * (1 + 3 * c * (x * x)))));
}

// For kernels that do not broadcast: every tensor is expanded over the batch.
void vmap_of_expanded_operands(VmapFrame& frame) {
  for (uint8_t i : frame.op.tensor_args()) frame.to_front(i, true);
  frame.call();
}

// The two halves of a gated value.
std::pair<Tensor, Tensor> halves(const Tensor& x, int64_t dim) {
  const int64_t half = x.size(dim) / 2;
  return {x.narrow(dim, 0, half), x.narrow(dim, half, half)};
}

// ---- fake quantization with a learned scale s and zero point z (Esser et al. 2020) ----

// x becomes (q - z) s, where q = round(z + x / s) is clamped to a range; rounding counts as the identity for x. The
// gradients of x and, element by element, of the scale and of the zero point, which is whole.
std::tuple<Tensor, Tensor, Tensor> fake_quantize_backward(const Tensor& grad, const Tensor& x, const Tensor& scale,
                                                          const Tensor& zero, int64_t low, int64_t high,
                                                          double factor) {
  TORCH_CHECK(grad.numel() == x.numel(), "`X` and `dY` are not the same size");
  const Tensor q = (zero + x * (1 / scale)).round();
  const Tensor below = q.lt(low), above = q.gt(high), outside = below.logical_or(above);
  const Tensor error = ((q - zero) * scale - x) / scale;
  const Tensor slope = at::where(below, low - zero, at::where(above, high - zero, error));
  const Tensor dzero = (-grad * scale * factor).masked_fill(outside.logical_not(), 0);
  return {grad * outside.logical_not(), grad * slope * factor, dzero};
}

}  // namespace

void activation_backwards() {
  // ---- piecewise linear functions ----
  op<at::_ops::threshold_backward>()
      .pointwise()
      .element([](E g, E x, E threshold) { return where(x <= threshold, 0, g); })
      .inactive<1>()
      .derivative<0>([](Along t, Skip, const Tensor& x, const Scalar& threshold) {
        return at::threshold_backward(*t, x, threshold);
      });
  op<at::_ops::leaky_relu_backward>()
      .pointwise()
      .element([](E g, E x, E slope) { return where(x > 0, g, g * slope); })
      .inactive<1>()
      .derivative<0>([](Along t, Skip, const Tensor& x, const Scalar& slope, bool is_result) {
        return at::leaky_relu_backward(*t, x, slope, is_result);
      });
  op<at::_ops::hardtanh_backward>()
      .pointwise()
      // Of NaN as LibTorch's vectors have it: its single numbers give g.
      .element([](E g, E x, E min, E max) { return where((x > min) & (x < max), g, 0); })
      .inactive<1>()
      .derivative<0>([](Along t, Skip, const Tensor& x, const Scalar& min, const Scalar& max) {
        return at::hardtanh_backward(*t, x, min, max);
      });
  // The sixth is a float for every dtype.
  op<at::_ops::hardsigmoid_backward>()
      .pointwise()
      .element([](E g, E x) { return where((x > -3) & (x < 3), g * (1.0f / 6), 0); })
      .inactive<1>()
      .derivative<0>([](Along t, Skip, const Tensor& x) { return at::hardsigmoid_backward(*t, x); });
  op<at::_ops::softshrink_backward>()
      .pointwise()
      .element([](E g, E x, E lambda) { return where((x > lambda) | (x < -lambda), g, 0); })
      .inactive<1>()
      .derivative<0>(
          [](Along t, Skip, const Tensor& x, const Scalar& lambda) { return at::softshrink_backward(*t, x, lambda); });
  op<at::_ops::hardshrink_backward>()
      .pointwise()
      .element([](E g, E x, E lambda) { return where((x > lambda) | (x < -lambda), g, 0); })
      .inactive<1>()
      .derivative<0>(
          [](Along t, Skip, const Tensor& x, const Scalar& lambda) { return at::hardshrink_backward(*t, x, lambda); });
  op<at::_ops::hardswish_backward>()
      .pointwise()
      .element([](E g, E x) { return where(x <= -3, 0, where(x >= 3, g, g * (x / 3 + 0.5))); })
      .derivative<0>([](Along t, Skip, const Tensor& x) { return at::hardswish_backward(*t, x); })
      .derivative<1>([](Along t, const Tensor& g, const Tensor& x) {
        return keep_where((x > -3).logical_and(x < 3), *t * g / 3);
      });
  linearity<at::_ops::hardswish_backward>(Linearity::first_as_factor);
  op<at::_ops::_prelu_kernel_backward>().pointwise().decomposes(
      [](const Tensor& g, const Tensor& x, const Tensor& slope) {
        const Tensor positive = x > 0, by_x = at::where(positive, g, g * slope);
        return std::tuple(by_x, zero_where(positive, g * x).expand_as(by_x));
      });
  op<at::_ops::rrelu_with_noise_backward>()
      .element([](E g, E x, E noise, const Scalar& lower, const Scalar& upper, bool training) {
        const double low = lower.toDouble(), high = upper.toDouble();
        if (training && static_cast<float>(high - low) > 1e-6) return g * noise;
        return where(x > 0, g, g * x.like((low + high) / 2));
      })
      .vmap(vmap_of_expanded_operands)
      .inactive<1>()
      .derivative<0>([](Along t, Skip, const Tensor& x, const Tensor& noise, const Scalar& lower, const Scalar& upper,
                        bool training, bool is_result) {
        return at::rrelu_with_noise_backward(*t, x, noise, lower, upper, training, is_result);
      })
      .derivative<2>(
          [](Along t, const Tensor& g, Skip, Skip, Skip, Skip, bool training) { return training ? *t * g : Tensor(); });

  // ---- smooth functions of x ----
  op<at::_ops::gelu_backward>()
      .element(gelu_slope)
      .vmap(vmap_of_expanded_operands)
      .derivative<0>([](Along t, Skip, const Tensor& x, const std::string& approximate) {
        return at::gelu_backward(*t, x, approximate);
      })
      .derivative<1>([](Along t, const Tensor& g, const Tensor& x, const std::string& approximate) {
        return *t * g * (approximate == "tanh" ? gelu_tanh_curvature(x) : gelu_curvature(x));
      });
  linearity<at::_ops::gelu_backward>(Linearity::first_as_factor);
  // s = σ(x): (x s)'' = s (1 - s) (2 + x (1 - 2 s)).
  op<at::_ops::silu_backward>()
      .pointwise()
      .element([](E g, E x) {
        const E s = sigmoid(x);
        return g * s * (1 + x * (1 - s));
      })
      .derivative<0>([](Along t, Skip, const Tensor& x) { return at::silu_backward(*t, x); })
      .derivative<1>([](Along t, const Tensor& g, const Tensor& x) {
        const Tensor s = x.sigmoid();
        return *t * g * (s * one_minus(s) * (2 + x * one_minus(2 * s)));
      });
  linearity<at::_ops::silu_backward>(Linearity::first_as_factor);
  // s = σ(x), h = tanh(softplus(x)): (x h)'' = (1 - h²) s (2 + x (1 - s - 2 h s)).
  op<at::_ops::mish_backward>()
      .pointwise()
      .element([](E g, E x) {
        const E s = sigmoid(x), t = tanh(log1p(exp(x)));
        return g * (t + x * s * (1 - t * t));
      })
      .derivative<0>([](Along t, Skip, const Tensor& x) { return at::mish_backward(*t, x); })
      .derivative<1>([](Along t, const Tensor& g, const Tensor& x) {
        const Tensor s = x.sigmoid(), h = at::softplus(x).tanh();
        return *t * g * (one_minus(h * h) * s * (2 + x * (one_minus(s) - 2 * h * s)));
      });
  linearity<at::_ops::mish_backward>(Linearity::first_as_factor);
  op<at::_ops::softplus_backward>()
      .pointwise()
      .element([](E g, E x, E beta, E threshold) {
        const E z = exp(x * beta);
        return where(x * beta > threshold, g, g * z / (z + 1));
      })
      .derivative<0>([](Along t, Skip, const Tensor& x, const Scalar& beta, const Scalar& threshold) {
        return at::softplus_backward(*t, x, beta, threshold);
      })
      .derivative<1>([](Along t, const Tensor& g, const Tensor& x, const Scalar& beta, const Scalar& threshold) {
        const Tensor u = x * beta, s = u.sigmoid();
        return zero_where(u > threshold, *t * g * (s * one_minus(s) * beta));
      });
  linearity<at::_ops::softplus_backward>(Linearity::first_as_factor);
  // Below zero: α scale (e^(κx) - 1) of slope κ (y + α scale), where y is the result.
  op<at::_ops::elu_backward>()
      .pointwise()
      .element([](E g, E alpha, E scale, E kappa, bool is_result, E x) {
        const E below = alpha * scale;
        const E slope = is_result ? g * kappa * (x + below) : g * kappa * below * exp(x * kappa);
        return where(x > 0, g * scale, slope);
      })
      .derivative<0>([](Along t, Skip, const Scalar& alpha, const Scalar& scale, const Scalar& kappa, bool is_result,
                        const Tensor& x) { return at::elu_backward(*t, alpha, scale, kappa, is_result, x); })
      .derivative<5>([](Along t, const Tensor& g, const Scalar& alpha, const Scalar& scale, const Scalar& kappa,
                        bool is_result, const Tensor& x) {
        const double k = kappa.toDouble();
        const Tensor slope =
            is_result ? *t * g * k : *t * g * ((x * k).exp() * (k * k * alpha.toDouble() * scale.toDouble()));
        return zero_where(x >= 0, slope);
      });
  linearity<at::_ops::elu_backward>(Linearity::first_as_factor);
  // The scratch space of the kernel holds nothing that x does not.
  op<at::_ops::log_sigmoid_backward>()
      .pointwise()
      .element([](E g, E x, E scratch) {
        const E negative = x < 0;
        return (where(negative, 1, g.like(0)) - where(negative, 1, g.like(-1)) * (scratch / (1 + scratch))) * g;
      })
      .inactive<2>()
      .derivative<0>([](Along t, Skip, const Tensor& x) { return *t * at::sigmoid(-x); })
      .derivative<1>([](Along t, const Tensor& g, const Tensor& x) {
        const Tensor s = x.sigmoid();
        return *t * g * (s * (s - 1));
      });
  linearity<at::_ops::log_sigmoid_backward>(Linearity::first_as_factor);
  // The argument outside of [eps, 1 - eps] was clamped. Without eps the value outside of [0, 1] is a constant nan.
  op<at::_ops::logit_backward>()
      .pointwise()
      .element([](E g, E x, std::optional<double> eps) {
        const E low = x.like(eps.value_or(0)), high = 1 - low;
        const double outside = eps ? 0 : std::numeric_limits<double>::quiet_NaN();
        return where((x >= low) & (x <= high), g / (x * (1 - x)), outside);
      })
      .derivative<0>([](Along t, Skip, const Tensor& x, const std::optional<double>& eps) {
        return zero_where(outside_of_logit(x, eps), at::logit_backward(*t, x, eps));
      })
      .derivative<1>([](Along t, const Tensor& g, const Tensor& x, const std::optional<double>& eps) {
        const Tensor slope = *t * g * ((2 * x - 1) / (x * one_minus(x)).square());
        return zero_where(outside_of_logit(x, eps), slope);
      });
  linearity<at::_ops::logit_backward>(Linearity::first_as_factor);

  // ---- smooth functions of the result: t conj(f'), so conjugate-linear in y ----
  op<at::_ops::sigmoid_backward>()
      .pointwise()
      .element([](E g, E y) { return g * (1 - y) * y; })
      .derivative<0>([](Along t, Skip, const Tensor& y) { return at::sigmoid_backward(*t, y); })
      .vjp<1>([](Ct<0> ct, const Tensor& g, const Tensor& y) {
        return summed_to(conjugate(*ct) * g * one_minus(2 * conjugate(y)), y.sizes());
      })
      .jvp<1>(
          [](Tan<1> t, const Tensor& g, const Tensor& y) { return conjugate(*t) * g * one_minus(2 * conjugate(y)); });
  linearity<at::_ops::sigmoid_backward>(Linearity::first_as_factor);
  op<at::_ops::tanh_backward>()
      .pointwise()
      .element([](E g, E y) { return g * fma(-y, y, y.like(1)); })
      .vjp<0>([](Ct<0> ct, Skip, const Tensor& y, Like<0> g) {
        return summed_to(at::tanh_backward(*ct, conjugate(y)), g->sizes);
      })
      .vjp<1>([](Ct<0> ct, const Tensor& g, const Tensor& y) {
        return summed_to(conjugate(*ct) * g * (-2 * conjugate(y)), y.sizes());
      })
      .jvp<0, 1>([](const Tensor& g, const Tensor& y, Tan<0> dg, Tan<1> dy) {
        const Tensor along = dg->defined() ? at::tanh_backward(*dg, y) : Tensor();
        if (!dy->defined()) return along;
        const Tensor half = times(conjugate(y), conjugate(*dy) * g);
        return along.defined() ? at::sub(along, half, 2) : half * -2;
      });
  linearity<at::_ops::tanh_backward>(Linearity::first_as_factor);

  // ---- gated: x = (a, b), y = a σ(b) ----
  op<at::_ops::glu_backward>().along({2}).decomposes([](const Tensor& g, const Tensor& x, int64_t dim) {
    const auto [a, b] = halves(x, dim);
    const Tensor s = b.sigmoid();
    return at::cat({g * s, g * a * s * one_minus(s)}, dim);
  });
  op<at::_ops::glu_jvp>().decomposes([](const Tensor& y, const Tensor& x, const Tensor& dx, int64_t dim) {
    const auto [da, db] = halves(dx, dim);
    const Tensor s = halves(x, dim).second.sigmoid();
    return da * s + y * one_minus(s) * db;
  });
  op<at::_ops::glu_backward_jvp>().decomposes(
      [](const Tensor& grad_x, Skip, const Tensor& x, const Tensor& dg, const Tensor& dx, int64_t dim) {
        const auto [a, b] = halves(x, dim);
        const auto [da, db] = halves(dx, dim);
        const Tensor ga = halves(grad_x, dim).first, s = b.sigmoid(), away = one_minus(s);
        const Tensor dga = dg * s + ga * away * db;
        return at::cat({dga, dga * a * away + ga * away * (da - a * s * db)}, dim);
      });

  // ---- fake quantization ----
  op<at::_ops::_fake_quantize_learnable_per_tensor_affine_backward>().decomposes(
      [](const Tensor& grad, const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t low, int64_t high,
         double factor) {
        TORCH_CHECK(scale.numel() > 0 && zero_point.numel() > 0, "scale and zero_point need an element");
        // As the kernel rounds: the first element, by truncation.
        const Tensor zero = (zero_point.select(0, 0) + 0.5).clamp(low, high).trunc();
        const auto [dx, dscale, dzero] = fake_quantize_backward(grad, x, scale.select(0, 0), zero, low, high, factor);
        return std::tuple(dx, dscale.sum().unsqueeze(0), dzero.sum().unsqueeze(0));
      });
  op<at::_ops::_fake_quantize_learnable_per_channel_affine_backward>().decomposes(
      [](const Tensor& grad, const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t axis, int64_t low,
         int64_t high, double factor) {
        Ints shape(static_cast<size_t>(x.dim()), 1), others;
        for (int64_t d = 0; d < x.dim(); ++d)
          if (d != axis) others.push_back(d);
        shape.at(static_cast<size_t>(axis)) = x.size(axis);
        const Tensor zero = zero_point.round().clamp(low, high);
        const auto [dx, dscale, dzero] =
            fake_quantize_backward(grad, x, scale.view(shape), zero.view(shape), low, high, factor);
        return std::tuple(dx, dscale.sum(others), dzero.sum(others));
      });
}

}  // namespace tower::rules
