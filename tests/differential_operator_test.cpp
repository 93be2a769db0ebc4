// Differential operators against closed forms and nested derivatives; estimates against their expectation over a
// quadrature of directions, which is exact.
#include "tower/differential_operator.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/errors.h>
#include <tower/tower.h>

#include <cmath>
#include <functional>
#include <limits>

#include "support/expect.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using support::contains;
using support::expect_close;
using support::message_of;
using support::vec;
using tower::DerivativeTerm;
using Tensors = std::vector<Tensor>;
using Scalar = std::function<Tensor(const Tensor&)>;
using Indices = std::vector<int64_t>;

Tensor number(double value) { return at::full({}, value, at::kDouble); }

// A derivative for each index, nested.
Tensor nested(const Scalar& f, const Indices& by, const Tensor& x) {
  Scalar g = f;
  for (const int64_t i : by) g = [g, i](const Tensor& a) { return tower::grad(g)(a)[i]; };
  return g(x);
}

// sin(k·x + 1): each derivative by element i is a factor kᵢ and a quarter of a period.
TEST(DifferentialOperator, OfAPlaneWaveIsItsPolynomial) {
  const std::vector<double> k{0.7, -1.3, 0.4};
  const Tensor wave_vector = vec({0.7, -1.3, 0.4}), x = vec({0.2, 0.5, -0.9});
  const auto wave = [&](const Tensor& a) { return (at::dot(wave_vector, a) + 1).sin(); };
  const double phase = at::dot(wave_vector, x).item<double>() + 1;
  const auto expected = [&](const Indices& by) {
    double product = 1;
    for (const int64_t i : by) product *= k[static_cast<size_t>(i)];
    return product * std::sin(phase + M_PI_2 * static_cast<double>(by.size()));
  };
  const std::vector<Indices> all{{},        {1},          {0, 0},       {0, 2},          {0, 1, 2},
                                 {2, 1, 1}, {0, 0, 1, 1}, {0, 2, 2, 2}, {0, 1, 1, 2, 2}, {0, 0, 0, 1, 1, 2}};
  std::vector<DerivativeTerm> terms;
  double sum = 0, factor = 0.5;
  for (const Indices& by : all) {
    expect_close(tower::differential_operator({{2, by}})(wave)(x), number(2 * expected(by)), 1e-12);
    terms.push_back({factor, by});
    sum += factor * expected(by);
    factor = -1.25 * factor;
  }
  expect_close(tower::differential_operator(terms)(wave)(x), number(sum), 1e-12);
  expect_close(tower::differential_operator(terms, {.chunk_size = 2})(wave)(x), number(sum), 1e-12);
}

// Of (c·x)ᴷ the derivative of order K is K! times its monomial of c: also for the highest order that there is.
TEST(DifferentialOperator, OfAPowerIsExactUpToOrderTwelve) {
  const Tensor c = vec({1, 2, 0.5}), x = vec({0.1, 0.4, -0.3});
  const auto power = [&](int64_t order) { return [&, order](const Tensor& a) { return at::dot(c, a).pow(order); }; };
  const Indices twelve{0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2};
  expect_close(tower::differential_operator({{1, twelve}})(power(12))(x), number(std::tgamma(13.0) * 2), 1e-10);
  expect_close(tower::differential_operator({{1, {0, 0, 0, 1, 2}}})(power(5))(x), number(120), 1e-12);
  // A polynomial of lower degree has none.
  expect_close(tower::differential_operator({{1, {0, 0, 1}}})(power(2))(x), number(0), 0);
}

Tensor perceptron(const Tensor& x) {
  const Tensor w1 = at::linspace(-1, 1, 15, at::kDouble).view({5, 3}).sin();
  const Tensor w2 = at::linspace(-1, 2, 5, at::kDouble).cos();
  return at::dot(at::tanh(at::linear(x, w1, at::ones({5}, at::kDouble))), w2);
}
Tensor program(const Tensor& x) {
  const Tensor y = at::softmax(x * x[1], 0) / (1 + x.square());
  return at::linalg_inv(at::outer(y, y) + 2 * at::eye(3, at::kDouble)).sum() * x.exp().prod();
}

