// odeint. Oracles: Butcher's order conditions for the coefficients, closed forms, published reference solutions of
// stiff problems, a loop over the systems.
#include <ATen/ops/linalg_inv.h>

#include <array>
#include <cmath>
#include <limits>

#include "solvers/dop853.h"
#include "support/nestings.h"
#include "support/prelude.h"
#include "tower/compile.h"
#include "tower/odeint.h"
#include "tower/transforms.h"

namespace {

using tower::Ode;
using tower::OdeOptions;
using tower::OdeStatus;

constexpr std::array kMethods{Ode::tsit5, Ode::dopri5, Ode::rodas5p};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

int64_t as_number(OdeStatus status) { return static_cast<int64_t>(status); }

// ---- order conditions ----

// The largest defect among the conditions of all rooted trees of up to `order` vertices, for a solution at a part θ of
// the step (Hairer, Wanner, II, IV.7): vertices with one branch see β, the others α. Of explicit methods β is α.
double defect(const Tensor& alpha, const Tensor& beta, const Tensor& weights, int order, double theta = 1) {
  double largest = 0;
  for (int vertices = 1; vertices <= order; ++vertices) {
    // A tree is the parent of each vertex but the root, among those before it; some trees come more than once.
    std::vector<int> parent(static_cast<size_t>(vertices), 0);
    for (bool more = true; more;) {
      std::vector<int> branches(parent.size(), 0), size(parent.size(), 1);
      std::vector<Tensor> value(parent.size(), at::ones_like(weights));
      for (size_t k = 1; k < parent.size(); ++k) ++branches[static_cast<size_t>(parent[k])];
      double gamma = 1;
      for (size_t k = parent.size(); k-- > 0;) {
        gamma *= size[k];
        if (k == 0) break;
        const auto p = static_cast<size_t>(parent[k]);
        size[p] += size[k];
        value[p] = value[p] * at::mv(branches[p] == 1 ? beta : alpha, value[k]);
      }
      const double found = at::dot(weights, value[0]).item<double>();
      largest = std::max(largest, std::abs(found - std::pow(theta, vertices) / gamma));
      more = false;
      for (size_t k = 1; k < parent.size() && !more; ++k) {
        more = parent[k] + 1 < static_cast<int>(k);
        parent[k] = more ? parent[k] + 1 : 0;
      }
    }
  }
  return largest;
}

template <size_t n>
Tensor row(const std::array<double, n>& values) {
  return at::tensor(std::vector<double>(values.begin(), values.end()), at::kDouble);
}
template <size_t rows, size_t n>
Tensor matrix(const std::array<std::array<double, n>, rows>& values) {
  Tensors all;
  for (const auto& one : values) all.push_back(row(one));
  return at::stack(all);
}
// Sums of coefficients of up to 90 that are rounded in their 16th digit.
constexpr double kRounding = 1e-13;

double largest(const Tensor& t) { return t.abs().max().item<double>(); }

TEST(OdeMethods, ExplicitCoefficientsFulfilTheOrderConditions) {
  for (const auto& pair : {tower::solvers::kTsit5, tower::solvers::kDopri5}) {
    const Tensor a = matrix(pair.a), b = a[6], path = matrix(pair.path);
    EXPECT_LT(defect(a, a, b, 5), kRounding);
    EXPECT_GT(defect(a, a, b, 6), 1e-5);
    EXPECT_LT(defect(a, a, b - row(pair.error), 4), kRounding);
    EXPECT_GT(defect(a, a, b - row(pair.error), 5), 1e-5);
    EXPECT_LT(largest(a.sum(1) - row(pair.c)), kRounding);
    for (const double theta : {0.1, 0.5, 0.77, 1.0})
      EXPECT_LT(defect(a, a, at::mv(path, vec({theta, std::pow(theta, 2), std::pow(theta, 3), std::pow(theta, 4)})), 4,
                       theta),
                kRounding);
  }
}

TEST(OdeMethods, CoefficientsOfOrderEightFulfilTheOrderConditions) {
  const auto& pair = tower::solvers::kDop853;
  const Tensor a = matrix(pair.a), b = a[12], path = matrix(pair.path);
  EXPECT_LT(defect(a, a, b, 8), kRounding);
  // Of the embedded solutions.
  for (const auto& [error, order] : {std::pair(row(pair.error), 5), std::pair(row(pair.coarse_error), 3)}) {
    EXPECT_LT(defect(a, a, b - error, order), kRounding);
    EXPECT_GT(defect(a, a, b - error, order + 1), 1e-5);
  }
  EXPECT_LT(largest(a.sum(1) - row(pair.c)), kRounding);
  for (const double theta : {0.3, 1.0}) {
    const Tensor weights = at::mv(path, at::full({7}, theta, at::kDouble).cumprod(0));
    EXPECT_LT(defect(a, a, weights, 7, theta), 1e-12);
  }
}

TEST(OdeMethods, StiffCoefficientsFulfilTheOrderConditions) {
  const auto& pair = tower::solvers::kRodas5P;
  // With u = Γ k the method is Rosenbrock's: α = a Γ, b = m Γ.
  const Tensor gamma = at::linalg_inv(at::eye(8, at::kDouble) / pair.gamma - matrix(pair.c_by_h));
  const Tensor a = matrix(pair.a), alpha = a.mm(gamma), beta = alpha + gamma, ends = at::eye(8, at::kDouble)[7];
  const auto of = [&](const Tensor& m) { return at::mv(gamma.t(), m); };
  EXPECT_LT(defect(alpha, beta, of(a[7] + ends), 5), 1e-12);
  EXPECT_GT(defect(alpha, beta, of(a[7] + ends), 6), 1e-5);
  EXPECT_LT(defect(alpha, beta, of(a[7]), 4), 1e-12);
  EXPECT_LT(largest(alpha.sum(1) - row(pair.c)), 1e-13);
  EXPECT_LT(largest(gamma.sum(1) - row(pair.d)), 1e-13);
  const Tensor k = matrix(pair.path);
  for (const double theta : {0.1, 0.5, 0.77}) {
    const Tensor m = theta * (a[7] + ends + (1 - theta) * (k[0] + theta * (k[1] + theta * k[2])));
    EXPECT_LT(defect(alpha, beta, of(m), 4, theta), 1e-12);
  }
}

// ---- solutions ----

// y' = −2 t y², y = 1 / (1 + t²).
Tensor bell_slope(const Tensor& t, const Tensor& y) { return -2 * t * y * y; }
Tensor bell(const Tensor& t) { return (1 + t * t).reciprocal().unsqueeze(1); }

TEST(Odeint, FixedStepsConvergeWithOrderFive) {
  for (const Ode method : kMethods) {
    double error = 0, order = 0;
    for (const double steps : {16., 32.}) {
      const auto found = tower::odeint(bell_slope, vec({1}), vec({0, 1}), {.method = method, .step = 1 / steps});
      EXPECT_EQ(found.steps.item<double>(), steps);
      const double now = std::abs(found.ys[1].item<double>() - 0.5);
      order = std::log2(error / now);
      error = now;
    }
    EXPECT_GT(order, 4.6);
    EXPECT_LT(order, 5.6);
  }
}

TEST(Odeint, OrderEightIsThatOfItsMethod) {
  // y' = cos t y, for which both parts of the error are seen; y = exp(sin t).
  const auto slope = [](const Tensor& t, const Tensor& y) { return t.cos() * y; };
  double error = 0, order = 0;
  for (const double steps : {8., 16.}) {
    const auto found = tower::odeint(slope, vec({1}), vec({0, 3}), {.method = Ode::dop853, .step = 3 / steps});
    const double now = std::abs(found.ys[1].item<double>() - std::exp(std::sin(3.)));
    order = std::log2(error / now);
    error = now;
  }
  EXPECT_GT(order, 7.5);
  EXPECT_LT(order, 9);
  const Tensor ts = at::linspace(0, 3, 21, at::kDouble);
  const auto found = [&](Ode method) {
    return tower::odeint(slope, vec({1}), ts, {.method = method, .rtol = 1e-11, .atol = 1e-11});
  };
  EXPECT_LT(largest(found(Ode::dop853).ys.squeeze(1) - ts.sin().exp()), 1e-9);
  EXPECT_LT(3 * found(Ode::dop853).steps.item<int64_t>(), found(Ode::dopri5).steps.item<int64_t>());
}

TEST(Odeint, EachNumberOfTheStateCanHaveItsTolerance) {
  // Two harmonic oscillators, one ten times as fast.
  const auto turn = [](const Tensor& y) { return at::stack({y[1], -y[0]}); };
  const auto run = [&](const OdeOptions& options) {
    const auto slope = [&](const Tensor&, const std::array<Tensor, 2>& y) {
      return std::array{turn(y[0]), 10 * turn(y[1])};
    };
    return tower::odeint(slope, std::array{vec({1, 0}), vec({1, 0})}, vec({0, 3}), options);
  };
  using Each = std::array<Tensor, 2>;
  const auto same = run({.rtol = 1e-5, .atol = 1e-7});
  const auto as_tensors = run({.rtol = vec({1e-5})[0], .atol = Each{vec({1e-7, 1e-7}), vec({1e-7})[0]}});
  EXPECT_EQ(support::difference(as_tensors.ys[1], same.ys[1], {1e-12, 1e-12}), "");
  EXPECT_EQ(as_tensors.steps.item<int64_t>(), same.steps.item<int64_t>());
  // Where the fast one does not count, the steps are those that the slow one takes alone.
  const double inf = std::numeric_limits<double>::infinity();
  const auto slow = run({.rtol = 1e-5, .atol = Each{vec({1e-7})[0], vec({inf})[0]}});
  const auto alone = tower::odeint([&](const Tensor&, const Tensor& y) { return turn(y); }, vec({1, 0}), vec({0, 3}),
                                   {.rtol = 1e-5, .atol = 1e-7});
  EXPECT_EQ(slow.steps.item<int64_t>(), alone.steps.item<int64_t>());
  EXPECT_EQ(support::difference(slow.ys[0], alone.ys, {1e-12, 1e-12}), "");
  // Each system of an ensemble has its own, also compiled; a tolerance has no derivative.
  const Tensor tolerances = vec({1e-3, 1e-6, 1e-9, -1});
  const auto one = [&](const Tensor& atol) {
    return tower::odeint(bell_slope, vec({1}), vec({0, 1}), {.rtol = 0, .atol = atol});
  };
  const auto many = tower::vmap(one)(tolerances);
  for (int64_t k = 0; k < 3; ++k) {
    const auto by_number =
        tower::odeint(bell_slope, vec({1}), vec({0, 1}), {.rtol = 0, .atol = tolerances[k].item<double>()});
    EXPECT_EQ(many.steps[k].item<int64_t>(), by_number.steps.item<int64_t>());
  }
  EXPECT_EQ(many.status[3].item<int64_t>(), as_number(OdeStatus::not_finite));
  const auto fast = tower::compile(tower::vmap([&](const Tensor& atol) { return one(atol).ys; }));
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(at::allclose(fast(tolerances), many.ys, 1e-12, 0, true));
  EXPECT_EQ(tower::grad([&](const Tensor& atol) { return one(atol).ys.sum(); })(tolerances[1]).item<double>(), 0);
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] {
                         run({.atol = Each{vec({1, 1, 1}), vec({1})}});
                       }),
                       "atol is Double [3] for tensor 0 of the state, which is Double [2]"));
}

