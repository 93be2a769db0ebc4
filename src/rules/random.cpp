// Random operators, and what they mean for a batch.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "numbers/element.h"
#include "records/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

using compiler::E;

// Values drawn from a distribution do not depend on the parameters in a way that has a derivative, except for a scale
// and a shift, which users write themselves. This is LibTorch's convention, too.
template <class... Op>
void draw_elementwise() {
  (op<Op>().draws_elementwise().no_derivative(), ...);
}

// The Jacobian of a Dirichlet variate at fixed quantiles is diag(d) - y dᵀ.
Tensor dirichlet_slope(const Tensor& alpha, const Tensor& y) {
  return at::_dirichlet_grad(y, alpha, alpha.sum(-1, true).expand_as(alpha));
}
Tensor dirichlet_backward(const Tensor& ct, const Tensor& alpha, const Tensor& y) {
  return dirichlet_slope(alpha, y) * (ct - (y * ct).sum(-1, true));
}
Tensor dirichlet_forward(const Tensor& t, const Tensor& alpha, const Tensor& y) {
  const Tensor along = dirichlet_slope(alpha, y) * t;
  return along - y * along.sum(-1, true);
}

}  // namespace

void random() {
  draw_elementwise<at::_ops::bernoulli, at::_ops::bernoulli_p, at::_ops::poisson, at::_ops::binomial,
                   at::_ops::bernoulli_Tensor, at::_ops::rand_like, at::_ops::rand_like_generator, at::_ops::randn_like,
                   at::_ops::randn_like_generator, at::_ops::randint_like, at::_ops::randint_like_generator,
                   at::_ops::randint_like_low_dtype, at::_ops::randint_like_low_generator_dtype,
                   at::_ops::randint_like_Tensor, at::_ops::randint_like_Tensor_generator, at::_ops::uniform,
                   at::_ops::exponential, at::_ops::geometric, at::_ops::cauchy, at::_ops::log_normal, at::_ops::random,
                   at::_ops::random_from, at::_ops::random_to>();
  // Written over what was there: the old values do not matter.
  op<at::_ops::normal_functional>().draws_elementwise().no_derivative();
  op<at::_ops::normal_Tensor_float>().draws_elementwise().no_derivative();
  op<at::_ops::normal_float_Tensor>().draws_elementwise().no_derivative();
  op<at::_ops::normal_Tensor_Tensor>().draws_elementwise().no_derivative();

  // y = x mask / (1 - p); the mask is drawn, the rest is a product.
  op<at::_ops::native_dropout>()
      .draws_elementwise()
      .nondifferentiable_outputs<1>()
      .vjp<0>([](Ct<0> ct, Skip, double p, const std::optional<bool>& train, Out<1> mask) {
        if (train.has_value() && !*train) return *ct;
        return at::native_dropout_backward(*ct, *mask, p == 1 ? 0.0 : 1.0 / (1.0 - p));
      })
      .jvp<0>([](Tan<0> dx, Skip, double p, const std::optional<bool>& train, Out<1> mask) {
        if (train.has_value() && !*train) return *dx;
        return at::native_dropout_backward(*dx, *mask, p == 1 ? 0.0 : 1.0 / (1.0 - p));
      });
  op<at::_ops::native_dropout_backward>()
      .pointwise()
      // Of integers the first product is one of integers.
      .element([](compiler::Raw g, E mask, E scale) {
        return g.floating() ? std::optional(g.to(mask.type()) * mask * scale) : std::nullopt;
      })
      .derivative<0>(
          [](Along t, Skip, const Tensor& mask, double scale) { return at::native_dropout_backward(*t, mask, scale); })
      .inactive<1>();

  // Gamma variates are differentiated at fixed quantiles, as LibTorch does.
  op<at::_ops::_standard_gamma>().draws_elementwise().derivative<0>(
      [](const Tensor& alpha, Out<0> y) { return at::_standard_gamma_grad(alpha, *y); });
  op<at::_ops::_sample_dirichlet>()
      .draws_elementwise()
      .vjp<0>([](Ct<0> ct, const Tensor& alpha, Out<0> y) { return dirichlet_backward(*ct, alpha, *y); })
      .jvp<0>([](Tan<0> t, const Tensor& alpha, Out<0> y) { return dirichlet_forward(*t, alpha, *y); });

  op<at::_ops::_standard_gamma_grad>().pointwise();
  op<at::_ops::_dirichlet_grad>().pointwise();

  // The generator's state is nobody's derivative, and a permutation is integers.
  op<at::_ops::multinomial>().no_derivative();
  op<at::_ops::randperm>().no_derivative();
}

}  // namespace tower::rules
