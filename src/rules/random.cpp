// Random operators, and what they mean for a batch.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

// Values drawn from a distribution do not depend on the parameters in a way that has a derivative, except for a scale
// and a shift, which users write themselves. This is LibTorch's convention, too.
template <class... Op>
void draw_elementwise() {
  (op<Op>().draws_elementwise().no_derivative(), ...);
}

}  // namespace

void random() {
  draw_elementwise<at::_ops::bernoulli, at::_ops::bernoulli_p, at::_ops::poisson, at::_ops::binomial,
                   at::_ops::rand_like, at::_ops::randn_like, at::_ops::randint_like, at::_ops::randint_like_low_dtype,
                   at::_ops::uniform, at::_ops::exponential, at::_ops::geometric, at::_ops::cauchy,
                   at::_ops::log_normal, at::_ops::random, at::_ops::random_from, at::_ops::random_to>();
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
      .derivative<0>(
          [](Along t, Skip, const Tensor& mask, double scale) { return at::native_dropout_backward(*t, mask, scale); })
      .inactive<1>();

  // The generator's state is nobody's derivative, and a permutation is integers.
  op<at::_ops::multinomial>().no_derivative();
  op<at::_ops::randperm>().no_derivative();
}

}  // namespace tower::rules