TEST(Odeint, ValuesAtAllTimesAreWithinTheToleranceForwardsAndBackwards) {
  const Tensor ts = at::linspace(-1, 4, 21, at::kDouble);
  for (const Ode method : kMethods)
    for (const Tensor& times : {ts, ts.flip(0)}) {
      const auto found =
          tower::odeint(bell_slope, bell(times)[0], times, {.method = method, .rtol = 1e-9, .atol = 1e-9});
      EXPECT_LT(largest(found.ys - bell(times)), 2e-8);
      EXPECT_EQ(found.status.item<int64_t>(), 0);
      EXPECT_EQ(found.t.item<double>(), times[20].item<double>());
      EXPECT_GT(found.steps.item<int64_t>(), 30);
    }
}

TEST(Odeint, StiffProblemsHaveTheirPublishedSolutions) {
  // F. Mazzia, C. Magherini, Test Set for Initial Value Problem Solvers, release 2.4: ROBER and VDPOL.
  const auto robertson = [](const Tensor&, const Tensor& y) {
    const Tensor slow = 0.04 * y[0], middle = 1e4 * y[1] * y[2], fast = 3e7 * y[1] * y[1];
    return at::stack({middle - slow, slow - middle - fast, fast});
  };
  const Tensor end = vec({0.2083340149701255e-7, 0.8333360770334713e-13, 0.9999999791665050});
  const auto found =
      tower::odeint(robertson, vec({1, 0, 0}), vec({0, 1e11}), {.method = Ode::rodas5p, .rtol = 1e-8, .atol = 1e-18});
  EXPECT_LT(largest((found.ys[1] - end) / end), 1e-6);
  const auto van_der_pol = [](const Tensor&, const Tensor& y) {
    return at::stack({y[1], ((1 - y[0] * y[0]) * y[1] - y[0]) / 1e-6});
  };
  const auto swings =
      tower::odeint(van_der_pol, vec({2, 0}), vec({0, 2}), {.method = Ode::rodas5p, .rtol = 1e-8, .atol = 1e-8});
  EXPECT_LT(largest(swings.ys[1] - vec({0.1706167732170483e1, -0.8928097010247975})), 1e-5);
}

