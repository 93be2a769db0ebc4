// minimize. Oracles: the known minima of Moré, Garbow and Hillstrom's problems; closed forms; finite differences of
// minima; a loop over the problems.
#include "tower/minimize.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "support/nestings.h"
#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/collectives.h"
#include "tower/compile.h"
#include "tower/transforms.h"

namespace {

using tower::MinimizeOptions;
using tower::Minimizer;
using tower::MinimumStatus;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinite = std::numeric_limits<double>::infinity();
constexpr Minimizer kBoth[] = {Minimizer::lbfgs, Minimizer::newton};
MinimizeOptions tight(Minimizer method) { return {.method = method, .gtol = 1e-10, .ftol = 0}; }
std::string named(Minimizer method) { return method == Minimizer::lbfgs ? "lbfgs" : "newton"; }
bool ended(const Tensor& status, MinimumStatus expected) {
  return status.item<int64_t>() == static_cast<int64_t>(expected);
}
bool found(const Tensor& status) { return status.item<int64_t>() <= static_cast<int64_t>(MinimumStatus::small_change); }
double largest(const Tensor& t) { return t.abs().max().item<double>(); }

// ---- J. J. Moré, B. S. Garbow, K. E. Hillstrom, Testing unconstrained optimization software (1981): sums of squares,
// starts, and minima as they are printed there ----

struct Problem {
  const char* name;
  std::function<Tensors(const Tensor& x)> squared;
  Tensor start;
  double value;
  Tensor minimum;  // of several, or where the function is flat, undefined
};

std::vector<Problem> problems() {
  const Tensor bards = vec({0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34, 2.10, 4.39});
  const Tensor u = at::arange(1, 16, at::kDouble), v = 16 - u, w = at::minimum(u, v);
  const Tensor ten = at::arange(1, 11, at::kDouble), t = at::arange(1, 21, at::kDouble) / 5;
  const Tensor start_of_12 = vec({-1.2, 1}).repeat({6}), n = at::arange(1, 11, at::kDouble);
  return {
      {"Rosenbrock",
       [](const Tensor& x) {
         return Tensors{10 * (x[1] - x[0].square()), 1 - x[0]};
       },
       vec({-1.2, 1}), 0, vec({1, 1})},
      {"Freudenstein and Roth",
       [](const Tensor& x) {
         return Tensors{-13 + x[0] + ((5 - x[1]) * x[1] - 2) * x[1], -29 + x[0] + ((x[1] + 1) * x[1] - 14) * x[1]};
       },
       vec({0.5, -2}),
       48.9842,
       {}},
      {"Beale",
       [](const Tensor& x) {
         return Tensors{1.5 - x[0] * (1 - x[1]), 2.25 - x[0] * (1 - x[1].square()), 2.625 - x[0] * (1 - x[1].pow(3))};
       },
       vec({1, 1}), 0, vec({3, 0.5})},
      {"Jennrich and Sampson",
       [ten](const Tensor& x) { return Tensors{2 + 2 * ten - ((ten * x[0]).exp() + (ten * x[1]).exp())}; },
       vec({0.3, 0.4}),
       124.362,
       {}},
      {"Helical valley",
       [](const Tensor& x) {
         const Tensor turns = at::atan2(x[1], x[0]) / (2 * std::numbers::pi);
         return Tensors{10 * (x[2] - 10 * turns), 10 * ((x[0].square() + x[1].square()).sqrt() - 1), x[2]};
       },
       vec({-1, 0, 0}), 0, vec({1, 0, 0})},
      {"Bard",
       [=](const Tensor& x) { return Tensors{bards - (x[0] + u / (v * x[1] + w * x[2]))}; },
       vec({1, 1, 1}),
       8.21487e-3,
       {}},
      {"Powell singular",
       [](const Tensor& x) {
         return Tensors{x[0] + 10 * x[1], std::sqrt(5.) * (x[2] - x[3]), (x[1] - 2 * x[2]).square(),
                        std::sqrt(10.) * (x[0] - x[3]).square()};
       },
       vec({3, -1, 0, 1}),
       0,
       {}},
      {"Wood",
       [](const Tensor& x) {
         return Tensors{10 * (x[1] - x[0].square()),
                        1 - x[0],
                        std::sqrt(90.) * (x[3] - x[2].square()),
                        1 - x[2],
                        std::sqrt(10.) * (x[1] + x[3] - 2),
                        (x[1] - x[3]) / std::sqrt(10.)};
       },
       vec({-3, -1, -3, -1}), 0, vec({1, 1, 1, 1})},
      {"Brown and Dennis",
       [t](const Tensor& x) {
         return Tensors{(x[0] + t * x[1] - t.exp()).square() + (x[2] + x[3] * t.sin() - t.cos()).square()};
       },
       vec({25, 5, -5, -1}),
       85822.2,
       {}},
      {"Variably dimensioned",
       [n](const Tensor& x) {
         const Tensor all = (n * (x - 1)).sum();
         return Tensors{x - 1, all, all.square()};
       },
       1 - n / 10, 0, at::ones({10}, at::kDouble)},
      {"Extended Rosenbrock",
       [](const Tensor& x) {
         const Tensor pairs = x.view({6, 2}), odd = pairs.select(1, 0), even = pairs.select(1, 1);
         return Tensors{10 * (even - odd.square()), 1 - odd};
       },
       start_of_12, 0, at::ones({12}, at::kDouble)}};
}

Tensor sum_of_squares(const Problem& problem, const Tensor& x) {
  Tensor sum;
  for (const Tensor& t : problem.squared(x)) sum = sum.defined() ? sum + t.square().sum() : t.square().sum();
  return sum;
}

TEST(Minimize, MoreGarbowAndHillstromsProblemsHaveTheirMinima) {
  for (const Minimizer method : kBoth)
    for (const Problem& p : problems()) {
      const auto f = [&p](const Tensor& x) { return sum_of_squares(p, x); };
      const auto m = tower::minimize(f, p.start, {.method = method, .gtol = 1e-8});
      SCOPED_TRACE(p.name + (" by " + named(method)));
      EXPECT_TRUE(found(m.status)) << m.status;
      EXPECT_LT(m.steps.item<int64_t>(), 250);
      // Five or six digits are printed; of singular problems the value at a small gradient is not zero.
      EXPECT_NEAR(m.value.item<double>(), p.value, p.value == 0 ? 1e-8 : 1e-5 * p.value);
      EXPECT_EQ(m.value.item<double>(), f(m.x).item<double>());
      EXPECT_NEAR(m.gradient.item<double>(), largest(tower::grad(f)(m.x)), 1e-12);
      if (p.minimum.defined()) {
        EXPECT_LT(largest(m.x - p.minimum), 1e-5);
      }
    }
}

Tensor valley(const Tensor& x) { return 100 * (x[1] - x[0].square()).square() + (1 - x[0]).square(); }

// ---- convergence ----

// f(x) = Σ (exp(xᵢ) − bᵢ xᵢ) has its minimum at log b.
Tensor entropic(const Tensor& x, const Tensor& b) { return (x.exp() - b * x).sum(); }

TEST(Minimize, GradientsWithoutASquareAreFollowedOrTheStatusSaysThatTheyAreNot) {
  for (const Minimizer method : kBoth) {
    const auto steep = [](const Tensor& x) { return 1e300 * (x - vec({1, 2})).square().sum(); };
    const auto found = tower::minimize(steep, vec({5, 3}), {.method = method, .max_steps = 100});
    const bool claimed = found.status.item<int64_t>() <= static_cast<int64_t>(MinimumStatus::small_change);
    EXPECT_TRUE(claimed || method == Minimizer::lbfgs);
    EXPECT_TRUE(!claimed || largest(found.x - vec({1, 2})) < 1e-6) << named(method);
  }
}

TEST(Minimize, NewtonConvergesSuperlinearlyAndLbfgsWithinFewSteps) {
  const Tensor b = vec({0.5, 2, 3, 7, 0.1});
  for (const Minimizer method : kBoth) {
    std::vector<double> errors;
    for (int64_t steps = 1; steps < 100; ++steps) {
      MinimizeOptions options{.method = method, .gtol = 0, .ftol = 0, .max_steps = steps};
      const Tensor x =
          tower::minimize([&](const Tensor& at) { return entropic(at, b); }, vec({0, 0, 0, 0, 0}), options).x;
      const double error = largest(x - b.log());
      if (errors.empty() || error < errors.back()) errors.push_back(error);
      if (error < 1e-7) break;
    }
    const size_t last = errors.size() - 1;
    ASSERT_GT(last, 3U) << named(method);
    EXPECT_LT(errors[last], 1e-7) << named(method);
    EXPECT_LT(errors.size(), 25U) << named(method);
    // By the tolerance of the conjugate gradients the order is 1.5.
    if (method == Minimizer::newton) {
      EXPECT_GT(std::log(errors[last]) / std::log(errors[last - 1]), 1.4);
    }
  }
}

TEST(Minimize, NewtonEndsTheQuadraticInAsManyProductsAsItHasEigenvalues) {
  const Tensor weights = vec({1, 10, 100}).repeat({50}), b = at::linspace(-1, 1, 150, at::kDouble);
  const auto f = [&](const Tensor& x) { return 0.5 * at::dot(weights * x, x) - at::dot(b, x); };
  MinimizeOptions options = tight(Minimizer::newton);
  options.first_radius = 1e6;
  const auto m = tower::minimize(f, at::zeros({150}, at::kDouble), options);
  EXPECT_LT(largest(m.x - b / weights), 1e-10);
  EXPECT_LE(m.products.item<int64_t>(), 3 * m.steps.item<int64_t>());
}

// ---- transforms ----

TEST(Minimize, MinimaUnderEveryNestingAreTheirClosedForms) {
  for (const Minimizer method : kBoth)
    for (const std::string& kinds : support::nestings()) {
      if (method == Minimizer::newton && kinds != "vjr" && kinds != "rrv") continue;
      const Function minimum = [method](const Tensors& in) {
        const auto f = [b = in[0], w = in[1]](const Tensors& x) {
          return Tensors{(x[0].exp() - b * x[0]).sum() + 0.5 * (w * x[1].square() - b * x[1]).sum()};
        };
        return td::minimize(f, {vec({0, 0}), vec({0, 0})}, tight(method)).x;
      };
      const Function closed = [](const Tensors& in) { return Tensors{in[0].log(), 0.5 * in[0] / in[1]}; };
      Tensors inputs = support::inputs_of({{2}, {2}}, kinds);
      for (Tensor& t : inputs) t = t + 2.5;
      EXPECT_EQ(support::difference(support::transformed(kinds, minimum, false)(inputs),
                                    support::transformed(kinds, closed, /*by_loop=*/true)(inputs), {1e-6, 1e-6}),
                "")
          << kinds << " by " << named(method);
    }
}

TEST(Minimize, DerivativesByWhatIsCapturedAreThoseOfTheMinimum) {
  const Tensor p = vec({1.2, 90, 0.7}), along = vec({0.3, -2, 0.5});
  for (const Minimizer method : kBoth) {
    const auto minimum = [method](const Tensor& at) {
      const auto valley = [at](const Tensor& x) {
        return (at[0] - x[0]).square() + at[1] * (x[1] - x[0].square()).square() + at[2] * x[0].cosh();
      };
      return tower::minimize(valley, vec({-1.2, 1}), tight(method)).x;
    };
    const Tensor expected = support::directional_derivative(
        [&](const support::Tensors& at) { return support::Tensors{minimum(at[0])}; }, {p}, {along})[0];
    EXPECT_LT(largest(tower::jvp(minimum, p, along).second - expected), 2e-5) << named(method);
    EXPECT_LT(largest(at::mv(tower::jacrev(minimum)(p), along) - expected), 2e-5) << named(method);
  }
}

TEST(Minimize, OfManyUnknownsTheDerivativeIsByConjugateGradients) {
  const Tensor b = at::linspace(0.5, 4, 300, at::kDouble);
  const auto minimum = [](const Tensor& at) {
    const auto f = [at](const Tensor& x) { return entropic(x, at); };
    return tower::minimize(f, at::zeros({300}, at::kDouble), {.gtol = 1e-12, .ftol = 0}).x;
  };
  EXPECT_LT(largest(minimum(b) - b.log()), 1e-8);
  EXPECT_LT(largest(tower::grad([&](const Tensor& at) { return minimum(at).sum(); })(b) - 1 / b), 1e-7);
}

// ---- ensembles ----

// Rosenbrock's valley ends at (1, 1), however steep its sides are.
TEST(Minimize, EachProblemOfAnEnsembleIsAsAloneCompiledOrNot) {
  const Tensor heights = vec({100, 1, 0.1, 1000, kNan, 10});
  for (const Minimizer method : kBoth) {
    const auto one = [method](const Tensor& height) {
      const auto f = [height](const Tensor& x) {
        return (1 - x[0]).square() + height * (x[1] - x[0].square()).square();
      };
      return tower::minimize(f, vec({-1.2, 1}), {.method = method, .memory = 3});
    };
    const auto many = tower::vmap(one)(heights);
    const auto fast = tower::compile(tower::vmap(one));
    // The call's own kernels are there from its third time on.
    std::vector<tower::Minimum<>> all{many};
    for (int call = 0; call < 4; ++call) all.push_back(fast(heights));
    for (int64_t k = 0; k < heights.numel(); ++k) {
      const auto alone = one(heights[k]);
      for (const auto& m : all) {
        // Kernels round differently: numbers of steps are those of all but equal ways.
        EXPECT_EQ(support::difference({m.x[k], m.value[k]}, {alone.x, alone.value}, {1e-5, 1e-5}), "")
            << k << " by " << named(method);
        EXPECT_TRUE(found(m.status[k]) == found(alone.status)) << k << " by " << named(method);
      }
      EXPECT_TRUE(found(alone.status) == !heights[k].isnan().item<bool>()) << k;
    }
    EXPECT_TRUE(ended(many.status[4], MinimumStatus::not_finite));
    EXPECT_NE(many.steps[0].item<int64_t>(), many.steps[1].item<int64_t>());
    const Tensor slopes = tower::vmap(tower::jacrev([&](const Tensor& h) { return one(h).x; }))(heights);
    EXPECT_LT(largest(slopes.index_select(0, at::tensor({0, 1, 2, 3, 5}))), 1e-4);
    // Where there is no minimum there is no derivative.
    EXPECT_TRUE(slopes[4].isnan().all().item<bool>());
    EXPECT_EQ(tower::vmap(one)(heights.slice(0, 0, 1)).x.sizes(), at::IntArrayRef({1, 2}));
    EXPECT_EQ(tower::vmap(one)(heights.slice(0, 0, 0)).x.sizes(), at::IntArrayRef({0, 2}));
  }
}

TEST(Minimize, AFunctionMaySpeakToOtherExamplesButNotOfX) {
  const Tensor data = vec({1, 2, 4});
  const auto mapped = [&](auto f) {
    return tower::vmap([f](const Tensor& d) { return tower::minimize([&](const Tensor& x) { return f(x, d); }, d).x; },
                       {.axis = "batch"})(data);
  };
  const auto of_data = [](const Tensor& x, const Tensor& d) { return (x - tower::psum(d, "batch")).square() + d; };
  EXPECT_LT(largest(mapped(of_data) - 7), 1e-6);
  const auto of_x = [](const Tensor& x, const Tensor& d) { return tower::psum((x - d).square(), "batch"); };
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] { mapped(of_x); }),
                       "minimize: the function speaks of x to other examples, by a collective"));
}

