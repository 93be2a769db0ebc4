// Elements of the logarithmic derivatives of the gamma function (special_elements.h), and the two ways to add up a
// series of given coefficients that all special functions have in common.
#include <cmath>
#include <limits>

#include "rules/special_elements.h"

namespace tower::rules {

using compiler::Type;

E polynomial(E x, std::span<const double> coefficients) {
  E sum = x.like(coefficients[0]);
  for (const double c : coefficients.subspan(1)) sum = sum * x + c;
  return sum;
}

E chebyshev_series(E x, std::span<const double> coefficients) {
  E sum = x.like(coefficients[0]), before = x.like(0), last = before;
  for (const double c : coefficients.subspan(1)) {
    last = before;
    before = sum;
    sum = x * before - last + c;
  }
  return 0.5 * (sum - last);
}

// ψ(x) = ψ(x + n) − Σ 1/(x + k) up to 10, and from there its asymptotic series; ψ(x) = ψ(1 − x) − π / tan πx for what
// is negative. Cephes' psi.
E digamma(E x) {
  constexpr double asymptotic[] = {8.33333333333333333333E-2,  -2.10927960927960927961E-2, 7.57575757575757575758E-3,
                                   -4.16666666666666666667E-3, 3.96825396825396825397E-3,  -8.33333333333333333333E-3,
                                   8.33333333333333333333E-2};
  constexpr double psi_of_10 = 2.25175258906672110764, inf = std::numeric_limits<double>::infinity();
  const E negative = x < 0;
  E u = where(negative, 1 - x, x), sum = x.like(0);
  for (int k = 0; k < 10; ++k) {
    const E small = u < 10;
    sum = where(small, sum - 1 / u, sum);
    u = where(small, u + 1, u);
  }
  const E z = 1 / (u * u);
  const E rest = where(u < 1e17, z * polynomial(z, asymptotic), 0);
  const E positive = where(u == 10, sum + psi_of_10, sum + log(u) - 0.5 / u - rest);
  // In double precision, whatever the type.
  const E fraction = (x - trunc(x)).to(Type::f64);
  const E reflected = positive - (M_PI / tan(M_PI * fraction)).to(x.type());
  const E of_negative = where(x == trunc(x), std::numeric_limits<double>::quiet_NaN(), reflected);
  return where(x == 0, copysign(x.like(inf), -x), where(negative, of_negative, positive));
}

// ψ′: six steps of its recurrence, then the asymptotic series; by reflection below 1/2.
E trigamma(E x) {
  const E one = x.like(1), pi = x.like(M_PI), reflected = x < 0.5;
  const E turned = sin(pi * x);
  E sum = where(reflected, 0 - (pi * pi) / (turned * turned), 0), u = where(reflected, 1 - x, x);
  for (int k = 0; k < 6; ++k) {
    sum = sum + 1 / (u * u);
    u = u + 1;
  }
  const E z = 1 / (u * u);
  sum = sum + (1 + 1 / (2 * u) + z * (one / 6 - z * (one / 30 - z * (one / 42)))) / u;
  return where(reflected, -sum, sum);
}

}  // namespace tower::rules
