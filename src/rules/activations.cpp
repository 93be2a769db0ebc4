// Activation functions. Each one's derivative is LibTorch's *_backward operator, linear in its first argument; those
// operators' own rules, which second derivatives need, are in activation_backwards.cpp.
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>

#include <cmath>

#include "numbers/small.h"
#include "records/masks.h"
#include "records/op.h"
#include "records/overwriting.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

using compiler::E;

// x Φ(x), or its approximation by tanh.
std::optional<E> smooth_relu(E x, const std::string& approximate) {
  if (approximate == "none") return 0.5 * x * (1 + erf(x * M_SQRT1_2));
  if (approximate != "tanh") return std::nullopt;
  const E u = std::sqrt(2 / M_PI) * (x + 0.044715 * (x * x * x));
  return 0.5 * x * (1 + tanh(u));
}

// In numbers: the first half of a dimension, times the sigmoid of the second.
compiler::SmallResults gated(const compiler::SmallCall& c) {
  const compiler::Small& x = *c.operands[0];
  if (!is_float(c.type(0)) || x.sizes.empty()) return {};
  Sizes sizes = x.sizes;
  const auto dim = static_cast<size_t>(at::maybe_wrap_dim(c.arg(1).toInt(), static_cast<int64_t>(sizes.size())));
  sizes[dim] /= 2;
  size_t half = 1;  // elements of it that lie next to each other
  for (size_t d = dim; d < sizes.size(); ++d) half *= static_cast<size_t>(sizes[d]);
  std::vector<E> elements;
  for (size_t i = 0; i < x.ids.size(); ++i)
    if (i / half % 2 == 0) elements.push_back(c.at(x, i, 0) * sigmoid(c.at(x, i + half, 0)));
  return c.give(sizes, elements);
}

}  // namespace

