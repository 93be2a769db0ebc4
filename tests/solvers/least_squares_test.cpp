// least_squares. Oracles: NIST's certified values; the normal equations of linear fits, in closed form; finite
// differences of fits; a loop over the fits.
#include "tower/least_squares.h"

#include <cmath>
#include <limits>

#include "support/nestings.h"
#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/compile.h"
#include "tower/transforms.h"

namespace {

using tower::FitStatus;
using tower::LeastSquaresOptions;
using tower::Loss;

int64_t as_number(FitStatus status) { return static_cast<int64_t>(status); }
double largest(const Tensor& t) { return t.abs().max().item<double>(); }
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const LeastSquaresOptions kTight{.ftol = 1e-12, .xtol = 1e-12, .gtol = 1e-12, .max_steps = 1000};

// ---- NIST's Statistical Reference Datasets, nonlinear regression (itl.nist.gov/div898/strd): data, starts, certified
// parameters, their standard deviations, and the sum of squares ----

struct Dataset {
  const char* name;
  std::function<Tensor(const Tensor& b, const Tensor& x)> model;
  Tensor x, y;
  std::vector<Tensor> starts;
  Tensor parameters, deviations;
  double squares;
};

std::vector<Dataset> datasets() {
  return {
      {"Misra1a",
       [](const Tensor& b, const Tensor& x) { return b[0] * (1 - (-b[1] * x).exp()); },
       vec({77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0}),
       vec({10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02, 44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78}),
       {vec({500, 0.0001}), vec({250, 0.0005})},
       vec({2.3894212918e+02, 5.5015643181e-04}),
       vec({2.7070075241e+00, 7.2668688436e-06}),
       1.2455138894e-01},
      {"Thurber",
       [](const Tensor& b, const Tensor& x) {
         return (b[0] + x * (b[1] + x * (b[2] + x * b[3]))) / (1 + x * (b[4] + x * (b[5] + x * b[6])));
       },
       vec({-3.067, -2.981, -2.921, -2.912, -2.840, -2.797, -2.702, -2.699, -2.633, -2.481, -2.363, -2.322, -1.501,
            -1.460, -1.274, -1.212, -1.100, -1.046, -0.915, -0.714, -0.566, -0.545, -0.400, -0.309, -0.109, -0.103,
            0.010,  0.119,  0.377,  0.790,  0.963,  1.006,  1.115,  1.572,  1.841,  2.047,  2.200}),
       vec({80.574,   84.248,   87.264,   87.195,   89.076,   89.608,   89.868,   90.101,   92.405,   95.854,
            100.696,  101.060,  401.672,  390.724,  567.534,  635.316,  733.054,  759.087,  894.206,  990.785,
            1090.109, 1080.914, 1122.643, 1178.351, 1260.531, 1273.514, 1288.339, 1327.543, 1353.863, 1414.509,
            1425.208, 1421.384, 1442.962, 1464.350, 1468.705, 1447.894, 1457.628}),
       {vec({1000, 1000, 400, 40, 0.7, 0.3, 0.03}), vec({1300, 1500, 500, 75, 1, 0.4, 0.05})},
       vec({1.2881396800e+03, 1.4910792535e+03, 5.8323836877e+02, 7.5416644291e+01, 9.6629502864e-01, 3.9797285797e-01,
            4.9727297349e-02}),
       vec({4.6647963344e+00, 3.9571156086e+01, 2.8698696102e+01, 5.5675370270e+00, 3.1333340687e-02, 1.4984928198e-02,
            6.5842344623e-03}),
       5.6427082397e+03},
      {"MGH09",
       [](const Tensor& b, const Tensor& x) { return b[0] * (x * x + x * b[1]) / (x * x + x * b[2] + b[3]); },
       vec({4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625}),
       vec({0.1957, 0.1947, 0.1735, 0.16, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246}),
       {vec({25, 39, 41.5, 39}), vec({0.25, 0.39, 0.415, 0.39})},
       vec({1.9280693458e-01, 1.9128232873e-01, 1.2305650693e-01, 1.3606233068e-01}),
       vec({1.1435312227e-02, 1.9633220911e-01, 8.0842031232e-02, 9.0025542308e-02}),
       3.0750560385e-04},
      {"Eckerle4",
       [](const Tensor& b, const Tensor& x) { return b[0] / b[1] * (-0.5 * ((x - b[2]) / b[1]).square()).exp(); },
       vec({400,   405, 410,   415, 420,   425, 430,   435, 436.5, 438, 439.5, 441, 442.5, 444, 445.5, 447, 448.5, 450,
            451.5, 453, 454.5, 456, 457.5, 459, 460.5, 462, 463.5, 465, 470,   475, 480,   485, 490,   495, 500}),
       vec({0.0001575, 0.0001699, 0.000235,  0.0003102, 0.0004917, 0.000871,  0.0017418, 0.00464,   0.0065895,
            0.0097302, 0.0149002, 0.023731,  0.0401683, 0.0712559, 0.1264458, 0.2073413, 0.2902366, 0.3445623,
            0.3698049, 0.3668534, 0.3106727, 0.2078154, 0.1164354, 0.0616764, 0.03372,   0.0194023, 0.0117831,
            0.0074357, 0.0022732, 0.00088,   0.0004579, 0.0002345, 0.0001586, 0.0001143, 0.000071}),
       {vec({1.5, 5, 450})},  // from its first start, (1, 10, 500), many programs come to another minimum
       vec({1.5543827178, 4.0888321754, 4.5154121844e+02}),
       vec({1.5408051163e-02, 4.6803020753e-02, 4.6800518816e-02}),
       1.4635887487e-03}};
}

TEST(LeastSquares, NistsProblemsHaveTheirCertifiedValues) {
  const LeastSquaresOptions to_the_end{.ftol = 0, .xtol = 0, .gtol = 1e-12, .max_steps = 1000};
  for (const Dataset& d : datasets())
    for (size_t k = 0; k < d.starts.size(); ++k) {
      const auto fit =
          tower::least_squares([&](const Tensor& b) { return d.model(b, d.x) - d.y; }, d.starts[k], to_the_end);
      EXPECT_LE(fit.status.item<int64_t>(), as_number(FitStatus::small_step)) << d.name << k;
      EXPECT_LT(largest(fit.x / d.parameters - 1), 1e-6) << d.name << k;
      EXPECT_LT(largest(fit.covariance.diagonal().sqrt() / d.deviations - 1), 1e-6) << d.name << k;
      EXPECT_NEAR(2 * fit.cost.item<double>() / d.squares, 1, 1e-9) << d.name << k;
    }
}

// ---- transforms ----

// a exp(−b t): four numbers that are seen, two that are sought.
const Tensor& times() {
  static const Tensor t = vec({0, 0.4, 1, 2});
  return t;
}
Tensor seen(double a, double b) { return a * (-b * times()).exp() + 0.05 * vec({1, -1, -0.5, 2}); }

tower::LeastSquaresFit<> decay(const Tensor& data, const LeastSquaresOptions& options = kTight) {
  const auto residuals = [data](const Tensor& x) { return x[0] * (-x[1] * times()).exp() - data; };
  return tower::least_squares(residuals, vec({1, 1}), options);
}

TEST(LeastSquares, LinearFitsUnderEveryNestingAreTheNormalEquations) {
  const Tensor design = waves({5, 2});
  const Function fit = [=](const Tensors& in) {
    const auto residuals = [=, y = in[0], w = in[1]](const Tensors& x) {
      return Tensors{w * (at::mv(design, x[0]) - y)};
    };
    return td::least_squares(residuals, {vec({0, 0})}, kTight).x;
  };
  const Function closed = [=](const Tensors& in) {
    const Tensor a = in[1].unsqueeze(1) * design;
    return Tensors{at::linalg_solve(a.t().mm(a), at::mv(a.t(), in[1] * in[0]))};
  };
  for (const std::string& kinds : support::nestings()) {
    Tensors inputs = support::inputs_of({{5}, {5}}, kinds);
    inputs[1] = inputs[1] + 2;
    EXPECT_EQ(support::difference(support::transformed(kinds, fit, false)(inputs),
                                  support::transformed(kinds, closed, /*by_loop=*/true)(inputs), {1e-8, 1e-8}),
              "")
        << kinds;
  }
}

TEST(LeastSquares, DerivativesByTheDataAreThoseOfTheFit) {
  const Tensor data = seen(2, 0.7), along = vec({0.3, -0.2, 0.5, 0.1});
  for (const Loss loss : {Loss::squares(), Loss::huber(0.03), Loss::soft_l1(0.1), Loss::cauchy(0.1)}) {
    LeastSquaresOptions options = kTight;
    options.loss = loss;
    const auto fitted = [options](const Tensor& d) { return decay(d, options).x; };
    const Tensor expected = support::directional_derivative(
        [&](const support::Tensors& d) { return support::Tensors{fitted(d[0])}; }, {data}, {along})[0];
    // Fits end with an error of some 1e-8, which differences divide by their step of 1e-3.
    EXPECT_LT(largest(tower::jvp(fitted, data, along).second - expected), 2e-5);
    EXPECT_LT(largest(at::mv(tower::jacrev(fitted)(data), along) - expected), 2e-5);
  }
}

TEST(LeastSquares, RobustCostsAreStationaryAndThatOfCauchyForgivesAWrongNumber) {
  Tensor data = seen(2, 0.7);
  data[3] += 5;
  for (const Loss loss : {Loss::huber(0.1), Loss::soft_l1(0.1), Loss::cauchy(0.1)}) {
    LeastSquaresOptions options = kTight;
    options.loss = loss;
    const auto fit = decay(data, options);
    EXPECT_LE(fit.status.item<int64_t>(), as_number(FitStatus::small_step));
    const double c = loss.scale();
    // The costs as they are defined, by SciPy's formulas.
    const auto cost = [&](const Tensor& x) {
      const Tensor z = ((x[0] * (-x[1] * times()).exp() - data) / c).square();
      const Tensor rho = loss.kind() == Loss::Kind::huber     ? at::where(z <= 1, z, 2 * z.sqrt() - 1)
                         : loss.kind() == Loss::Kind::soft_l1 ? 2 * ((1 + z).sqrt() - 1)
                                                              : z.log1p();
      return 0.5 * c * c * rho.sum();
    };
    EXPECT_NEAR(cost(fit.x).item<double>(), fit.cost.item<double>(), 1e-12);
    EXPECT_LT(largest(tower::grad(cost)(fit.x)), 1e-7);
    if (loss.kind() == Loss::Kind::cauchy) {
      EXPECT_LT((fit.x[0] - 2).abs().item<double>(), 0.1);
    }
  }
}

// ---- ensembles ----

TEST(LeastSquares, EachFitOfAnEnsembleIsAsAloneCompiledOrNot) {
  const Tensor data = at::stack({seen(2, 0.7), seen(1, 1), seen(3, 0.1), seen(40, 3), seen(2, 0.7) + kNan});
  const auto one = [](const Tensor& d) { return decay(d, {}); };
  const auto many = tower::vmap(one)(data);
  const auto fast = tower::compile(tower::vmap(one));
  // The call's own kernels are there from its third time on.
  std::vector<tower::LeastSquaresFit<>> all{many};
  for (int call = 0; call < 4; ++call) all.push_back(fast(data));
  for (const auto& fits : all)
    for (int64_t k = 0; k < 5; ++k) {
      const auto alone = one(data[k]);
      EXPECT_EQ(support::difference({fits.x[k], fits.cost[k], fits.status[k], fits.steps[k], fits.covariance[k]},
                                    {alone.x, alone.cost, alone.status, alone.steps, alone.covariance}, {1e-9, 1e-9}),
                "")
          << k;
    }
  EXPECT_EQ(many.status[4].item<int64_t>(), as_number(FitStatus::not_finite));
  EXPECT_NE(many.steps[0].item<int64_t>(), many.steps[3].item<int64_t>());
  // Where there is no fit there is no derivative.
  const Tensor by_data = tower::vmap(tower::jacrev([&](const Tensor& d) { return one(d).x; }))(data);
  EXPECT_TRUE(by_data.slice(0, 0, 4).isfinite().all().item<bool>());
  EXPECT_TRUE(by_data[4].isnan().all().item<bool>());
  const auto fast_by_data = tower::compile(tower::vmap(tower::jacrev([&](const Tensor& d) { return one(d).x; })));
  for (int call = 0; call < 4; ++call) EXPECT_EQ(support::difference(fast_by_data(data), by_data, {1e-9, 1e-9}), "");
  const Tensor good = data.slice(0, 0, 4), expected = by_data.slice(0, 0, 4).sum(1);
  const auto sum = [&](const Tensor& d) { return fast(d).x.sum(); };
  for (int call = 0; call < 4; ++call)
    EXPECT_EQ(support::difference(tower::grad(sum)(good), expected, {1e-8, 1e-8}), "");
  EXPECT_EQ(tower::vmap(one)(data.slice(0, 0, 1)).x.sizes(), at::IntArrayRef({1, 2}));
  EXPECT_EQ(tower::vmap(one)(data.slice(0, 0, 0)).x.sizes(), at::IntArrayRef({0, 2}));
}

// ---- bounds ----

// A linear fit between bounds, by trying which numbers are at which bound: the one that is feasible and cheapest.
Tensor bounded_by_trial(const Tensor& design, const Tensor& y, const Tensor& lower, const Tensor& upper) {
  const int64_t n = design.size(1);
  const auto cost = [&](const Tensor& x) { return (at::mv(design, x) - y).square().sum().item<double>(); };
  Tensor best;
  for (int64_t pattern = 0; pattern < std::pow(3, n); ++pattern) {
    Tensor fixed = at::zeros({n}, at::kDouble), free = at::zeros({n}, at::kBool);
    for (int64_t k = 0, digits = pattern; k < n; ++k, digits /= 3) {
      if (digits % 3 == 0) free[k] = true;
      else fixed[k] = digits % 3 == 1 ? lower[k] : upper[k];
    }
    const Tensor columns = free.nonzero().squeeze(1), part = design.index_select(1, columns);
    const Tensor rest = y - at::mv(design, fixed);
    const Tensor x = fixed.index_add(0, columns, at::linalg_solve(part.t().mm(part), at::mv(part.t(), rest)));
    if ((x >= lower - 1e-12).logical_and(x <= upper + 1e-12).all().item<bool>() &&
        (!best.defined() || cost(x) < cost(best)))
      best = x;
  }
  return best;
}

TEST(LeastSquares, BoundedLinearFitsAreTheBestOfAllActiveSets) {
  const Tensor unit = at::eye(3, at::kDouble), design = waves({6, 3}) + at::cat({unit, -unit.flip(0)});
  const Tensor centre = vec({0.2, -0.4, 0.1});
  for (int64_t k = 0; k < 12; ++k) {
    const Tensor y = 2 * waves({6}, 0.7 * static_cast<double>(k));
    const Tensor lower = centre - 0.05 * static_cast<double>(k + 1), upper = centre + 0.08 * static_cast<double>(k + 1);
    LeastSquaresOptions options = kTight;
    options.lower = lower;
    options.upper = upper;
    const auto residuals = [&](const Tensor& x) { return at::mv(design, x) - y; };
    const auto fit = tower::least_squares(residuals, at::zeros({3}, at::kDouble), options);
    EXPECT_LE(fit.status.item<int64_t>(), as_number(FitStatus::small_step)) << k;
    EXPECT_LT(largest(fit.x - bounded_by_trial(design, y, lower, upper)), 1e-8) << k;
  }
}

tower::LeastSquaresFit<> bounded_decay(const Tensor& data, const Tensor& fastest) {
  LeastSquaresOptions options = kTight;
  options.upper = at::stack({at::full_like(fastest, std::numeric_limits<double>::infinity()), fastest});
  return decay(data, options);
}
// With the rate given, the fit of the factor is linear.
Tensor of_known_rate(const Tensor& data, const Tensor& rate) {
  const Tensor e = (-rate * times()).exp();
  return at::stack({at::dot(e, data) / at::dot(e, e), rate});
}

TEST(LeastSquares, WhatABoundHoldsHasTheBoundsDerivativeAndNoVariance) {
  const Tensor data = seen(2, 0.7), fastest = at::scalar_tensor(0.5, at::kDouble);
  const auto fit = bounded_decay(data, fastest);
  EXPECT_EQ(fit.x[1].item<double>(), 0.5);
  EXPECT_LE(fit.status.item<int64_t>(), as_number(FitStatus::small_step));
  EXPECT_LT(largest(fit.x - of_known_rate(data, fastest)), 1e-8);
  EXPECT_EQ(largest(fit.covariance[1]), 0);
  EXPECT_GT(fit.covariance[0][0].item<double>(), 0);
  const auto x = [](const Tensor& d, const Tensor& b) { return bounded_decay(d, b).x; };
  for (const int64_t argument : {0, 1}) {
    const auto of_one = [&](const Tensor& t) { return argument == 0 ? x(t, fastest) : x(data, t); };
    const auto closed = [&](const Tensor& t) {
      return argument == 0 ? of_known_rate(t, fastest) : of_known_rate(data, t);
    };
    const Tensor at = argument == 0 ? data : fastest, expected = tower::jacrev(closed)(at);
    EXPECT_LT(largest(tower::jacrev(of_one)(at) - expected), 1e-7);
    EXPECT_LT(largest(tower::jacfwd(of_one)(at) - expected), 1e-7);
  }
  // Where it does not hold anything, all is as without.
  const Tensor far = at::scalar_tensor(5., at::kDouble);
  EXPECT_LT(largest(x(data, far) - decay(data).x), 1e-8);
  EXPECT_LT(largest(tower::jacrev([&](const Tensor& d) { return x(d, far); })(data) -
                    tower::jacrev([&](const Tensor& d) { return decay(d).x; })(data)),
            1e-6);
  EXPECT_TRUE(tower::grad([&](const Tensor& b) { return x(data, b).sum(); })(far).eq(0).item<bool>());
  // Bounds that leave one number, an x0 beyond them, and those that leave none.
  LeastSquaresOptions options = kTight;
  options.lower = options.upper = vec({3, 0.2});
  EXPECT_TRUE(same(decay(data, options).x, options.lower));
  options.upper = vec({4, 0.1});
  const auto none = decay(data, options);
  EXPECT_EQ(none.status.item<int64_t>(), as_number(FitStatus::not_finite));
}

TEST(LeastSquares, EachFitOfAnEnsembleHasItsOwnBoundsAndWeightsCompiledOrNot) {
  const Tensor data = at::stack({seen(2, 0.7), seen(2, 0.7), seen(3, 0.1)}), fastest = vec({0.5, 5, 0.05});
  const Tensor weights = vec({1, 2, 3});
  const auto one = [](const Tensor& d, const Tensor& b, const Tensor& w) {
    LeastSquaresOptions options = kTight;
    options.upper = at::stack({at::full_like(b, 10), b});
    options.lower = at::scalar_tensor(-10, at::kDouble);
    return tower::least_squares([=](const Tensor& x) { return w * (x[0] * (-x[1] * times()).exp() - d); }, vec({1, 0}),
                                options)
        .x;
  };
  const auto fast = tower::compile(tower::vmap(one));
  for (int call = 0; call < 4; ++call) {
    const Tensor x = call == 0 ? tower::vmap(one)(data, fastest, weights) : fast(data, fastest, weights);
    for (int64_t k = 0; k < 3; ++k) {
      const Tensor expected = k == 1 ? decay(data[k]).x : of_known_rate(data[k], fastest[k]);
      EXPECT_LT(largest(x[k] - expected), 1e-7) << k << " in call " << call;
    }
  }
}

TEST(LeastSquares, TheStatusSaysHowItEnded) {
  EXPECT_EQ(decay(seen(2, 0.7), {.max_steps = 1}).status.item<int64_t>(), as_number(FitStatus::max_steps));
  EXPECT_EQ(decay(seen(1, 1) * 0 + (-times()).exp()).status.item<int64_t>(), as_number(FitStatus::small_gradient));
  // The cost falls towards x = 1, beyond which there is none.
  const auto edge = [](const Tensor& x) { return at::where(x < 1, 2 - x, kNan); };
  const auto at_edge = tower::least_squares(edge, vec({0.3}));
  EXPECT_GT(at_edge.status.item<int64_t>(), as_number(FitStatus::small_step));
  EXPECT_LT(at_edge.x.item<double>(), 1);
  const auto exact = tower::least_squares([](const Tensor& x) { return x - 3; }, vec({0.}));
  EXPECT_NEAR(exact.x.item<double>(), 3, 1e-6);
  EXPECT_TRUE(exact.covariance.isnan().all().item<bool>());
}

TEST(LeastSquares, WhereTheCostCannotTellTheGradientDoes) {
  // Residuals that are differences of numbers that are larger by far: their cost is of few digits.
  const Tensor t = at::linspace(0, 3, 20, at::kDouble), y = 2 * (-0.7 * t).exp() + 0.05 * (7 * t).cos();
  const auto fitted = [&](const Tensor& offset) {
    const auto error = [=](const Tensor& x) { return x[0] * (-x[1] * t).exp() + offset - (y + offset); };
    return tower::least_squares(error, vec({1, 1}), {.ftol = 0, .xtol = 0, .gtol = 1e-9});
  };
  const auto fits = tower::vmap(fitted)(vec({0, 1e3, 1e6}));
  EXPECT_EQ(largest(fits.status), as_number(FitStatus::small_gradient));
  EXPECT_LT(largest(fits.x - fits.x[0]), 1e-8);
}

TEST(LeastSquares, OfWhatNothingDeterminesTheCovarianceIsNan) {
  const auto sum = [](const Tensor& x) { return (x[0] + x[1]) * times() - seen(2, 0.7); };
  EXPECT_TRUE(tower::least_squares(sum, vec({1, 2})).covariance.isnan().all().item<bool>());
}

TEST(LeastSquares, TreesAndSinglePrecisionAreFitted) {
  using Line = std::pair<Tensor, Tensor>;
  const Tensor x = at::linspace(0, 1, 6), y = 2 * x - 1;
  const auto fit = tower::least_squares(
      [&](const Line& l) {
        return std::vector<Tensor>{l.first * x + l.second - y, 1e-3 * l.first};
      },
      Line(at::zeros({}), at::zeros({1})));
  EXPECT_EQ(fit.x.second.sizes(), at::IntArrayRef({1}));
  EXPECT_EQ(fit.x.first.scalar_type(), at::kFloat);
  EXPECT_NEAR(fit.x.first.item<double>(), 2, 1e-3);
  EXPECT_NEAR(fit.x.second.item<double>(), -1, 1e-3);
  EXPECT_LE(fit.status.item<int64_t>(), as_number(FitStatus::small_step));
}

TEST(LeastSquares, WrongArgumentsAreRefused) {
  const auto refused = [](const Tensor& x0, const LeastSquaresOptions& options = {}) {
    return message_of<tower::ArgumentError>(
        [&] { tower::least_squares([](const Tensor& x) { return x.to(at::kDouble) - 1; }, x0, options); });
  };
  EXPECT_TRUE(contains(refused(at::ones({2}, at::kLong)), "least_squares: tensor 0 of the unknowns is Long [2]"));
  EXPECT_TRUE(contains(refused(at::ones({2}, at::kComplexDouble)), "of complex ones, view_as_real"));
  EXPECT_TRUE(
      contains(refused(at::ones({2})), "least_squares: the residuals are Double [2], and x0 is of another dtype"));
  EXPECT_TRUE(contains(refused(vec({1}), {.loss = Loss::huber(0)}), "least_squares: the loss's scale is 0"));
  EXPECT_TRUE(contains(refused(vec({1}), {.first_damping = 0}), "least_squares: first_damping is 0"));
  EXPECT_TRUE(contains(refused(vec({1}), {.ftol = -1}), "least_squares: ftol is -1"));
  EXPECT_TRUE(contains(refused(vec({1}), {.max_steps = -1}), "least_squares: max_steps is -1"));
  EXPECT_TRUE(contains(refused(vec({1}), {.lower = vec({1, 2})}),
                       "least_squares: lower is Double [2], and x0 has 1 numbers. It is one real number, or one for"));
  EXPECT_TRUE(contains(refused(vec({1}), {.upper = at::zeros({1}, at::kComplexDouble)}), "least_squares: upper is"));
}

}  // namespace
