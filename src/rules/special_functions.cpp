// Special functions: gamma, error, Bessel and zeta functions, orthogonal polynomials, and products with logarithms.
// Formulas: DLMF (dlmf.nist.gov), by chapter where it is not obvious.
#include <ATen/Functions.h>
#include <ATen/Operators.h>

#include <cmath>
#include <limits>

#include "numbers/element.h"
#include "records/masks.h"
#include "records/op.h"
#include "rules/near_zero.h"
#include "rules/registry.h"
#include "rules/special_elements.h"
#include "tower/errors.h"

namespace tower::rules {
namespace {

const double kRootPi = std::sqrt(M_PI), kRootTwoPi = std::sqrt(2 * M_PI);

// f'(x) = regular(x) - f(x) / x for Bessel's functions J₁ (`sign` -1) and I₁ (1).
template <class F>
Tensor slope_of_bessel(double sign, const Tensor& x, const Tensor& y, F regular) {
  return by_series_near_zero(
      x, [&](const Tensor& u) { return even_series(u, slope_of_bessel_1(sign)); },
      [&](const Tensor& u) { return regular(u) - y / u; });
}

// LibTorch evaluates it, and there is no formula in terms of LibTorch's functions for its derivative with respect to
// argument i. That must not pass for a zero.
template <class Op, int i>
[[noreturn]] void refuse_derivative() {
  throw DerivativeError(std::string(Op::name) + " has no derivative formula with respect to '" +
                        record_of(Op::name, Op::overload_name).argument_name(i) +
                        "'. Write it in terms of differentiable functions, or detach that argument.");
}
template <class Op, int... i>
void without_formula() {
  (op<Op>()
       .pointwise()
       .template vjp<i>([](Ct<0>) -> Tensor { refuse_derivative<Op, i>(); })
       .template jvp<i>([](Tan<i>) -> Tensor { refuse_derivative<Op, i>(); }),
   ...);
}
// Elements are of those whose degree is a number: how many steps a recurrence takes is then known.
template <class XN, class XScalar, class NScalar>
void polynomials(Polynomial* element) {
  without_formula<XN, 0, 1>();
  without_formula<XScalar, 1>();
  without_formula<NScalar, 0>();
  op<NScalar>().element(element);
}

// 0 log y = 0, but where y is NaN.
E x_log_y(E x, E y) { return where((x == 0) & !isnan(y), 0, x * log(y)); }
// The vector library's log1p loses denormal numbers, which LibTorch's single numbers keep.
E x_log1p_y(E x, E y) { return where((x == 0) & !isnan(y), 0, x * where(abs(y) < 1e-20, y, log1p(y))); }

// Of order p: log(π) p (p − 1) / 4 + Σ log Γ(x − i / 2), i < p.
std::optional<E> multivariate_lgamma(E x, int64_t p) {
  constexpr int64_t most = 16;  // more are a long sum
  if (p < 1 || p > most) return std::nullopt;
  E sum = lgamma(x - 0.5 * static_cast<double>(p - 1));
  for (int64_t i = p - 2; i >= 0; --i) sum = sum + lgamma(x - 0.5 * static_cast<double>(i));
  return sum + static_cast<double>(p * (p - 1)) * std::log(M_PI) * 0.25;
}

std::optional<E> polygamma(int64_t n, E x) {
  if (n == 0) return digamma(x);
  return n == 1 ? std::optional(trigamma(x)) : std::nullopt;
}

// NOTE [Derivatives in a tail]
// e^(x²) erfc x and φ(x) / Φ(x) go like 1/x and −x, and their recurrences, 2xy − 2/√π and −y (x + y), take off all but
// one part in x². Each further derivative does that again, so that the third had no digit left. There their asymptotic
// series (DLMF 7.12.1, and what its reciprocal's is) are differentiated, term by term.
Tensor slope_of_erfcx(const Tensor& x, const Tensor& y) {
  static const Coefficients c = [] {
    Coefficients all;
    double term = -1 / kRootPi;  // −(−½)ᵏ (2k − 1)!! / √π
    for (size_t k = 0; k < all.size(); ++k) {
      const auto odd = static_cast<double>(2 * k + 1);
      all[k] = odd * term;
      term *= -odd / 2;
    }
    return all;
  }();
  return by_series_in_tail(
      x, 15,
      [](const Tensor& far) {
        const Tensor u = far.reciprocal();
        return u * u * even_series(u, c);
      },
      [&](const Tensor& near) { return 2 * near * y - 2 / kRootPi; });
}

// φ(x) / Φ(x), of y = log Φ(x). The series is that of z = −x, with the coefficients of OEIS A000698. Up to it the
// quotient is √(2/π) / erfcx(−x/√2) below −1, where y, as large as x²/2, would lose digits.
Tensor density_over_ndtr(const Tensor& x, const Tensor& y) {
  static constexpr Coefficients kSeries{1,     1,       -2,       10,         -74,        706,
                                        -8162, 110'410, -1708394, 29'752'066, -576037442, 12'277'827'850};
  const Tensor is_tail = x < -1, inside = zero_where(is_tail, x);
  const Tensor by_value = (-(zero_where(is_tail, y) + inside * inside / 2)).exp() / kRootTwoPi;
  const Tensor in_tail = by_series_in_tail(
      -x, 20, [](const Tensor& far) { return far * even_series(far.reciprocal(), kSeries); },
      [&](const Tensor& near) { return M_2_SQRTPI * M_SQRT1_2 / at::special_erfcx(M_SQRT1_2 * near.clamp_min(1)); });
  return at::where(is_tail, in_tail, by_value);
}

// log(e^a + e^b) = max + log(1 + e^−|a − b|)
E log_of_sum(E a, E b, E rest) {
  const E infinite = (a == b) & (abs(a) == std::numeric_limits<double>::infinity());
  return where(infinite, a, maximum(a, b) + rest);
}

}  // namespace

void special_functions() {
  // ---- gamma ----
  op<at::_ops::lgamma>().pointwise().element([](E x) { return lgamma(x); }).derivative<0>([](const Tensor& x) {
    return x.digamma();
  });
  op<at::_ops::digamma>().pointwise().element(digamma).derivative<0>(
      [](const Tensor& x) { return at::polygamma(1, x); });
  op<at::_ops::polygamma>().pointwise().element(polygamma).derivative<1>(
      [](int64_t n, const Tensor& x) { return at::polygamma(n + 1, x); });
  // Σ log Γ(x - i/2) + const
  op<at::_ops::mvlgamma>().pointwise().element(multivariate_lgamma).derivative<0>([](const Tensor& x, int64_t p) {
    Tensor slope = x.digamma();
    for (int64_t i = 1; i < p; ++i) slope = slope + (x - 0.5 * static_cast<double>(i)).digamma();
    return slope;
  });
  // ∂P(a, x)/∂x = x^(a-1) e^-x / Γ(a); with respect to a there is no closed form.
  op<at::_ops::igamma>().pointwise().derivative<1>(
      [](const Tensor& a, const Tensor& x) { return ((a - 1) * x.log() - x - a.lgamma()).exp(); });
  op<at::_ops::igammac>().pointwise().derivative<1>(
      [](const Tensor& a, const Tensor& x) { return -((a - 1) * x.log() - x - a.lgamma()).exp(); });
  without_formula<at::_ops::igamma, 0>();
  without_formula<at::_ops::igammac, 0>();

  // ---- error function and the normal distribution ----
  op<at::_ops::erf>().pointwise().element([](E x) { return erf(x); }).derivative<0>([](const Tensor& x) {
    return (-(x * x)).exp() * (2 / kRootPi);
  });
  op<at::_ops::erfc>().pointwise().element([](E x) { return erfc(x); }).derivative<0>([](const Tensor& x) {
    return (-(x * x)).exp() * (-2 / kRootPi);
  });
  op<at::_ops::erfinv>().pointwise().derivative<0>([](Out<0> y) { return (*y * *y).exp() * (kRootPi / 2); });
  op<at::_ops::special_erfcx>().pointwise().derivative<0>(
      [](const Tensor& x, Out<0> y) { return slope_of_erfcx(x, *y); });
  op<at::_ops::special_ndtri>().pointwise().element(normal_quantile).derivative<0>([](Out<0> y) {
    return (*y * *y / 2).exp() * kRootTwoPi;
  });
  op<at::_ops::special_log_ndtr>().pointwise().derivative<0>(
      [](const Tensor& x, Out<0> y) { return density_over_ndtr(x, *y); });

  // ---- logarithms with their factor: 0 log 0 = 0 ----
  op<at::_ops::special_entr>()
      .pointwise()
      .element([](E x) {
        const E outside = where(x == 0, 0, x.like(-std::numeric_limits<double>::infinity()));
        return where(isnan(x), x, where(x > 0, -x * log(x), outside));
      })
      .derivative<0>([](const Tensor& x) { return -(x.log() + 1); });
  op<at::_ops::xlogy_Tensor>()
      .pointwise()
      .element(x_log_y)
      .derivative<0>([](Along t, const Tensor& x, const Tensor& y) {
        return zero_where((x == 0).logical_and(y <= 0), at::xlogy(*t, y));
      })
      .derivative<1>([](Along t, const Tensor& x, const Tensor& y) { return *t * x / y; });
  op<at::_ops::xlogy_Scalar_Self>().pointwise().element(x_log_y).derivative<1>(
      [](Along t, const Scalar& x, const Tensor& y) { return *t * x / y; });
  op<at::_ops::xlogy_Scalar_Other>().pointwise().element(x_log_y).derivative<0>(
      [](Along t, const Tensor& x, const Scalar& y) {
        const Tensor slope = at::xlogy(*t, y);
        return y.toDouble() > 0 ? slope : zero_where(x == 0, slope);
      });
  op<at::_ops::special_xlog1py>()
      .pointwise()
      .element(x_log1p_y)
      .derivative<0>([](Along t, const Tensor& x, const Tensor& y) {
        return zero_where((x == 0).logical_and(y <= -1), at::special_xlog1py(*t, y));
      })
      .derivative<1>([](Along t, const Tensor& x, const Tensor& y) { return *t * x / (y + 1); });
  op<at::_ops::special_xlog1py_self_scalar>().pointwise().element(x_log1p_y).derivative<1>(
      [](Along t, const Scalar& x, const Tensor& y) { return *t * x / (y + 1); });
  op<at::_ops::special_xlog1py_other_scalar>().pointwise().element(x_log1p_y).derivative<0>(
      [](Along t, const Tensor& x, const Scalar& y) {
        const Tensor slope = at::special_xlog1py(*t, y);
        return y.toDouble() > -1 ? slope : zero_where(x == 0, slope);
      });
  // log(e^a + e^b), whose partial derivatives add up to one.
  op<at::_ops::logaddexp>()
      .pointwise()
      .element([](E a, E b) { return log_of_sum(a, b, log1p(exp(-abs(a - b)))); })
      .derivative<0>([](const Tensor& a, const Tensor& b) { return (a - b).sigmoid(); })
      .derivative<1>([](const Tensor& a, const Tensor& b) { return (b - a).sigmoid(); });
  op<at::_ops::logaddexp2>()
      .pointwise()
      .element([](E a, E b) { return log_of_sum(a, b, log1p(exp2(-abs(a - b))) * (1 / M_LN2)); })
      .derivative<0>([](const Tensor& a, const Tensor& b) { return ((a - b) * M_LN2).sigmoid(); })
      .derivative<1>([](const Tensor& a, const Tensor& b) { return ((b - a) * M_LN2).sigmoid(); });

  // ---- Bessel functions (DLMF 10.6, 10.29) ----
  op<at::_ops::i0>().pointwise().element([](E x) { return i0(x, Scaled::no); }).derivative<0>([](const Tensor& x) {
    return at::special_i1(x);
  });
  op<at::_ops::special_i0e>()
      .pointwise()
      .element([](E x) { return i0(x, Scaled::yes); })
      .derivative<0>([](const Tensor& x, Out<0> y) { return at::special_i1e(x) - x.sgn() * *y; });
  op<at::_ops::special_i1>()
      .pointwise()
      .element([](E x) { return i1(x, Scaled::no); })
      .derivative<0>([](const Tensor& x, Out<0> y) { return slope_of_bessel(1, x, *y, at::i0); });
  op<at::_ops::special_i1e>()
      .pointwise()
      .element([](E x) { return i1(x, Scaled::yes); })
      .derivative<0>([](const Tensor& x, Out<0> y) {
        return by_series_near_zero(
            x,
            [&](const Tensor& u) { return u.abs().neg().exp() * even_series(u, slope_of_bessel_1(1)) - *y * u.sgn(); },
            [&](const Tensor& u) { return at::special_i0e(u) - *y * (u.sgn() + u.reciprocal()); });
      });
  op<at::_ops::special_modified_bessel_i0>().pointwise().element(modified_bessel_i0).derivative<0>([](const Tensor& x) {
    return at::special_modified_bessel_i1(x);
  });
  op<at::_ops::special_modified_bessel_i1>()
      .pointwise()
      .element(modified_bessel_i1)
      .derivative<0>(
          [](const Tensor& x, Out<0> y) { return slope_of_bessel(1, x, *y, at::special_modified_bessel_i0); });
  op<at::_ops::special_modified_bessel_k0>()
      .pointwise()
      .element([](E x) { return modified_bessel_k0(x, Scaled::no); })
      .derivative<0>([](const Tensor& x) { return -at::special_modified_bessel_k1(x); });
  op<at::_ops::special_modified_bessel_k1>()
      .pointwise()
      .element([](E x) { return modified_bessel_k1(x, Scaled::no); })
      .derivative<0>([](const Tensor& x, Out<0> y) { return -at::special_modified_bessel_k0(x) - *y / x; });
  op<at::_ops::special_scaled_modified_bessel_k0>()
      .pointwise()
      .element([](E x) { return modified_bessel_k0(x, Scaled::yes); })
      .derivative<0>([](const Tensor& x, Out<0> y) { return *y - at::special_scaled_modified_bessel_k1(x); });
  op<at::_ops::special_scaled_modified_bessel_k1>()
      .pointwise()
      .element([](E x) { return modified_bessel_k1(x, Scaled::yes); })
      .derivative<0>([](const Tensor& x, Out<0> y) { return *y - at::special_scaled_modified_bessel_k0(x) - *y / x; });
  op<at::_ops::special_bessel_j0>().pointwise().element(bessel_j0).derivative<0>(
      [](const Tensor& x) { return -at::special_bessel_j1(x); });
  op<at::_ops::special_bessel_j1>().pointwise().element(bessel_j1).derivative<0>(
      [](const Tensor& x, Out<0> y) { return slope_of_bessel(-1, x, *y, at::special_bessel_j0); });
  op<at::_ops::special_bessel_y0>().pointwise().element(bessel_y0).derivative<0>(
      [](const Tensor& x) { return -at::special_bessel_y1(x); });
  op<at::_ops::special_bessel_y1>().pointwise().element(bessel_y1).derivative<0>(
      [](const Tensor& x, Out<0> y) { return at::special_bessel_y0(x) - *y / x; });
  // sin x / x
  op<at::_ops::special_spherical_bessel_j0>()
      .pointwise()
      .element(spherical_bessel_j0)
      .derivative<0>([](const Tensor& x) { return slope_of_sine_over(x); });

  // ---- zeta: with respect to its first argument there is no closed form ----
  op<at::_ops::special_zeta>().pointwise().derivative<1>(
      [](const Tensor& s, const Tensor& q) { return -s * at::special_zeta(s + 1, q); });
  op<at::_ops::special_zeta_self_scalar>().pointwise().derivative<1>(
      [](const Scalar& s, const Tensor& q) { return at::special_zeta(Scalar(s.toDouble() + 1), q) * -s; });
  without_formula<at::_ops::special_zeta, 0>();
  without_formula<at::_ops::special_zeta_other_scalar, 0>();

  // ---- without derivative formulas ----
  without_formula<at::_ops::special_airy_ai, 0>();
  op<at::_ops::special_airy_ai>().element(airy_ai);
  using namespace at::_ops;
  polynomials<special_chebyshev_polynomial_t, special_chebyshev_polynomial_t_x_scalar,
              special_chebyshev_polynomial_t_n_scalar>(chebyshev_t);
  polynomials<special_chebyshev_polynomial_u, special_chebyshev_polynomial_u_x_scalar,
              special_chebyshev_polynomial_u_n_scalar>(chebyshev_u);
  polynomials<special_chebyshev_polynomial_v, special_chebyshev_polynomial_v_x_scalar,
              special_chebyshev_polynomial_v_n_scalar>(chebyshev_v);
  polynomials<special_chebyshev_polynomial_w, special_chebyshev_polynomial_w_x_scalar,
              special_chebyshev_polynomial_w_n_scalar>(chebyshev_w);
  polynomials<special_shifted_chebyshev_polynomial_t, special_shifted_chebyshev_polynomial_t_x_scalar,
              special_shifted_chebyshev_polynomial_t_n_scalar>(shifted_chebyshev_t);
  polynomials<special_shifted_chebyshev_polynomial_u, special_shifted_chebyshev_polynomial_u_x_scalar,
              special_shifted_chebyshev_polynomial_u_n_scalar>(shifted_chebyshev_u);
  polynomials<special_shifted_chebyshev_polynomial_v, special_shifted_chebyshev_polynomial_v_x_scalar,
              special_shifted_chebyshev_polynomial_v_n_scalar>(shifted_chebyshev_v);
  polynomials<special_shifted_chebyshev_polynomial_w, special_shifted_chebyshev_polynomial_w_x_scalar,
              special_shifted_chebyshev_polynomial_w_n_scalar>(shifted_chebyshev_w);
  polynomials<special_hermite_polynomial_h, special_hermite_polynomial_h_x_scalar,
              special_hermite_polynomial_h_n_scalar>(hermite_h);
  polynomials<special_hermite_polynomial_he, special_hermite_polynomial_he_x_scalar,
              special_hermite_polynomial_he_n_scalar>(hermite_he);
  polynomials<special_laguerre_polynomial_l, special_laguerre_polynomial_l_x_scalar,
              special_laguerre_polynomial_l_n_scalar>(laguerre_l);
  polynomials<special_legendre_polynomial_p, special_legendre_polynomial_p_x_scalar,
              special_legendre_polynomial_p_n_scalar>(legendre_p);
}

}  // namespace tower::rules