// ---- transforms: y' = p y cos t, y = y0 exp(p sin t) ----

Function solved(const OdeOptions& options) {
  return [options](const Tensors& in) {
    const Tensor p = in[1];
    const auto slope = [p](const Tensor& t, const Tensors& y) { return Tensors{p * y[0] * t.cos()}; };
    return td::odeint(slope, {in[0]}, vec({0, 0.1, 0.4}), options).ys;
  };
}
Tensors closed(const Tensors& in) { return {in[0] * (in[1] * vec({0, 0.1, 0.4}).sin().unsqueeze(1)).exp()}; }

TEST(Odeint, EveryNestingOfTransformsIsThatOfTheClosedForm) {
  for (const Ode method : kMethods)
    for (const std::string& kinds : support::nestings()) {
      // One explicit pair goes as the other one does, and of the stiff method each transform is here in each place.
      if (method != Ode::tsit5 && kinds != "vjr" && kinds != "rvj" && kinds != "jrv") continue;
      const Tensors inputs = support::inputs_of({{2}, {2}}, kinds);
      const Tensors expected = support::transformed(kinds, closed, /*by_loop=*/true)(inputs);
      const OdeOptions options{.method = method, .rtol = 1e-8, .atol = 1e-8, .first_step = 0.1};
      EXPECT_EQ(
          support::difference(support::transformed(kinds, solved(options), false)(inputs), expected, {1e-6, 1e-6}), "")
          << kinds << " of method " << static_cast<int>(method);
    }
}

