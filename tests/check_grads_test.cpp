// check_grads itself: it accepts right derivatives of every kind, and names the wrong one. Wrong derivatives are made
// with detach(), which hides a dependence from the transforms but not from finite differences.
#include "tower/check_grads.h"

#include "support/prelude.h"

namespace {

using tower::Mode;

TEST(CheckGrads, AcceptsRightDerivativesOfTreesToHighOrder) {
  const auto f = [](const Tensor& x, const std::map<std::string, Tensor>& m, int power) {
    return std::pair(at::mv(m.at("w"), x).tanh(), (x * m.at("b")).pow(power).sum());
  };
  const std::map<std::string, Tensor> m{{"b", vec({0.3, -1.2, 0.7})},
                                        {"w", at::sin(at::arange(6, at::kDouble)).view({2, 3})}};
  EXPECT_NO_THROW(tower::check_grads(f, std::tuple(vec({1, -2, 0.5}), m, 3), 1));
  EXPECT_NO_THROW(tower::check_grads(f, std::tuple(vec({1, -2, 0.5}), m, 3), 2));
  EXPECT_NO_THROW(tower::check_grads([](const Tensor& x) { return x.sin(); }, vec({1, 2}), 3));
}

TEST(CheckGrads, AcceptsRightComplexDerivatives) {
  const Tensor z = at::complex(vec({1, -0.5}), vec({0.3, 2}));
  EXPECT_NO_THROW(tower::check_grads([](const Tensor& x) { return x * x.conj() * x; }, z, 2));
  EXPECT_NO_THROW(tower::check_grads([](const Tensor& x) { return x.abs(); }, z));
}

TEST(CheckGrads, AcceptsEmptyTensorsAndScalars) {
  EXPECT_NO_THROW(tower::check_grads([](const Tensor& x) { return x.exp(); }, vec({})));
  EXPECT_NO_THROW(tower::check_grads([](const Tensor& x) { return x.exp(); }, at::scalar_tensor(0.5, at::kDouble), 2));
}

TEST(CheckGrads, NamesTheOutputTheArgumentAndTheElementThatAreWrong) {
  const auto f = [](const Tensor& x, const Tensor& y) {
    const Tensor hidden = at::cat({y.narrow(0, 0, 1), y.narrow(0, 1, 1).detach()});  // element 1 depends on y in secret
    return std::tuple(x * y, x * hidden);
  };
  const auto args = std::tuple(vec({1, 2}), vec({3, 4}));
  const std::string forward =
      message_of<tower::DerivativeError>([&] { tower::check_grads(f, args, 1, {Mode::forward}); });
  EXPECT_TRUE(
      contains(forward,
               "check_grads: forward mode: the derivative of output 1 of the function with respect to argument 1, "
               "along a random direction, is 0 by jvp, but "))
      << forward;
  EXPECT_TRUE(contains(forward, " by finite differences, at element [1]")) << forward;
  const std::string reverse =
      message_of<tower::DerivativeError>([&] { tower::check_grads(f, args, 1, {Mode::reverse}); });
  EXPECT_TRUE(
      contains(reverse,
               "check_grads: reverse mode: the derivative of output 1 of the function with respect to argument 1, "
               "between a random cotangent and a random direction, is "))
      << reverse;
}

TEST(CheckGrads, FindsSecondDerivativesThatAreWrongWhereTheFirstAreRight) {
  // The value and the first derivative are those of x³; the derivative hides its dependence on x.
  const auto f = [](const Tensor& x) {
    const Tensor c = x.detach();
    return c.pow(3) + 3 * c.square() * (x - c);
  };
  EXPECT_NO_THROW(tower::check_grads(f, vec({1, 2}), 1));
  for (Mode mode : {Mode::forward, Mode::reverse}) {
    const std::string text = message_of<tower::DerivativeError>([&] { tower::check_grads(f, vec({1, 2}), 2, {mode}); });
    EXPECT_TRUE(contains(text, mode == Mode::forward ? "of the jvp of the function with respect to argument 0"
                                                     : "of the vjp of the function with respect to argument 0"))
        << text;
  }
}

TEST(CheckGrads, AWrongFactorIsFound) {
  const auto f = [](const Tensor& x) { return x * 1.0001 - 0.0001 * x.detach(); };
  EXPECT_THROW(tower::check_grads(f, vec({1, 2})), tower::DerivativeError);
  EXPECT_NO_THROW(tower::check_grads(f, vec({1, 2}), 1, {Mode::forward, Mode::reverse}, {.relative = 1e-3}));
}

TEST(CheckGrads, NaNsAreNotRight) {
  EXPECT_THROW(tower::check_grads([](const Tensor& x) { return x.log(); }, vec({-1})), tower::DerivativeError);
}

TEST(CheckGrads, OnlyDoublePrecisionIsAccepted) {
  EXPECT_EQ(
      message_of<tower::ArgumentError>([] {
        tower::check_grads([](const Tensor& x, const Tensor& y) { return x * y; },
                           std::tuple(vec({1}), vec({1}).to(at::kFloat)));
      }),
      "check_grads: argument 1 is of dtype Float, but finite differences need Double or ComplexDouble: convert it, or "
      "capture it in the function if it is not to be differentiated");
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>(
                           [] { tower::check_grads([](const Tensor& x) { return x.to(at::kFloat); }, vec({1})); }),
                       "output 0 is of dtype Float"));
}

TEST(CheckGrads, OrdersBelowOneAndNoModesAreRefused) {
  const auto f = [](const Tensor& x) { return x; };
  EXPECT_THROW(tower::check_grads(f, vec({1}), 0), tower::ArgumentError);
  EXPECT_THROW(tower::check_grads(f, vec({1}), 1, {}), tower::ArgumentError);
}

TEST(CheckGrads, LeavesTheProgramsRandomNumbersAlone) {
  at::manual_seed(3);
  const Tensor expected = at::rand({2});
  at::manual_seed(3);
  tower::check_grads([](const Tensor& x) { return x.sin(); }, vec({1, 2}));
  EXPECT_TRUE(at::rand({2}).equal(expected));
}

}  // namespace
