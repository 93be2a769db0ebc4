// Derivatives whose formulas are 0/0 at zero and cancel beside it: of sin x / x, and of functions with f(x) ≈ x / 2
// near 0 that have f(x) / x in their derivative. There they are power series (DLMF 10.2.2, 10.25.2), which have
// derivatives themselves, where the value in the limit has none.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <array>

#include "records/masks.h"

namespace tower::rules {

/// series(x) where |x| < 1, formula(x) elsewhere. Neither sees an argument of the other: they get 0 and 1 there.
template <class Series, class Formula>
at::Tensor by_series_near_zero(const at::Tensor& x, Series series, Formula formula) {
  const at::Tensor near = x.detach().abs() < 1;
  return at::where(near, series(zero_where(near.logical_not(), x)), formula(at::where(near, at::Scalar(1), x)));
}

/// Of a power series in x², as many as count where |x| < 1, in derivatives as well.
using Coefficients = std::array<double, 12>;

/// Σ cₖ x²ᵏ
inline at::Tensor even_series(const at::Tensor& x, const Coefficients& c) {
  const at::Tensor z = x * x;
  at::Tensor sum = z * c.back() + c[c.size() - 2];
  for (size_t k = c.size() - 2; k-- > 0;) sum = sum * z + c[k];
  return sum;
}

/// series(x) where x > from, formula(x) elsewhere: of a function with an asymptotic series in 1/x², of which
/// Coefficients have all digits from there on. Neither sees an argument of the other: they get `from` and 0 there.
template <class Series, class Formula>
at::Tensor by_series_in_tail(const at::Tensor& x, double from, Series series, Formula formula) {
  const at::Tensor far = x.detach() > from;
  return at::where(far, series(at::where(far, x, at::Scalar(from))), formula(zero_where(far, x)));
}

/// The derivative of sin x / x.
inline at::Tensor slope_of_sine_over(const at::Tensor& x) {
  static const Coefficients c = [] {
    Coefficients all;
    double inverse_factorial = 1;  // 1 / (2k + 1)!, with its sign
    for (size_t k = 1; k <= all.size(); ++k) {
      const auto twice = static_cast<double>(2 * k);
      inverse_factorial /= -twice * (twice + 1);
      all[k - 1] = twice * inverse_factorial;
    }
    return all;
  }();
  return by_series_near_zero(
      x, [](const at::Tensor& u) { return u * even_series(u, c); },
      [](const at::Tensor& u) { return (u * u.cos() - u.sin()) / (u * u); });
}

/// Of the derivative of Bessel's function J₁ (`sign` −1) or I₁ (1).
inline Coefficients slope_of_bessel_1(double sign) {
  Coefficients all;
  double term = 0.5;  // ½ (±¼)ᵏ / (k! (k + 1)!)
  for (size_t k = 0; k < all.size(); ++k) {
    all[k] = static_cast<double>(2 * k + 1) * term;
    term *= sign / 4 / static_cast<double>((k + 1) * (k + 2));
  }
  return all;
}

}  // namespace tower::rules