TEST(Odeint, DerivativesByTheTimesAreTheSlopesThere) {
  // By the first one: y(t) = y0 (1 + …): the solution through (t0, y0) is 1 / (1/y0 + t² − t0²).
  const auto f = [](const Tensor& ts) {
    return tower::odeint(bell_slope, vec({0.7}), ts, {.rtol = 1e-10, .atol = 1e-10}).ys.squeeze(1);
  };
  const auto closed_form = [](const Tensor& ts) { return (1 / 0.7 + ts.square() - ts[0].square()).reciprocal(); };
  const Tensor ts = vec({0.2, 0.5, 0.9, 1.4});
  const Tensor expected = tower::jacrev(closed_form)(ts);
  for (const Tensor& found : {tower::jacfwd(f)(ts), tower::jacrev(f)(ts)}) EXPECT_LT(largest(found - expected), 1e-6);
}

TEST(Odeint, DerivativesAreRightBehindStepsThatWereNotFinite) {
  // y' = −p √y, √y = 1 − p t / 2: the first step ends where there is no root.
  const auto found = [](const Tensor& p, const OdeOptions& options, const Tensor& ts) {
    const auto slope = [p](const Tensor&, const Tensor& y) { return -p * y.sqrt(); };
    return tower::odeint(slope, vec({1}), ts, options);
  };
  const Tensor ps = vec({1, 0.2, 1.1}), by_closed_form = -1.5 * (1 - ps * 0.75);
  for (const Ode method : {Ode::tsit5, Ode::rodas5p}) {
    const OdeOptions options{.method = method, .first_step = 1.4};
    const auto last = [&](const Tensor& p) { return found(p, options, vec({0, 1.5})).ys[1].sum(); };
    EXPECT_GT(found(ps[0], options, vec({0, 1.5})).rejected.item<int64_t>(), 0);
    EXPECT_NEAR(tower::jacfwd(last)(ps[0]).item<double>(), by_closed_form[0].item<double>(), 1e-4);
    EXPECT_LT(largest(tower::vmap(tower::grad(last))(ps) - by_closed_form), 1e-4);
    const Tensor leaf = ps[0].clone().requires_grad_();
    last(leaf).backward();
    EXPECT_NEAR(leaf.grad().item<double>(), by_closed_form[0].item<double>(), 1e-4);
  }
  // With values between and states that are not kept, and by what all systems of an ensemble share.
  for (const tower::Checkpoints kept : {tower::Checkpoints::all(), tower::Checkpoints(2)}) {
    const auto between = [&](const Tensor& p) {
      return found(p, {.first_step = 1.4, .checkpoints = kept}, vec({0, 1.5, 1.6})).ys[1].sum();
    };
    EXPECT_NEAR(tower::grad(between)(ps[0]).item<double>(), by_closed_form[0].item<double>(), 1e-4);
    if (!kept.is_all()) continue;
    const auto shared = [&](const Tensor& q) {
      return tower::vmap([&](const Tensor& p) { return between(p * q); })(ps).sum();
    };
    EXPECT_NEAR(tower::grad(shared)(vec({1})).item<double>(), (by_closed_form * ps).sum().item<double>(), 1e-4);
  }
  const auto last = [&](const Tensor& p) { return found(p, {.first_step = 1.4}, vec({0, 1.5})).ys[1].sum(); };
  const auto fast = tower::compile(tower::vmap(tower::grad(last)));
  for (int call = 0; call < 3; ++call) EXPECT_LT(largest(fast(ps) - by_closed_form), 1e-4) << call;
  const auto values = tower::compile(tower::vmap(last));
  const auto of_compiled = tower::grad([&](const Tensor& p) { return values(p).sum(); });
  for (int call = 0; call < 3; ++call) EXPECT_LT(largest(of_compiled(ps) - by_closed_form), 1e-4) << call;
}

