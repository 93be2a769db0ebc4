// Derivatives of whole powers go by multiplications, for the sake of time. Values are LibTorch's, where the numbers
// end, too.
#include <cmath>
#include <limits>

#include "support/oracles.h"
#include "support/prelude.h"

namespace {

using support::gradient;
using support::summed;

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

const Tensor& ends() {
  static const Tensor x = vec({0.0, -0.0, 1.5, -2.5, 1e-3, -1e-90, 1e90, 1e-310, 1e300, kInf, -kInf, kNan});
  return x;
}

TEST(DerivativesOfPowers, AreLibTorchs) {
  for (double p = -10; p <= 10; p += 0.5) {
    SCOPED_TRACE(p);
    for (const bool whole : {false, true}) {
      if (whole && p != std::trunc(p)) continue;
      const at::Scalar exponent = whole ? at::Scalar(static_cast<int64_t>(p)) : at::Scalar(p);
      const auto power = of_one([=](const Tensor& x) { return x.pow(exponent); });
      for (const Tensor& x : {ends(), ends().to(at::kFloat), waves({7})}) {
        const Tensor ct = at::linspace(-2, 2, x.numel(), x.options());
        // One by one: a comparison is relative to the largest.
        const Tensor expected = support::autograd_vjp(power, {x}, {ct})[0], found = td::vjp(power, {x}).second({ct})[0];
        EXPECT_TRUE(at::allclose(found, expected, x.scalar_type() == at::kFloat ? 1e-6 : 1e-14, 0, true))
            << found << "\n"
            << expected;
      }
    }
  }
}

TEST(DerivativesOfPowers, HaveDerivatives) {
  const Tensor x = waves({9}) + 1.5, v = waves({9}, 0.8);
  for (int p = -9; p <= 9; ++p) {
    const auto slope = gradient(summed(of_one([=](const Tensor& t) { return t.pow(p); })));
    const Tensor expected = support::directional_derivative(slope, {x}, {v})[0];
    EXPECT_EQ(support::difference(td::jvp(slope, {x}, {v}).second[0], expected, {1e-7, 1e-7}), "") << p;
  }
}

// The power that a negative one is the inverse of may be infinite where the inverse is a number.
TEST(DerivativesOfPowers, OfNegativeExponentsReachAsFarAsTheirTypes) {
  const auto power = [](int p) { return of_one([=](const Tensor& t) { return t.pow(p); }); };
  const Tensor x = vec({30.0, 41.0, 88.0, -60.0}).to(at::kHalf), exact = x.to(at::kDouble);
  for (int p = -7; p <= -1; ++p) {
    const Tensor found = gradient(summed(power(p)))({x})[0];
    // The smallest half is 2⁻²⁴.
    EXPECT_TRUE(at::allclose(found.to(at::kDouble), p * exact.pow(p - 1), 5e-3, std::ldexp(1.5, -24))) << p << found;
  }
  const Tensor far = vec({1e13, -3e12}).to(at::kFloat), ct = at::full({2}, 1e25, at::kFloat);
  const Tensor found = td::vjp(power(-2), {far}).second({ct})[0];
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), -2e25 * far.to(at::kDouble).pow(-3), 1e-4, 0)) << found;
}

}  // namespace
