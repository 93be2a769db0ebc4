// Elementary functions of one variable: exponentials, logarithms, roots, trigonometric and hyperbolic functions,
// rounding.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "numbers/bits.h"
#include "records/op.h"
#include "records/overwriting.h"
#include "rules/near_zero.h"
#include "rules/registry.h"
#include "rules/terms.h"

namespace tower::rules {
namespace {

using compiler::E;

// A piecewise constant function.
template <class Op>
Rule<Op> step() {
  return op<Op>().pointwise().template inactive<0>();
}

// To decimals behind the point, or before it.
E rounded(E x, int64_t decimals) {
  if (decimals == 0) return round(x);
  const E scale = x.like(std::pow(10, std::abs(decimals)));
  return decimals < 0 ? round(x / scale) * scale : round(x * scale) / scale;
}

// The mantissa, of 1/2 to 1, and the exponent; what has none is its own mantissa.
std::tuple<E, E> mantissa_and_exponent(E x) {
  const bool wide = x.type() == compiler::Type::f64;
  const int64_t places = wide ? 52 : 23, half = wide ? 1022 : 126;  // of the fraction; the exponent of 1/2
  const E tiny = abs(x) < (wide ? 0x1p-1022 : 0x1p-126);
  const E all = bits(where(tiny, x * (wide ? 0x1p52 : 0x1p23), x));
  const E fraction = bits((all & all.like(Scalar(~((2 * half + 3) << places)))) | all.like(Scalar(half << places)));
  const E exponent = (shift_right(all, all.like(places)) & (2 * half + 3)) - half - where(tiny, all.like(places), 0);
  const E none = (x == 0) | !(abs(x) < std::numeric_limits<double>::infinity());
  return {where(none, x, fraction), where(none, 0, exponent)};
}

}  // namespace

void elementary() {
  // ---- exponentials and logarithms ----
  op<at::_ops::exp>().pointwise().element([](E x) { return exp(x); }).derivative<0>([](Out<0> y) { return *y; });
  op<at::_ops::exp2>().pointwise().element([](E x) { return exp2(x); }).derivative<0>([](Out<0> y) {
    return *y * M_LN2;
  });
  op<at::_ops::expm1>().pointwise().element([](E x) { return expm1(x); }).derivative<0>([](Out<0> y) {
    return *y + 1;
  });
  op<at::_ops::log>().pointwise().element([](E x) { return log(x); }).derivative<0>([](Along t, const Tensor& x) {
    return *t / x;
  });
  op<at::_ops::log2>().pointwise().element([](E x) { return log2(x); }).derivative<0>([](Along t, const Tensor& x) {
    return *t / (x * M_LN2);
  });
  op<at::_ops::log10>().pointwise().element([](E x) { return log10(x); }).derivative<0>([](Along t, const Tensor& x) {
    return *t / (x * M_LN10);
  });
  op<at::_ops::log1p>().pointwise().element([](E x) { return log1p(x); }).derivative<0>([](Along t, const Tensor& x) {
    return *t / (x + 1);
  });
  op<at::_ops::sigmoid>().pointwise().element([](E x) { return sigmoid(x); }).jvp<0>([](Tan<0> t, Skip, Out<0> y) {
    return at::sigmoid_backward(*t, conjugate(*y));
  });
  pulls_back_by<at::_ops::sigmoid, at::_ops::sigmoid_backward>([](Skip, Out<0> y) { return Stack{*y}; });
  // Outside of [eps, 1 - eps] the argument is clamped, so the derivative is zero.
  op<at::_ops::logit>()
      .pointwise()
      .element([](E x, std::optional<double> eps) {
        if (eps) {
          const E low = x.like(*eps), high = 1 - low;
          x = where(x < low, low, where(x > high, high, x));
        }
        return log(x / (1 - x));
      })
      .derivative<0>(
          [](Along t, const Tensor& x, const std::optional<double>& eps) { return at::logit_backward(*t, x, eps); });

  // ---- powers and roots ----
  op<at::_ops::sqrt>().pointwise().element([](E x) { return sqrt(x); }).derivative<0>([](Along t, Skip, Out<0> y) {
    return *t / (*y * 2);
  });
  op<at::_ops::rsqrt>().pointwise().element([](E x) { return 1 / sqrt(x); }).derivative<0>([](Out<0> y) {
    return y->pow(3) * -0.5;
  });

  // ---- trigonometric ----
  op<at::_ops::sin>().pointwise().element([](E x) { return sin(x); }).derivative<0>([](const Tensor& x) {
    return x.cos();
  });
  op<at::_ops::cos>().pointwise().element([](E x) { return cos(x); }).derivative<0>([](const Tensor& x) {
    return -x.sin();
  });
  op<at::_ops::tan>().pointwise().element([](E x) { return tan(x); }).derivative<0>([](Skip, Out<0> y) {
    return *y * *y + 1;
  });
  op<at::_ops::asin>().pointwise().element([](E x) { return asin(x); }).derivative<0>([](const Tensor& x) {
    return one_minus(x * x).rsqrt();
  });
  op<at::_ops::acos>().pointwise().element([](E x) { return acos(x); }).derivative<0>([](const Tensor& x) {
    return -one_minus(x * x).rsqrt();
  });
  op<at::_ops::atan>().pointwise().element([](E x) { return atan(x); }).derivative<0>([](Along t, const Tensor& x) {
    return *t / (x * x + 1);
  });
  // sin(πx) / (πx)
  op<at::_ops::sinc>()
      .pointwise()
      .element([](E x) {
        const E turned = x * M_PI;
        return where(x == 0, 1, sin(turned) / turned);
      })
      .derivative<0>([](const Tensor& x) { return slope_of_sine_over(x * M_PI) * M_PI; });
  op<at::_ops::deg2rad>().pointwise().element([](E x) { return x * (M_PI / 180); }).derivative<0>([]() {
    return Scalar(M_PI / 180);
  });
  op<at::_ops::rad2deg>().pointwise().element([](E x) { return x * (180 / M_PI); }).derivative<0>([]() {
    return Scalar(180 / M_PI);
  });

  // ---- hyperbolic ----
  op<at::_ops::sinh>().pointwise().element([](E x) { return sinh(x); }).derivative<0>([](const Tensor& x) {
    return x.cosh();
  });
  op<at::_ops::cosh>().pointwise().element([](E x) { return cosh(x); }).derivative<0>([](const Tensor& x) {
    return x.sinh();
  });
  op<at::_ops::tanh>().pointwise().element([](E x) { return tanh(x); }).jvp<0>([](Tan<0> t, Skip, Out<0> y) {
    return at::tanh_backward(*t, conjugate(*y));
  });
  pulls_back_by<at::_ops::tanh, at::_ops::tanh_backward>([](Skip, Out<0> y) { return Stack{*y}; });
  op<at::_ops::asinh>().pointwise().element([](E x) { return asinh(x); }).derivative<0>([](const Tensor& x) {
    return (x * x + 1).rsqrt();
  });
  // Complex: two roots, so that the branch cut is the function's own.
  op<at::_ops::acosh>().pointwise().element([](E x) { return acosh(x); }).derivative<0>([](const Tensor& x) {
    return x.is_complex() ? (x + 1).rsqrt() * (x - 1).rsqrt() : (x * x - 1).rsqrt();
  });
  op<at::_ops::atanh>().pointwise().element([](E x) { return atanh(x); }).derivative<0>([](Along t, const Tensor& x) {
    return *t / one_minus(x * x);
  });

  // ---- rounding ----
  op<at::_ops::frac>().pointwise().element([](E x) { return x - trunc(x); }).derivative<0>([]() { return Scalar(1); });
  step<at::_ops::floor>().element([](E x) { return floor(x); });
  step<at::_ops::ceil>().element([](E x) { return ceil(x); });
  step<at::_ops::round>().element([](E x) { return round(x); });
  step<at::_ops::round_decimals>().element(rounded);
  step<at::_ops::trunc>().element([](E x) { return trunc(x); });
  step<at::_ops::sign>().element([](E x) { return where(x > 0, 1, where(x < 0, -1, x.like(0))); });

  // mantissa · 2^exponent = x, and the exponent is piecewise constant.
  op<at::_ops::frexp_Tensor>()
      .pointwise()
      .element(mantissa_and_exponent)
      .nondifferentiable_outputs<1>()
      .derivative<0>([](Along t, Skip, Out<1> exponent) { return *t / exponent->exp2(); });
}

}  // namespace tower::rules