TEST(Odeint, CheckpointsDoNotChangeGradients) {
  const auto slope_of_end = [](tower::Checkpoints few) {
    return tower::grad([few](const Tensor& y0) {
      return tower::odeint(bell_slope, y0, vec({0, 1, 3}), {.checkpoints = few}).ys[2].sum();
    })(vec({1, 0.5}));
  };
  const Tensor all = slope_of_end(tower::Checkpoints::all());
  EXPECT_TRUE(at::equal(slope_of_end(3), all));
  // y = 1 / (1/y0 + t²)
  EXPECT_LT(largest(all - (1 + vec({1, 0.5}) * 9).square().reciprocal()), 1e-5);
}

TEST(Odeint, TheContinuousAdjointIsThatOfTheSolution) {
  // y' = −2 t y², y = 1 / (1 / y0 + t²): by y0 (y / y0)².
  const auto end = [](const Tensor& y0) {
    const OdeOptions options{.rtol = 1e-10, .atol = 1e-10, .adjoint = tower::OdeAdjoint::continuous};
    return tower::odeint(bell_slope, y0, vec({0, 1, 3}), options).ys[2].sum();
  };
  EXPECT_LT(largest(tower::grad(end)(vec({1, 0.5})) - (1 + vec({1, 0.5}) * 9).square().reciprocal()), 1e-7);
  const auto event = [](const Tensor&, const Tensor& y) { return y[0]; };
  EXPECT_TRUE(contains(
      message_of<tower::ArgumentError>([&] {
        tower::odeint_until(bell_slope, event, vec({1}), vec({0, 1}), {.adjoint = tower::OdeAdjoint::continuous});
      }),
      "there is no continuous adjoint of an event"));
}

// ---- ensembles ----

Tensor lorenz(const Tensor& rho, const OdeOptions& options, const Tensor& ts) {
  const auto slope = [rho](const Tensor&, const Tensor& y) {
    return at::stack({10 * (y[1] - y[0]), rho * y[0] - y[1] - y[0] * y[2], y[0] * y[1] - 8. / 3 * y[2]});
  };
  return tower::odeint(slope, vec({1, 0, 0}), ts, options).ys;
}

TEST(Odeint, EachSystemOfAnEnsembleIsAsAlone) {
  const auto one = [](const Tensor& y0) {
    return tower::odeint(bell_slope, y0.unsqueeze(0), vec({0, 1, 2}), {.compact = 0.5});
  };
  const Tensor y0 = vec({0.1, 1, 20, kNan, -0.1});
  const auto many = tower::vmap(one)(y0);
  for (int64_t k = 0; k < 5; ++k) {
    const auto alone = one(y0[k]);
    EXPECT_EQ(support::difference({many.ys[k], many.t[k], many.status[k], many.steps[k], many.rejected[k]},
                                  {alone.ys, alone.t, alone.status, alone.steps, alone.rejected}, {1e-13, 1e-13}),
              "")
        << k;
  }
  EXPECT_EQ(many.status[3].item<int64_t>(), as_number(OdeStatus::not_finite));
  EXPECT_LT(many.steps[0].item<int64_t>(), many.steps[2].item<int64_t>());
  EXPECT_EQ(tower::vmap(one)(y0.slice(0, 0, 1)).ys.sizes(), at::IntArrayRef({1, 3, 1}));
  EXPECT_EQ(tower::vmap(one)(y0.slice(0, 0, 0)).ys.sizes(), at::IntArrayRef({0, 3, 1}));
}