TEST(DifferentialOperator, IsThatOfNestedDerivatives) {
  const Tensor x = vec({0.3, -0.4, 0.7});
  const std::vector<Indices> all{{2}, {0, 1}, {1, 1}, {0, 0, 2}, {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 2, 2}};
  for (const Scalar& f : {Scalar(perceptron), Scalar(program)}) {
    std::vector<DerivativeTerm> terms;
    Tensor sum = number(0);
    for (const Indices& by : all) {
      terms.push_back({static_cast<double>(by.size()) - 2.5, by});
      sum = sum + terms.back().coefficient.number * nested(f, by, x);
    }
    expect_close(tower::differential_operator(terms)(f)(x), sum, 1e-9);
  }
}

TEST(DifferentialOperator, HasTheLaplacianAndTheBiharmonicAmongThem) {
  const Tensor x = vec({0.3, -0.4, 0.7});
  std::vector<DerivativeTerm> second, fourth;
  for (int64_t i = 0; i < 3; ++i) {
    second.push_back({1, {i, i}});
    for (int64_t j = 0; j < 3; ++j) fourth.push_back({1, {i, i, j, j}});
  }
  expect_close(tower::differential_operator(second)(program)(x), tower::hessian(program)(x).trace(), 1e-11);
  const auto trace = [](const Tensor& a) { return tower::hessian(perceptron)(a).trace(); };
  expect_close(tower::differential_operator(fourth)(perceptron)(x), tower::hessian(trace)(x).trace(), 1e-11);
}

// u = exp(-a t) sin(b x): (∂t - ∂xx) u = (b² - a) u, for arguments of their own and rows of points.
TEST(DifferentialOperator, IsByTheArgumentsThatAreNamedAndNests) {
  const double a = 0.3, b = 1.7;
  const auto u = [&](const Tensor& t, const Tensor& x) { return (-a * t).exp() * (b * x).sin(); };
  const Tensor ts = at::linspace(0, 1, 5, at::kDouble), xs = at::linspace(-1, 2, 5, at::kDouble);
  const auto heat = tower::differential_operator<0, 1>({{1, {0}}, {-1, {1, 1}}})(u);
  const Tensor expected = (b * b - a) * u(ts, xs);
  expect_close(tower::vmap(heat)(ts, xs), expected, 1e-13);
  expect_close(tower::compile(tower::vmap(heat))(ts, xs), expected, 1e-13);
  expect_close(tower::grad(heat)(ts[1], xs[1]), -a * expected[1], 1e-13);
  expect_close(tower::jvp([&](const Tensor& x) { return heat(ts[1], x); }, xs[1], number(1)).second,
               (b * b - a) * (-a * ts[1]).exp() * b * (b * xs[1]).cos(), 1e-13);
  const auto dynamic = td::differential_operator([&](const Tensors& v) { return Tensors{u(v[0], v[1])}; }, {0, -1},
                                                 {{1, {0}}, {-1, {1, 1}}});
  expect_close(dynamic({ts[2], xs[2]})[0], expected[2], 1e-13);
  // Δ twice, once by itself.
  const auto second = tower::differential_operator({{1, {0, 0}}});
  const auto sine = [&](const Tensor& x) { return (b * x).sin(); };
  expect_close(second(second(sine))(xs[3]), std::pow(b, 4) * sine(xs[3]), 1e-12);
}

// Euler's equation: of xᵖ the operator x² ∂² + c x ∂ is p (p - 1) + c p, and that is differentiated by c and x.
TEST(DifferentialOperator, TakesCoefficientsThatDependOnThePosition) {
  const double p = 2.5;
  const auto euler = [&](const Tensor& x, const Tensor& c) {
    return tower::differential_operator({{x * x, {0, 0}}, {c * x, {0}}, {c, {}}})(
        [&](const Tensor& a) { return a.pow(p); })(x);
  };
  const Tensor xs = at::linspace(0.5, 2, 4, at::kDouble), c = number(0.8);
  const auto factor = p * (p - 1) + 0.8 * p + 0.8;
  expect_close(euler(xs[1], c), factor * xs[1].pow(p), 1e-13);
  expect_close(tower::vmap(euler, {.in_dims = {0, std::nullopt}})(xs, c), factor * xs.pow(p), 1e-13);
  expect_close(tower::grad<0>(euler)(xs[2], c), factor * p * xs[2].pow(p - 1), 1e-12);
  expect_close(tower::grad<1>(euler)(xs[2], c), (p + 1) * xs[2].pow(p), 1e-12);
  // LibTorch's own autograd goes through, too.
  const Tensor leaf = c.clone().requires_grad_();
  euler(xs[2], leaf).backward();
  expect_close(leaf.grad(), (p + 1) * xs[2].pow(p), 1e-12);
}