void activations() {
  // ---- piecewise linear ----
  op<at::_ops::relu>().pointwise().element([](E x) { return at_least(x, 0); }).jvp<0>([](Tan<0> t, Skip, Out<0> y) {
    return at::threshold_backward(*t, *y, 0);
  });
  pulls_back_by<at::_ops::relu, at::_ops::threshold_backward>([](Skip, Out<0> y) { return Stack{*y, 0}; });
  op<at::_ops::_add_relu_Tensor>().decomposes(
      [](const Tensor& a, const Tensor& b, const Scalar& alpha) { return at::relu(at::add(a, b, alpha)); });
  op<at::_ops::_add_relu_Scalar>().decomposes(
      [](const Tensor& a, const Scalar& b, const Scalar& alpha) { return at::relu(at::add(a, b, alpha)); });
  op<at::_ops::threshold>()
      .pointwise()
      .element([](E x, E threshold, E value) { return where(x <= threshold, value, x); })
      .derivative<0>(
          [](Along t, const Tensor& x, const Scalar& threshold) { return at::threshold_backward(*t, x, threshold); });
  op<at::_ops::leaky_relu>()
      .pointwise()
      .element([](E x, E slope) { return where(x > 0, x, x * slope); })
      .derivative<0>(
          [](Along t, const Tensor& x, const Scalar& slope) { return at::leaky_relu_backward(*t, x, slope, false); });
  op<at::_ops::hardtanh>()
      .pointwise()
      .element([](E x, E min, E max) { return at_most(at_least(x, min), max); })
      .derivative<0>([](Along t, const Tensor& x, const Scalar& min, const Scalar& max) {
        return at::hardtanh_backward(*t, x, min, max);
      });
  op<at::_ops::hardsigmoid>()
      .pointwise()
      .element([](E x) { return minimum(maximum(x + 3, x.like(0)), x.like(6)) / 6; })
      .derivative<0>([](Along t, const Tensor& x) { return at::hardsigmoid_backward(*t, x); });
  op<at::_ops::hardswish>()
      .pointwise()
      .element([](E x) { return x * minimum(maximum(x + 3, x.like(0)), x.like(6)) / 6; })
      .derivative<0>([](Along t, const Tensor& x) { return at::hardswish_backward(*t, x); });
  op<at::_ops::softshrink>()
      .pointwise()
      .element([](E x, E lambda) {
        return where(x > lambda, x - lambda, where(x < -lambda, x + lambda, where(isnan(x), x, 0)));
      })
      .derivative<0>(
          [](Along t, const Tensor& x, const Scalar& lambda) { return at::softshrink_backward(*t, x, lambda); });
  op<at::_ops::hardshrink>()
      .pointwise()
      .element([](E x, E lambda) { return where((x >= -lambda) & (x <= lambda), 0, x); })
      .derivative<0>(
          [](Along t, const Tensor& x, const Scalar& lambda) { return at::hardshrink_backward(*t, x, lambda); });
  op<at::_ops::_prelu_kernel>()
      .pointwise()
      .element([](E x, E slope) { return where(x > 0, x, slope * x); })
      .derivative<0>([](Along t, const Tensor& x, const Tensor& slope) { return at::where(x > 0, *t, *t * slope); })
      .derivative<1>([](Along t, const Tensor& x) { return zero_where(x > 0, *t * x); });

  // ---- smooth ----
  op<at::_ops::gelu>()
      .pointwise()
      .element(smooth_relu)
      .derivative<0>([](Along t, const Tensor& x, const std::string& approximate) {
        return at::gelu_backward(*t, x, approximate);
      });
  op<at::_ops::silu>()
      .pointwise()
      .element([](E x) { return x / (1 + exp(-x)); })
      .derivative<0>([](Along t, const Tensor& x) { return at::silu_backward(*t, x); });
  op<at::_ops::mish>()
      .pointwise()
      .element([](E x) { return x * tanh(log1p(exp(x))); })
      .derivative<0>([](Along t, const Tensor& x) { return at::mish_backward(*t, x); });
  op<at::_ops::elu>()
      .pointwise()
      .element([](E x, E alpha, E scale, E input_scale) {
        return where(x >= 0, x * scale, expm1(x * input_scale) * (alpha * scale));
      })
      .derivative<0>([](Along t, const Tensor& x, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
        return at::elu_backward(*t, alpha, scale, input_scale, false, x);
      });
  op<at::_ops::celu>()
      .pointwise()
      .element([](E x, const Scalar& alpha) {
        return where(x >= 0, x, expm1(x * (1 / alpha.toDouble())) * alpha.toDouble());
      })
      .derivative<0>([](Along t, const Tensor& x, const Scalar& alpha) {
        return at::elu_backward(*t, alpha, 1, 1 / alpha.toDouble(), false, x);
      });
  op<at::_ops::softplus>()
      .pointwise()
      .element([](E x, E beta, E threshold) { return where(x * beta > threshold, x, log1p(exp(x * beta)) / beta); })
      .derivative<0>([](Along t, const Tensor& x, const Scalar& beta, const Scalar& threshold) {
        return at::softplus_backward(*t, x, beta, threshold);
      });
  // The second output is scratch space of the kernel.
  op<at::_ops::log_sigmoid_forward>()
      .pointwise()
      .element([](E x) {
        const E scratch = exp(-abs(x));
        return std::tuple(minimum(x, x.like(0)) - log1p(scratch), scratch);
      })
      .nondifferentiable_outputs<1>()
      .derivative<0>([](Along t, const Tensor& x) { return *t * at::sigmoid(-x); });

  // ---- gated: the first half of a dimension, gated by the second ----
  op<at::_ops::glu>()
      .small(gated)
      .depends(Depends::on_halves)
      .along({1})
      .vjp<0>([](Ct<0> ct, const Tensor& x, int64_t dim) { return at::glu_backward(*ct, x, dim); })
      .jvp<0>([](Tan<0> t, const Tensor& x, int64_t dim, Out<0> y) { return at::glu_jvp(*y, x, *t, dim); });

  // ---- randomized: a slope drawn for each negative element ----
  op<at::_ops::rrelu>().decomposes([](const Tensor& x, const Scalar& lower, const Scalar& upper, bool training,
                                      const std::optional<at::Generator>& generator) {
    TORCH_CHECK(lower.toDouble() <= upper.toDouble(), "Lower bound should be less than or equal to the upper bound");
    if (!training) return at::leaky_relu(x, (lower.toDouble() + upper.toDouble()) / 2);
    return std::get<0>(
        at::rrelu_with_noise_functional(x, at::empty_like(x), lower, upper, /*training=*/true, generator));
  });
  op<at::_ops::rrelu_with_noise_functional>()
      .draws_elementwise()
      .inactive<1>()
      .nondifferentiable_outputs<1>()
      .derivative<0>(
          [](Along t, const Tensor& x, Skip, const Scalar& lower, const Scalar& upper, bool training, Out<1> noise) {
            return at::rrelu_with_noise_backward(*t, x, *noise, lower, upper, training, false);
          });
}

}  // namespace tower::rules
