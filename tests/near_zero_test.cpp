// Functions whose derivatives' formulas are 0/0 at zero: the derivatives of any order there and beside it are those of
// the power series, whose coefficients are known.
#include <cmath>
#include <functional>
#include <vector>

#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/taylor.h"

namespace {

using Operator = Tensor (*)(const Tensor&);

struct Series {
  std::string name;
  Operator f;
  std::function<double(int)> coefficient;  // of x to a power
};

// Of sin(ax) / (ax), and of J₁ and I₁ (DLMF 10.2.2, 10.25.2).
double of_sine(double a, int k) { return k % 2 == 1 ? 0 : std::pow(-1, k / 2) * std::pow(a, k) / std::tgamma(k + 2); }
double of_bessel(int sign, int k) {
  if (k % 2 == 0) return 0;
  const int m = k / 2;
  return std::pow(sign, m) * std::pow(0.5, k) / (std::tgamma(m + 1) * std::tgamma(m + 2));
}

std::vector<Series> all_series() {
  return {{"sinc", at::sinc, [](int k) { return of_sine(M_PI, k); }},
          {"spherical_bessel_j0", at::special_spherical_bessel_j0, [](int k) { return of_sine(1, k); }},
          {"bessel_j1", at::special_bessel_j1, [](int k) { return of_bessel(-1, k); }},
          {"i1", at::special_i1, [](int k) { return of_bessel(1, k); }},
          {"modified_bessel_i1", at::special_modified_bessel_i1, [](int k) { return of_bessel(1, k); }}};
}

// The order-th derivative of the series.
Tensor derivative(const Series& s, int order, const Tensor& x) {
  Tensor sum = at::zeros_like(x);
  for (int k = order; k < 60; ++k)
    sum = sum + x.pow(k - order) * (s.coefficient(k) * std::tgamma(k + 1) / std::tgamma(k - order + 1));
  return sum;
}

const Tensor& points() {
  static const Tensor x = vec({0.0, 1e-12, -1e-9, 1e-5, 1e-3, -0.03, 0.2, 0.31, 0.32, 0.9, -0.999, 1.001, 1.4});
  return x;
}

void expect_close(const Tensor& found, const Tensor& expected, double relative, const std::string& what) {
  // One by one: near zero derivatives of even or odd order are small, and right all the same.
  EXPECT_TRUE(at::allclose(found, expected, relative, 1e-300)) << what << found << "\n" << expected;
}

TEST(DerivativesNearZero, AreThoseOfThePowerSeries) {
  for (const Series& s : all_series()) {
    const Tensor& x = points();
    const auto f = [&s](const Tensor& t) { return s.f(t); };
    const auto sum = [&s](const Tensor& t) { return s.f(t).sum(); };
    expect_close(tower::grad(sum)(x), derivative(s, 1, x), 1e-12, s.name);
    const auto series = tower::derivatives_along(f, x, at::ones_like(x), 5);
    for (int k = 1; k <= 5; ++k) expect_close(series[k], derivative(s, k, x), 1e-9, s.name + std::to_string(k));
    const auto slope = tower::grad(sum);
    const auto bend = tower::grad([&](const Tensor& t) { return slope(t).sum(); });
    expect_close(bend(x), derivative(s, 2, x), 1e-10, s.name + ", twice");
    const Tensor single = x.to(at::kFloat);
    expect_close(tower::grad(sum)(single).to(at::kDouble), derivative(s, 1, single.to(at::kDouble)), 3e-6, s.name);
  }
}

TEST(DerivativesNearZero, OfAComplexNumber) {
  const Tensor z = at::complex(vec({0.0, 1e-9, 0.1, 0.3}), vec({0.0, -1e-9, 0.2, 0.05}));
  const auto found = tower::derivatives_along([](const Tensor& t) { return t.sinc(); }, z, at::ones_like(z), 2);
  for (int k = 1; k <= 2; ++k)
    EXPECT_TRUE(at::allclose(found[k], derivative({"", nullptr, [](int n) { return of_sine(M_PI, n); }}, k, z), 1e-11));
}

// exp(-|x|) I₁(x): beside zero of the right.
TEST(DerivativesNearZero, OfTheScaledBesselFunction) {
  const Tensor x = vec({1e-12, 1e-9, 1e-5, 1e-3, 0.03, 0.5, 0.999, 1.001, 1.4});
  const Series plain{"", nullptr, [](int k) { return of_bessel(1, k); }};
  Tensor expected = at::zeros_like(x);
  for (int k = 0, choose[] = {1, 3, 3, 1}; k <= 3; ++k)
    expected = expected + (-x).exp() * derivative(plain, k, x) * (choose[k] * (k % 2 == 0 ? -1 : 1));
  expect_close(tower::derivatives_along([](const Tensor& t) { return at::special_i1e(t); }, x, at::ones_like(x), 3)[3],
               expected, 1e-9, "i1e");
}

}  // namespace