// ---- ends ----

TEST(Minimize, StepsThatComeToNanAreShortened) {
  // Steps from 0.01 go far beyond zero, where there is no logarithm.
  const auto barrier = [](const Tensor& x) { return (x - x.log()).sum(); };
  for (const Minimizer method : kBoth) {
    const auto m = tower::minimize(barrier, vec({0.01, 30}), tight(method));
    EXPECT_TRUE(found(m.status)) << named(method) << m.status;
    EXPECT_LT(largest(m.x - 1), 1e-8) << named(method);
  }
}

TEST(Minimize, TheStatusSaysHowItEnded) {
  for (const Minimizer method : kBoth) {
    SCOPED_TRACE(named(method));
    const MinimizeOptions options{.method = method};
    const auto parabola = [](const Tensor& x) { return (x - 3).square().sum(); };
    EXPECT_TRUE(ended(tower::minimize(parabola, vec({3, 3}), options).status, MinimumStatus::small_gradient));
    MinimizeOptions few = options;
    few.max_steps = 1;
    EXPECT_TRUE(ended(tower::minimize(valley, vec({-1.2, 1}), few).status, MinimumStatus::max_steps));
    few.max_steps = 0;
    EXPECT_TRUE(same(tower::minimize(valley, vec({-1.2, 1}), few).x, vec({-1.2, 1})));
    // The value falls towards x = 1, beyond which there is none.
    const auto edge = [](const Tensor& x) { return at::where(x < 1, -x, kNan).sum(); };
    const auto at_edge = tower::minimize(edge, vec({0.3}), options);
    EXPECT_FALSE(found(at_edge.status));
    EXPECT_LT(at_edge.x.item<double>(), 1);
    EXPECT_GT(at_edge.x.item<double>(), 0.9);
    EXPECT_LT(at_edge.steps.item<int64_t>(), 1000);
    const auto nowhere = tower::minimize([](const Tensor& x) { return x.sum() + kInfinite; }, vec({1}), options);
    EXPECT_TRUE(ended(nowhere.status, MinimumStatus::not_finite));
    EXPECT_TRUE(same(nowhere.x, vec({1})));
    // Without a lower bound.
    const auto falling = tower::minimize([](const Tensor& x) { return x.pow(3).sum(); }, vec({-1}), options);
    EXPECT_FALSE(found(falling.status)) << falling.status;
    // An uphill derivative: no step is good.
    const auto wrong = [](const Tensor& x) { return (x.detach().square() - 2 * x.detach() * x).sum(); };
    EXPECT_FALSE(found(tower::minimize(wrong, vec({1, 2}), options).status));
  }
}