TEST(Odeint, AnEnsembleIsOneKernelWhenCompiled) {
  const Tensor rho = at::linspace(0, 21, 11, at::kDouble);
  const OdeOptions loose{.rtol = 1e-4, .atol = 1e-4, .first_step = 0.01};
  const Tensor ends = vec({0, 0.2});
  const std::vector<std::pair<OdeOptions, Tensor>> cases{
      {loose, ends}, {loose, at::linspace(0, 0.2, 12, at::kDouble)}, {{.method = Ode::rodas5p, .step = 0.05}, ends}};
  for (const auto& [options, ts] : cases) {
    const auto one = [options = options, ts = ts](const Tensor& rho) { return lorenz(rho, options, ts); };
    const auto fast = tower::compile(tower::vmap(one));
    const Tensor expected = tower::vmap(one)(rho);
    for (int call = 0; call < 2; ++call) EXPECT_EQ(support::difference(fast(rho), expected, {1e-11, 1e-11}), "");
    const std::string report = fast.report();
    EXPECT_FALSE(contains(report, "while_loop") || contains(report, "scan")) << report;
    EXPECT_TRUE(ts.numel() > 2 || (contains(report, "kernels: 1, of") && contains(report, "LibTorch: 0"))) << report;
  }
  const auto end = [&](const Tensor& rho) { return lorenz(rho, loose, ends).select(0, -1).sum(); };
  const auto slope = tower::compile(tower::vmap(tower::grad(end)));
  const Tensor expected = tower::vmap(tower::jacfwd(end))(rho);
  for (int call = 0; call < 2; ++call) EXPECT_EQ(support::difference(slope(rho), expected, {1e-10, 1e-10}), "");
  EXPECT_TRUE(contains(slope.report(), "kernels: 1, of") && contains(slope.report(), "LibTorch: 0")) << slope.report();
}

// ---- what goes wrong ----

TEST(Odeint, TheStatusSaysWhyASystemEnded) {
  // y' = y² from y = 1 has a pole at 1.
  const auto pole = [](const Tensor&, const Tensor& y) { return y * y; };
  const auto at_pole = tower::odeint(pole, vec({1}), vec({0, 0.5, 2}));
  EXPECT_GE(at_pole.status.item<int64_t>(), as_number(OdeStatus::step_too_small));
  EXPECT_LE(at_pole.status.item<int64_t>(), as_number(OdeStatus::not_finite));
  EXPECT_NEAR(at_pole.t.item<double>(), 1, 1e-4);
  EXPECT_NEAR(at_pole.ys[1].item<double>(), 2, 1e-5);
  EXPECT_TRUE(std::isnan(at_pole.ys[2].item<double>()));
  const auto edge = [](const Tensor& t, const Tensor& y) { return (1 - t).sqrt() + 0 * y; };
  const auto at_edge = tower::odeint(edge, vec({1}), vec({0, 2}));
  EXPECT_EQ(at_edge.status.item<int64_t>(), as_number(OdeStatus::not_finite));
  EXPECT_NEAR(at_edge.t.item<double>(), 1, 1e-6);
  const auto few = tower::odeint(bell_slope, vec({1}), vec({0, 4}), {.max_steps = 3});
  EXPECT_EQ(few.status.item<int64_t>(), as_number(OdeStatus::max_steps));
  EXPECT_EQ(few.steps.item<int64_t>(), 3);
  for (const Tensor& times : {vec({0, 2, 1}), vec({0, 1, 0}), vec({0, kNan, 1}), vec({kNan, kNan}), vec({kNan})}) {
    const auto none = tower::odeint(bell_slope, vec({1}), times);
    EXPECT_EQ(none.status.item<int64_t>(), as_number(OdeStatus::unordered_times));
    EXPECT_EQ(none.steps.item<int64_t>(), 0);
    EXPECT_TRUE(none.ys.slice(0, 1).isnan().all().item<bool>());
  }
  const auto fixed = tower::odeint(edge, vec({1}), vec({0, 2}), {.step = 0.3});
  EXPECT_EQ(fixed.status.item<int64_t>(), as_number(OdeStatus::not_finite));
  EXPECT_NEAR(fixed.t.item<double>(), 0.9, 1e-12);
  EXPECT_EQ(tower::odeint(bell_slope, vec({1}), vec({1e8, 1e8 + 1}), {.step = 1e-12}).status.item<int64_t>(),
            as_number(OdeStatus::step_too_small));
}