TEST(DifferentialOperator, OfTreesHasTheirTypesAndZeros) {
  const auto f = [](const Tensor& x) { return std::pair(x.square(), std::vector{x > 0, at::ones_like(x)}); };
  const Tensor x = at::tensor({1.0, -2.0}, at::kFloat);
  const auto [square, others] = tower::differential_operator({{3, {0, 0}}, {1, {1}}})(f)(x);
  expect_close(square, at::tensor({6.0, -4.0}, at::kFloat), 1e-6);
  EXPECT_EQ(others[0].scalar_type(), at::kBool);
  expect_close(others[1], at::zeros({2}, at::kFloat), 0);
  // Nothing is left of an operator without terms, or of those whose coefficients add up to zero.
  expect_close(tower::differential_operator({})(f)(x).first, at::zeros({2}, at::kFloat), 0);
  expect_close(tower::differential_operator({{1, {0, 1}}, {-1, {1, 0}}})(f)(x).first, at::zeros({2}, at::kFloat), 0);
}

// ---- estimates -----------------------------------------------------------------------------------------------------

// Nodes and weights with which the mean over standard normal numbers of polynomials up to degree nine is exact: the
// roots of Hermite's polynomial x⁵ - 10x³ + 15x.
struct Quadrature {
  Tensor nodes, weights;  // pairs of numbers; those of each
};
Quadrature quadrature() {
  const double s = std::sqrt(10.0), inner = std::sqrt(5 - s), outer = std::sqrt(5 + s);
  const Tensor x = vec({-outer, -inner, 0, inner, outer});
  // 4! / (5 He₄(x)²)
  const Tensor he4 = x.pow(4) - 6 * x.pow(2) + 3, w = 24 / (5 * he4.square());
  const auto pairs = at::meshgrid({x, x}, "ij");
  return {at::stack({pairs[0].flatten(), pairs[1].flatten()}, 1), at::outer(w, w).flatten()};
}

// Each estimate by one direction, and the mean of all.
template <class Estimate>
Tensor mean_over(const Estimate& estimate) {
  const Quadrature q = quadrature();
  return at::dot(q.weights, tower::vmap([&](const Tensor& v) { return estimate(v.unsqueeze(0)); })(q.nodes));
}

Tensor surface(const Tensor& x) { return (x[0] * 1.3).sin() * (x[1] * 0.7 - x[0]).exp(); }

TEST(StochasticOperators, HaveTheRightMean) {
  const Tensor x = vec({0.4, -0.2});
  const auto trace = [](const Tensor& a) { return tower::hessian(surface)(a).trace(); };
  expect_close(mean_over([&](const Tensor& v) { return tower::stochastic_laplacian(surface, {v})(x).second; }),
               trace(x), 1e-12);
  expect_close(mean_over([&](const Tensor& v) { return tower::stochastic_biharmonic(surface, {v})(x); }),
               tower::hessian(trace)(x).trace(), 1e-11);
  for (const Indices& by : std::vector<Indices>{{0, 1}, {0, 0}, {1, 1, 0}, {0, 0, 1, 1}, {1, 1, 1, 1}}) {
    const std::vector<DerivativeTerm> terms{{2, by}, {0.5, {1}}, {-1, {}}};
    const auto estimate = [&](const Tensor& v) {
      return tower::differential_operator(terms, {.normal_directions = {v}})(surface)(x);
    };
    expect_close(mean_over(estimate), tower::differential_operator(terms)(surface)(x), 1e-11);
  }
}

