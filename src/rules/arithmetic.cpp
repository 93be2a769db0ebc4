// Addition, subtraction, multiplication, division, powers and their relatives.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include "rules/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

Scalar one() { return 1; }
Scalar minus_one() { return -1; }

}  // namespace

void arithmetic() {
  op<at::_ops::add_Tensor>()
      .pointwise()
      .derivative<0>(one)
      .derivative<1>([](Skip, Skip, const Scalar& alpha) { return alpha; });
  op<at::_ops::sub_Tensor>()
      .pointwise()
      .derivative<0>(one)
      .derivative<1>([](Skip, Skip, const Scalar& alpha) { return -alpha; });
  op<at::_ops::mul_Tensor>()
      .pointwise()
      .derivative<0>([](Skip, const Tensor& b) { return b; })
      .derivative<1>([](const Tensor& a) { return a; });
  op<at::_ops::mul_Scalar>().pointwise().derivative<0>([](Skip, const Scalar& b) { return b; });
  op<at::_ops::neg>().pointwise().derivative<0>(minus_one);
  op<at::_ops::sin>().pointwise().derivative<0>([](const Tensor& x) { return x.cos(); });
  op<at::_ops::cos>().pointwise().derivative<0>([](const Tensor& x) { return -x.sin(); });
  op<at::_ops::exp>().pointwise().derivative<0>([](Out<0> y) { return *y; });
}

}  // namespace tower::rules