TEST(Minimize, TreesAndSinglePrecisionAreMinimized) {
  using Line = std::pair<Tensor, Tensor>;
  const Tensor x = at::linspace(0, 1, 6), y = 2 * x - 1;
  for (const Minimizer method : kBoth) {
    const auto m = tower::minimize([&](const Line& l) { return (l.first * x + l.second - y).cosh().sum(); },
                                   Line(at::zeros({}), at::zeros({1})), {.method = method});
    EXPECT_EQ(m.x.second.sizes(), at::IntArrayRef({1}));
    EXPECT_EQ(m.x.first.scalar_type(), at::kFloat);
    EXPECT_NEAR(m.x.first.item<double>(), 2, 1e-2);
    EXPECT_NEAR(m.x.second.item<double>(), -1, 1e-2);
    EXPECT_TRUE(found(m.status)) << m.status;
  }
}

TEST(Minimize, WrongArgumentsAreRefused) {
  const auto refused = [](const Tensor& x0, const MinimizeOptions& options = {}) {
    return message_of<tower::ArgumentError>(
        [&] { tower::minimize([](const Tensor& x) { return x.to(at::kDouble).sum(); }, x0, options); });
  };
  EXPECT_TRUE(contains(refused(at::ones({2}, at::kLong)), "minimize: tensor 0 of the unknowns is Long [2]"));
  EXPECT_TRUE(contains(refused(at::ones({2}, at::kComplexDouble)), "of complex ones, view_as_real"));
  EXPECT_TRUE(contains(refused(at::ones({0})), "It is real numbers, at least one"));
  EXPECT_TRUE(contains(refused(at::ones({2})), "minimize: the function gave Double []"));
  EXPECT_TRUE(contains(
      message_of<tower::ArgumentError>([] { tower::minimize([](const Tensor& x) { return x.square(); }, vec({1})); }),
      "minimize: the function gave Double [1]"));
  EXPECT_TRUE(contains(refused(vec({1}), {.gtol = -1}), "minimize: gtol is -1"));
  EXPECT_TRUE(contains(refused(vec({1}), {.ftol = kNan}), "minimize: ftol is nan"));
  EXPECT_TRUE(contains(refused(vec({1}), {.max_steps = -1}), "minimize: max_steps is -1"));
  EXPECT_TRUE(contains(refused(vec({1}), {.memory = 0}), "minimize: memory is 0"));
  EXPECT_TRUE(contains(refused(vec({1}), {.first_radius = 0}), "minimize: first_radius is 0"));
}

}  // namespace