struct Pendulum {
  Tensor angle, speed;
};
constexpr auto tower_fields(const Pendulum&) { return std::tuple(&Pendulum::angle, &Pendulum::speed); }

TEST(Odeint, StatesAreTreesAndTimesMayBeOneOrEqual) {
  const auto slope = [](const Tensor&, const Pendulum& p) { return Pendulum{p.speed, -p.angle}; };
  const Pendulum start{vec({1, 2}), at::zeros({2}, at::kDouble)};
  const auto found = tower::odeint(slope, start, at::arange(0, 3));
  EXPECT_LT(largest(found.ys.angle - at::arange(3).cos().unsqueeze(1) * start.angle), 1e-5);
  EXPECT_LT(largest(found.ys.speed + at::arange(3).sin().unsqueeze(1) * start.angle), 1e-5);
  EXPECT_TRUE(same(tower::odeint(slope, start, vec({3})).ys.angle, start.angle.unsqueeze(0)));
  EXPECT_TRUE(same(tower::odeint(slope, start, vec({3, 3, 3})).ys.angle, start.angle.expand({3, 2})));
  const auto single = tower::odeint(bell_slope, at::ones({1}), at::linspace(0, 1, 4), {.rtol = 1e-4, .atol = 1e-4});
  EXPECT_EQ(single.ys.scalar_type(), at::kFloat);
  EXPECT_NEAR(single.ys[3].item<double>(), 0.5, 1e-3);
  EXPECT_NEAR(
      tower::odeint(bell_slope, vec({1}), vec({0, 4}), {.first_step = 1e-3, .longest_step = 0.05}).steps.item<double>(),
      82, 6);
}

TEST(Odeint, WrongArgumentsAreRefused) {
  const auto refused = [](const Tensor& y0, const Tensor& ts, const OdeOptions& options = {}) {
    return message_of<tower::ArgumentError>([&] { tower::odeint(bell_slope, y0, ts, options); });
  };
  const Tensor y0 = vec({1}), ts = vec({0, 1});
  EXPECT_TRUE(contains(refused(at::ones({1}, at::kLong), ts), "odeint: tensor 0 of the unknowns is Long [1]"));
  EXPECT_TRUE(contains(refused(at::ones({1}, at::kComplexDouble), ts), "of complex ones, view_as_real"));
  EXPECT_TRUE(contains(refused(y0, vec({})), "odeint: ts is Double [0]. It is the times, of one dimension"));
  EXPECT_TRUE(contains(refused(y0, ts, {.step = -0.1}), "odeint: step is -0.1"));
  EXPECT_TRUE(contains(refused(y0, ts, {.first_step = 0}), "odeint: first_step is 0"));
  EXPECT_TRUE(contains(refused(y0, ts, {.longest_step = kNan}), "odeint: longest_step is nan"));
  EXPECT_TRUE(contains(refused(y0, ts, {.rtol = -1}), "odeint: rtol is -1"));
  EXPECT_TRUE(contains(refused(y0, ts, {.atol = 0}), "odeint: atol is 0"));
  EXPECT_TRUE(contains(refused(y0, ts, {.max_steps = -1}), "odeint: max_steps is -1"));
  EXPECT_TRUE(contains(refused(y0, ts, {.method = static_cast<Ode>(7)}), "odeint: there is no such method"));
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] {
                         tower::odeint([](const Tensor&, const Tensor&) { return vec({1, 2}); }, y0, ts);
                       }),
                       "odeint: the right-hand side gave Double [2]"));
  using List = std::vector<Tensor>;
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] {
                         tower::odeint([](const Tensor&, const List& y) { return List{y[0], y[0]}; }, List{y0}, ts);
                       }),
                       "odeint: the right-hand side returned a tree with other numbers"));
}

}  // namespace