TEST(StochasticOperators, OfSeveralDirectionsAreTheMean) {
  const Tensor x = vec({0.4, -0.2}), vs = at::linspace(-1, 2, 10, at::kDouble).view({5, 2}).sin();
  const auto [value, all] = tower::stochastic_laplacian(surface, {vs})(x);
  expect_close(value, surface(x), 1e-15);
  const auto lap = [&](const Tensor& v) { return tower::stochastic_laplacian(surface, {v.unsqueeze(0)})(x).second; };
  const auto bi = [&](const Tensor& v) { return tower::stochastic_biharmonic(surface, {v.unsqueeze(0)})(x); };
  const std::vector<DerivativeTerm> terms{{1, {0, 0, 1}}, {number(0.3), {0, 1}}};
  const auto any = [&](const Tensor& v) {
    return tower::differential_operator(terms, {.normal_directions = {v.unsqueeze(0)}})(surface)(x);
  };
  expect_close(all, tower::vmap(lap)(vs).mean(), 1e-13);
  expect_close(tower::stochastic_biharmonic(surface, {vs}, 2)(x), tower::vmap(bi)(vs).mean(), 1e-13);
  expect_close(tower::differential_operator(terms, {.normal_directions = {vs}})(surface)(x),
               tower::vmap(any)(vs).mean(), 1e-13);
  // vᵀ H v, and a third of the fourth derivative along v.
  const Tensor v = vs[1];
  expect_close(lap(v), at::dot(v, at::mv(tower::hessian(surface)(x), v)), 1e-13);
  expect_close(bi(v), tower::derivatives_along(surface, x, v, 4)[4] / 3, 1e-13);
}

// ---- what is refused -----------------------------------------------------------------------------------------------

TEST(DifferentialOperator, RefusesWhatDoesNotFit) {
  using tower::ArgumentError;
  using tower::DerivativeError;
  const Tensor x = vec({1, 2});
  const auto f = [](const Tensor& a) { return a.exp(); };
  const auto of = [&](std::vector<DerivativeTerm> terms, tower::DifferentialOptions options = {}) {
    return [=] { tower::differential_operator(terms, options)(f)(x); };
  };
  const auto says = [](const std::string& message, const std::string& part) {
    EXPECT_TRUE(contains(message, part)) << message;
  };
  says(message_of<ArgumentError>(of({{1, {0}}, {1, {2}}})), "term 1 is by element 2, but there are 2 elements");
  says(message_of<ArgumentError>(of({{1, {-1}}})), "term 0 is by element -1");
  says(message_of<ArgumentError>(of({{1, Indices(13, 0)}})), "is of order 13; at most 12");
  says(message_of<ArgumentError>(of({{x, {0}}})), "coefficient of term 0 is Double [2], but must be a real number");
  says(message_of<ArgumentError>(of({{number(1).to(at::kComplexDouble), {0}}})), "must be a real number");
  says(message_of<ArgumentError>(of({{1, {0, 0}}}, {.chunk_size = 0})), "chunk_size is 0");
  says(message_of<ArgumentError>(of({{1, {0, 0}}}, {.normal_directions = {x}})), "tensor of directions 0");
  says(message_of<ArgumentError>(of({{1, {0, 0}}}, {.normal_directions = {at::ones({0, 2}, at::kDouble)}})),
       "there is no direction");
  says(message_of<ArgumentError>([&] {
         tower::stochastic_laplacian(f, {at::ones({0, 2}, at::kDouble)})(x);
       }),
       "stochastic_laplacian: there is no direction");
  says(message_of<ArgumentError>([&] { tower::stochastic_biharmonic(f, {})(x); }), "0 tensors of directions for 1");
  says(message_of<DerivativeError>([&] {
         tower::differential_operator({{1, {0}}})(f)(x.to(at::kComplexDouble));
       }),
       "Pass real and imaginary part");
  says(message_of<DerivativeError>([&] { tower::differential_operator({{1, {0}}})(f)(x.to(at::kLong)); }), "Long [2]");
  says(message_of<ArgumentError>([&] {
         tower::differential_operator({{1, {}}})([](const Tensor& a) { return a > 0; })(x);
       }),
       "output 0 is Bool [2], which a term without derivatives does not multiply");
  // What is not a number goes through as such.
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(tower::differential_operator({{nan, {0, 0}}})(f)(x).isnan().any().item<bool>());
}

}  // namespace
