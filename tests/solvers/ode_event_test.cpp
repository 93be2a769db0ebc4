// odeint_until. Oracles: closed forms of falling bodies, of the pendulum's period (an elliptic integral by its
// arithmetic-geometric mean), and of oscillators.
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "support/nestings.h"
#include "support/prelude.h"
#include "tower/compile.h"
#include "tower/loops.h"
#include "tower/odeint.h"
#include "tower/transforms.h"

namespace {

using tower::Ode;
using tower::OdeCrossing;
using tower::OdeOptions;
using tower::OdeStatus;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr auto kEvent = static_cast<int64_t>(OdeStatus::event);
const OdeOptions kFine{.rtol = 1e-10, .atol = 1e-10};

double largest(const Tensor& t) { return t.abs().max().item<double>(); }

struct Ball {
  Tensor height, speed;
};
constexpr auto tower_fields(const Ball&) { return std::tuple(&Ball::height, &Ball::speed); }

// From `height`, with `speed` upwards, under g, to the ground.
tower::OdeEventSolution<Ball> fall(const Ball& start, const Tensor& g, const Tensor& ts, OdeOptions options = kFine) {
  options.crossing = OdeCrossing::falling;
  return tower::odeint_until(
      [g](const Tensor&, const Ball& b) {
        return Ball{b.speed, -g};
      },
      [](const Tensor&, const Ball& b) { return b.height; }, start, ts, options);
}

TEST(OdeEvents, ABallFallsForSqrtOfTwiceItsHeightByG) {
  const Tensor g = at::scalar_tensor(9.81, at::kDouble), rest = at::zeros({}, at::kDouble);
  const Tensor ts = vec({0, 0.5, 1, 1.5, 2, 3});
  for (const Ode method : {Ode::tsit5, Ode::dopri5, Ode::rodas5p}) {
    OdeOptions options = kFine;
    options.method = method;
    const auto found = fall({at::scalar_tensor(10, at::kDouble), rest}, g, ts, options);
    const double t = std::sqrt(20 / 9.81);
    EXPECT_EQ(found.status.item<int64_t>(), kEvent);
    EXPECT_NEAR(found.t.item<double>(), t, 1e-12);
    EXPECT_NEAR(found.y.height.item<double>(), 0, 1e-13);
    EXPECT_NEAR(found.y.speed.item<double>(), -9.81 * t, 1e-11);
    EXPECT_LT(largest(found.ys.height.slice(0, 0, 3) - (10 - 9.81 / 2 * ts.slice(0, 0, 3).square())), 1e-11);
    EXPECT_TRUE(found.ys.height.slice(0, 3).isnan().all().item<bool>());
  }
  const auto short_of_it = fall({at::scalar_tensor(10, at::kDouble), rest}, g, vec({0, 1}));
  EXPECT_EQ(short_of_it.status.item<int64_t>(), 0);
  EXPECT_EQ(short_of_it.t.item<double>(), 1);
  EXPECT_NEAR(short_of_it.y.height.item<double>(), 10 - 9.81 / 2, 1e-11);
  EXPECT_TRUE(same(short_of_it.ys.height[1], short_of_it.y.height));
}

TEST(OdeEvents, DerivativesOfHigherOrdersAreThoseOfTheImplicitFunction) {
  // Of √(2 h / g) by h, where the dense output is exact: the third is 3/8 √(2 / g) h^(−5/2), the fourth −15/16 …
  // h^(−7/2).
  const auto time = [](const Tensor& h) {
    return fall({h, at::zeros_like(h)}, at::scalar_tensor(2, at::kDouble), vec({0, 9})).t;
  };
  const Tensor h = at::scalar_tensor(4, at::kDouble);
  const auto third = tower::jacfwd(tower::grad(tower::jacfwd(time)));
  EXPECT_NEAR(third(h).item<double>(), 3. / 8 / 32, 1e-10);
  EXPECT_NEAR(tower::grad(tower::grad(tower::grad(time)))(h).item<double>(), 3. / 8 / 32, 1e-10);
  EXPECT_NEAR(tower::jacfwd(third)(h).item<double>(), -15. / 16 / 128, 1e-10);
}

TEST(OdeEvents, ABouncingBallIsRestartedOnTheGroundWithItsDerivatives) {
  // Dropped from h, with a part e of its speed after each of n bounces: √(2 h / g) (1 + 2 (e + e² + … + eⁿ)).
  const auto bounces = [](const Tensor& p) {
    const Tensor h = p[0], g = p[1], e = p[2], ground = at::zeros({}, p.options());
    auto last = fall({h, ground}, g, vec({0, 9}));
    Tensor total = last.t;
    for (int n = 0; n < 3; ++n) {
      last = fall({ground, -e * last.y.speed}, g, vec({0, 9}));
      total = total + last.t;
    }
    return total;
  };
  const auto closed = [](const Tensor& p) {
    const Tensor e = p[2];
    return (2 * p[0] / p[1]).sqrt() * (1 + 2 * (e + e * e + e * e * e));
  };
  const Tensor p = vec({2, 9.81, 0.8});
  EXPECT_NEAR(bounces(p).item<double>(), closed(p).item<double>(), 1e-10);
  const Tensor expected = tower::grad(closed)(p);
  EXPECT_LT(largest(tower::grad(bounces)(p) - expected), 1e-8);
  EXPECT_LT(largest(tower::jacfwd(bounces)(p) - expected), 1e-8);
}

TEST(OdeEvents, ThePeriodOfAPendulumIsThatOfTheEllipticIntegral) {
  // From rest at the angle a it comes back to rest there after 2 π / agm(1, cos(a / 2)).
  const auto period = [](const Tensor& a) {
    const auto swing = [](const Tensor&, const Tensor& y) { return at::stack({y[1], -y[0].sin()}); };
    OdeOptions options = kFine;
    options.crossing = OdeCrossing::falling;  // the speed is zero in the beginning, and falls: that does not count
    return tower::odeint_until(
        swing, [](const Tensor&, const Tensor& y) { return y[1]; }, at::stack({a, at::zeros_like(a)}), vec({0, 20}),
        options);
  };
  const auto closed = [](const Tensor& a) {
    Tensor x = at::ones_like(a), y = (a / 2).cos();
    for (int k = 0; k < 6; ++k) std::tie(x, y) = std::pair((x + y) / 2, (x * y).sqrt());
    return 2 * std::numbers::pi / x;
  };
  const Tensor angles = vec({0.1, 1, 2, 3});
  const auto found = tower::vmap(period)(angles);
  EXPECT_TRUE((found.status == kEvent).all().item<bool>());
  EXPECT_LT(largest(found.t - closed(angles)), 1e-7);
  EXPECT_LT(largest(found.y.select(1, 0) - angles), 1e-7);
  const Tensor expected = tower::vmap(tower::grad(closed))(angles);
  const auto time = [&](const Tensor& a) { return period(a).t; };
  EXPECT_LT(largest(tower::vmap(tower::grad(time))(angles) - expected), 1e-6);
  EXPECT_LT(largest(tower::vmap(tower::jacfwd(time))(angles) - expected), 1e-6);
}

// y'' = −w² y from y = a, y' = 0, to y = b, between −a and a: t = acos(b / a) / w.
struct Swing {
  Tensor a, w, b;
};
Swing swing_of(const Tensors& in) { return {3 + in[0].sin(), 1 + in[1] * in[1], in[2].sin()}; }
Tensors oscillator(const Tensors& in) {
  const auto [a, w, b] = swing_of(in);
  const auto slope = [w = w](const Tensor&, const Tensors& y) { return Tensors{y[1], -w * w * y[0]}; };
  const auto event = [b = b](const Tensor&, const Tensors& y) { return y[0] - b; };
  const auto found = td::odeint_until(slope, event, {a, at::zeros_like(a)}, vec({0, 9}), kFine);
  return {found.t, found.y[1]};
}
Tensors closed_oscillator(const Tensors& in) {
  const auto [a, w, b] = swing_of(in);
  const Tensor ratio = b / a;
  return {ratio.acos() / w, -w * a * (1 - ratio * ratio).sqrt()};
}

TEST(OdeEvents, EveryNestingOfTransformsIsThatOfTheClosedForm) {
  for (const std::string& kinds : support::nestings()) {
    // Each derivative of the dense output is of one order less; the third ones are tested where it is exact.
    if (!contains(kinds, "v")) continue;
    const Tensors inputs = support::inputs_of({{}, {}, {}}, kinds);
    const Tensors expected = support::transformed(kinds, closed_oscillator, /*by_loop=*/true)(inputs);
    EXPECT_EQ(support::difference(support::transformed(kinds, oscillator, false)(inputs), expected, {1e-5, 1e-5}), "")
        << kinds;
  }
}

TEST(OdeEvents, EachSystemOfAnEnsembleHasItsOwnAlsoCompiled) {
  // y = a cos t goes down through 1/2 at acos(1 / (2 a)), for a above 1/2.
  const auto one = [](const Tensor& a) {
    const auto slope = [](const Tensor&, const Tensor& y) { return at::stack({y[1], -y[0]}); };
    const auto event = [](const Tensor&, const Tensor& y) { return y[0] - 0.5; };
    OdeOptions options{.rtol = 1e-9, .atol = 1e-9, .first_step = 0.1};
    options.crossing = OdeCrossing::falling;
    return tower::odeint_until(slope, event, at::stack({a, at::zeros_like(a)}), vec({0, 1.6}), options);
  };
  const Tensor a = vec({0.2, 0.6, 1, 5, kNan});
  const auto many = tower::vmap(one)(a);
  EXPECT_TRUE(
      same(many.status, at::tensor({int64_t{0}, kEvent, kEvent, kEvent, static_cast<int64_t>(OdeStatus::not_finite)})));
  const Tensor times = (0.5 / a).acos();
  EXPECT_EQ(many.t[0].item<double>(), 1.6);
  EXPECT_LT(largest((many.t - times).slice(0, 1, 4)), 1e-7);
  const Tensor good = a.slice(0, 0, 4);
  const auto values = tower::compile(tower::vmap(one));
  const auto expected = tower::vmap(one)(good);
  const auto slope = tower::compile(tower::vmap(tower::grad([&](const Tensor& x) { return one(x).t; })));
  for (int call = 0; call < 3; ++call) {
    const auto found = values(good);
    EXPECT_EQ(support::difference({found.t, found.y, found.status}, {expected.t, expected.y, expected.status},
                                  {1e-10, 1e-10}),
              "");
    const Tensor by_a = slope(good);
    EXPECT_EQ(by_a[0].item<double>(), 0);
    const Tensor rest = good.slice(0, 1);
    EXPECT_LT(largest(by_a.slice(0, 1) - 0.5 / (rest * (rest * rest - 0.25).sqrt())), 1e-6);
  }
  EXPECT_FALSE(contains(values.report(), "while_loop")) << values.report();
}

TEST(OdeEvents, BothWaysOfTimeAndBothSignsCountAsTheOptionsSay) {
  // y = sin t, from t = 0, where it is zero: up at 2 π, down at π; backwards from 0 it goes down, then up at −π.
  const auto first = [](double end, OdeCrossing crossing, const OdeOptions& options = kFine) {
    OdeOptions own = options;
    own.crossing = crossing;
    const auto slope = [](const Tensor&, const Tensor& y) { return at::stack({y[1], -y[0]}); };
    const auto event = [](const Tensor&, const Tensor& y) { return y.slice(0, 0, 1); };
    return tower::odeint_until(slope, event, vec({0, 1}), vec({0, end}), own).t.item<double>();
  };
  const double pi = std::numbers::pi;
  EXPECT_NEAR(first(9, OdeCrossing::any), pi, 1e-8);
  EXPECT_NEAR(first(9, OdeCrossing::falling), pi, 1e-8);
  EXPECT_NEAR(first(9, OdeCrossing::rising), 2 * pi, 1e-8);
  EXPECT_NEAR(first(-9, OdeCrossing::rising), -pi, 1e-8);
  EXPECT_NEAR(first(-9, OdeCrossing::falling), -2 * pi, 1e-8);
  EXPECT_NEAR(first(9, OdeCrossing::falling, {.step = 0.01}), pi, 1e-8);
}

TEST(OdeEvents, WhatIsNoEventIsRefused) {
  const auto slope = [](const Tensor&, const Tensor& y) { return y; };
  const auto refused = [&](const auto& event) {
    return message_of<tower::ArgumentError>([&] { tower::odeint_until(slope, event, vec({1, 2}), vec({0, 1})); });
  };
  EXPECT_TRUE(contains(refused([](const Tensor&, const Tensor& y) { return y; }),
                       "odeint_until: the event gave Double [2]; it gives one number of the state's dtype"));
  EXPECT_TRUE(contains(refused([](const Tensor&, const Tensor& y) { return y[0] > 0; }), "the event gave Bool []"));
  EXPECT_TRUE(contains(refused([](const Tensor&, const Tensor&) { return Tensor(); }), "the event gave nothing"));
  EXPECT_TRUE(
      contains(message_of<tower::ArgumentError>([&] {
                 td::odeint_until([](const Tensor&, const Tensors& y) { return y; }, {}, {vec({1})}, vec({0, 1}));
               }),
               "odeint_until: the event is an empty function"));
  const auto undefined = tower::odeint_until(
      slope, [](const Tensor& t, const Tensor&) { return (0.5 - t).sqrt(); }, vec({1, 2}), vec({0, 1}));
  EXPECT_EQ(undefined.status.item<int64_t>(), static_cast<int64_t>(OdeStatus::not_finite));
}

}  // namespace
