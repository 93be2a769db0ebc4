// jet, derivatives_along and laplacian against closed forms, nested transforms and finite differences.
#include "tower/taylor.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/custom_op.h>
#include <tower/errors.h>
#include <tower/tower.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "support/expect.h"
#include "support/oracles.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using support::contains;
using support::expect_close;
using support::message_of;
using support::vec;
using Tensors = std::vector<Tensor>;
using Unary = std::function<Tensor(const Tensor&)>;

constexpr int kOrder = 8;

double factorial(int k) { return std::tgamma(k + 1.0); }

// ---- closed forms --------------------------------------------------------------------------------------------------

using Polynomial = std::vector<double>;

double value(const Polynomial& p, double x) {
  double sum = 0;
  for (size_t i = p.size(); i-- > 0;) sum = sum * x + p[i];
  return sum;
}
Polynomial times(const Polynomial& a, const Polynomial& b) {
  Polynomial c(a.size() + b.size() - 1);
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b.size(); ++j) c[i + j] += a[i] * b[j];
  return c;
}
Polynomial derivative(const Polynomial& a) {
  Polynomial c(std::max<size_t>(a.size(), 2) - 1);
  for (size_t i = 1; i < a.size(); ++i) c[i - 1] = static_cast<double>(i) * a[i];
  return c;
}

// The k-th derivative of y where y' = p(y), as a polynomial of y.
double by_equation(const Polynomial& p, int k, double y) {
  Polynomial at_k{0, 1};
  for (int i = 0; i < k; ++i) at_k = times(derivative(at_k), p);
  return value(at_k, y);
}

// (-1)ᵏ times Hermite's polynomial, so that the k-th derivative of exp(-x²) is this times exp(-x²).
double hermite(int k, double x) {
  Polynomial h{1};
  for (int i = 0; i < k; ++i) {
    Polynomial next = times(h, {0, -2});
    const Polynomial d = derivative(h);
    for (size_t j = 0; j < d.size(); ++j) next[j] += d[j];
    h = next;
  }
  return value(h, x);
}

struct ClosedForm {
  const char* name;
  Unary f;
  std::function<double(int k, double x)> derivative;
};

double falling(double p, int k) {
  double product = 1;
  for (int i = 0; i < k; ++i) product *= p - i;
  return product;
}
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double sigmoid_derivative(int k, double x) { return by_equation({0, 1, -1}, k, sigmoid(x)); }

std::vector<ClosedForm> closed_forms() {
  const auto power = [](double p) { return [p](int k, double x) { return falling(p, k) * std::pow(x, p - k); }; };
  return {
      {"exp", [](const Tensor& x) { return x.exp(); }, [](int, double x) { return std::exp(x); }},
      {"expm1", [](const Tensor& x) { return x.expm1(); },
       [](int k, double x) { return k ? std::exp(x) : std::expm1(x); }},
      {"sin", [](const Tensor& x) { return x.sin(); }, [](int k, double x) { return std::sin(x + k * M_PI_2); }},
      {"cos", [](const Tensor& x) { return x.cos(); }, [](int k, double x) { return std::cos(x + k * M_PI_2); }},
      {"sinh", [](const Tensor& x) { return x.sinh(); },
       [](int k, double x) { return k % 2 ? std::cosh(x) : std::sinh(x); }},
      {"log", [](const Tensor& x) { return x.log(); },
       [](int k, double x) { return k ? -factorial(k - 1) * std::pow(-x, -k) : std::log(x); }},
      {"1 / (1 - x)", [](const Tensor& x) { return 1 / (1 - x); },
       [](int k, double x) { return factorial(k) * std::pow(1 - x, -k - 1); }},
      {"x / (1 - x)", [](const Tensor& x) { return x / (1 - x); },
       [](int k, double x) { return factorial(k) * std::pow(1 - x, -k - 1) - (k == 0); }},
      {"reciprocal", [](const Tensor& x) { return x.reciprocal(); }, power(-1)},
      {"sqrt", [](const Tensor& x) { return x.sqrt(); }, power(0.5)},
      {"rsqrt", [](const Tensor& x) { return x.rsqrt(); }, power(-0.5)},
      {"pow 3", [](const Tensor& x) { return x.pow(3); }, power(3)},
      {"pow 2.5", [](const Tensor& x) { return x.pow(2.5); }, power(2.5)},
      {"pow -2", [](const Tensor& x) { return x.pow(-2); }, power(-2)},
      {"2^x", [](const Tensor& x) { return at::pow(2.0, x); },
       [](int k, double x) { return std::pow(M_LN2, k) * std::pow(2, x); }},
      {"tan", [](const Tensor& x) { return x.tan(); },
       [](int k, double x) {
         return by_equation({1, 0, 1}, k, std::tan(x));
       }},
      {"tanh", [](const Tensor& x) { return x.tanh(); },
       [](int k, double x) {
         return by_equation({1, 0, -1}, k, std::tanh(x));
       }},
      {"sigmoid", [](const Tensor& x) { return x.sigmoid(); }, sigmoid_derivative},
      {"softplus", [](const Tensor& x) { return at::softplus(x); },
       [](int k, double x) { return k ? sigmoid_derivative(k - 1, x) : std::log1p(std::exp(x)); }},
      {"silu", [](const Tensor& x) { return at::silu(x); },
       [](int k, double x) { return x * sigmoid_derivative(k, x) + (k ? k * sigmoid_derivative(k - 1, x) : 0); }},
      {"atan", [](const Tensor& x) { return x.atan(); },
       [](int k, double x) {
         const double y = std::atan(x);
         return k ? factorial(k - 1) * std::pow(std::cos(y), k) * std::sin(k * (y + M_PI_2)) : y;
       }},
      {"exp(-x²)", [](const Tensor& x) { return (-x * x).exp(); },
       [](int k, double x) { return hermite(k, x) * std::exp(-x * x); }},
      {"erf", [](const Tensor& x) { return x.erf(); },
       [](int k, double x) { return k ? M_2_SQRTPI * hermite(k - 1, x) * std::exp(-x * x) : std::erf(x); }},
      {"lgamma", [](const Tensor& x) { return x.lgamma(); },
       [](int k, double x) {
         return k ? at::polygamma(k - 1, at::full({}, x, at::kDouble)).item<double>() : std::lgamma(x);
       }},
  };
}

TEST(Jet, OfElementaryFunctionsHasTheirEightDerivatives) {
  const Tensor x = vec({0.3, 0.55, 0.8});
  for (const ClosedForm& form : closed_forms()) {
    const auto found = tower::derivatives_along(form.f, x, at::ones_like(x), kOrder);
    ASSERT_EQ(found.size(), kOrder + 1) << form.name;
    for (int k = 0; k <= kOrder; ++k) {
      Tensor expected = at::empty_like(x);
      for (int64_t i = 0; i < 3; ++i) expected[i] = form.derivative(k, x[i].item<double>());
      expect_close(found[static_cast<size_t>(k)], expected, 1e-11,
                   form.name + std::string(", order ") + std::to_string(k));
    }
  }
}

TEST(Jet, AlongACurveWithoutOddTermsHasNone) {
  // x + v t²/2: of f's derivatives the first has v t²/2, the second 3 v² t⁴/4!, the third 15 v³ t⁶/6!.
  const Tensor x = vec({0.3, 0.55, 0.8}), v = vec({1, -2, 0.5}), none;
  for (const ClosedForm& form : closed_forms()) {
    const auto found = tower::jet(form.f, x, {none, v, none, none, none, none}).second;
    double factor = 1;
    for (int k = 1; k <= 3; ++k) {
      factor *= 2 * k - 1;
      Tensor expected = at::empty_like(x);
      for (int64_t i = 0; i < 3; ++i) expected[i] = factor * form.derivative(k, x[i].item<double>());
      expect_close(found[static_cast<size_t>(2 * k - 1)], expected * v.pow(k), 1e-11, form.name);
      expect_close(found[static_cast<size_t>(2 * k - 2)], at::zeros_like(x), 0, form.name);
    }
  }
}

TEST(Jet, FollowsACurveAndComposesAsFaaDiBrunoSays) {
  // x(t) = 1 + 2t + 3t² + 4t³ is given by derivatives or by coefficients; exp(x(t)) by e·exp of the rest.
  const Tensor x = vec({1.0});
  const auto [y, ys] = tower::jet([](const Tensor& t) { return t.exp(); }, x, {vec({2}), vec({6}), vec({24})});
  expect_close(y, vec({M_E}), 1e-14);
  // With u = 2t + 3t² + 4t³: e^u = 1 + 2t + (3 + 2)t² + (4 + 6 + 8/6)t³.
  expect_close(ys[0], vec({M_E * 2}), 1e-14);
  expect_close(ys[1], vec({M_E * 5 * 2}), 1e-14);
  expect_close(ys[2], vec({M_E * (10 + 4.0 / 3) * 6}), 1e-14);
  const auto coefficients = tower::jet([](const Tensor& t) { return t.exp(); }, x, {vec({2}), vec({3}), vec({4})},
                                       {.scaling = tower::Scaling::coefficients})
                                .second;
  expect_close(coefficients[2], vec({M_E * (10 + 4.0 / 3)}), 1e-14);
}

// Of f along the series of eᵗ, that is of f(eᵗ), in both scalings.
void expect_along_exponential(const Unary& f, const std::function<double(int)>& derivative, double tolerance) {
  constexpr int kTerms = 12;
  const Tensor one = vec({1, 1});
  std::vector<Tensor> derivatives, coefficients;
  for (int k = 1; k <= kTerms; ++k) {
    derivatives.push_back(one);
    coefficients.push_back(one / factorial(k));
  }
  const auto by_derivatives = tower::jet(f, one, derivatives).second;
  const auto by_coefficients = tower::jet(f, one, coefficients, {.scaling = tower::Scaling::coefficients}).second;
  for (int k = 1; k <= kTerms; ++k) {
    const auto at = static_cast<size_t>(k - 1);
    const Tensor expected = derivative(k) * one;
    expect_close(by_derivatives[at], expected, tolerance, "derivative " + std::to_string(k));
    expect_close(by_coefficients[at] * factorial(k), expected, tolerance, "coefficient " + std::to_string(k));
  }
}

TEST(Jet, OfPowersOfAnExponentialIsThatOfExponentials) {
  for (const double p : {-3.0, -1.5, -1.0, -0.5, 0.5, 2.0, 2.5, 3.0})
    expect_along_exponential([p](const Tensor& x) { return x.pow(p); }, [p](int k) { return std::pow(p, k); }, 1e-9);
  expect_along_exponential([](const Tensor& x) { return x * x; }, [](int k) { return std::pow(2, k); }, 1e-12);
  expect_along_exponential([](const Tensor& x) { return 1 / x; }, [](int k) { return k % 2 ? -1 : 1; }, 1e-9);
  expect_along_exponential([](const Tensor& x) { return x.log(); }, [](int k) { return k == 1 ? 1 : 0; }, 1e-6);
  expect_along_exponential([](const Tensor& x) { return x.log().sin(); }, [](int k) { return std::sin(k * M_PI / 2); },
                           1e-6);
}

TEST(Jet, OfPowersAtZeroIsWhatNestingGives) {
  const Tensor zero = vec({0, 0}), v = vec({1, -2});
  for (const double p : {-1.5, -1.0, 0.5, 2.5}) {
    const auto f = [p](const Tensor& x) { return x.pow(p); };
    const auto slope = [&](const Tensor& x) { return tower::jvp(f, x, v).second; };
    const auto found = tower::derivatives_along(f, zero, v, 2);
    expect_close(found[1], slope(zero), 0, std::to_string(p));
    expect_close(found[2], tower::jvp(slope, zero, v).second, 0, std::to_string(p));
  }
}

TEST(Jet, OfInversesIsTheGeometricSeries) {
  // (1 + tA)⁻¹ = Σ (-tA)ᵏ.
  const Tensor a = at::tensor({0.1, 0.7, -0.4, 0.2}, at::kDouble).view({2, 2});
  const Tensor one = at::eye(2, at::kDouble);
  const auto found = tower::derivatives_along([](const Tensor& m) { return at::linalg_inv(m); }, one, a, 12,
                                              {.scaling = tower::Scaling::coefficients});
  Tensor power = one;
  for (size_t k = 1; k < found.size(); ++k) {
    power = -power.mm(a);
    expect_close(found[k], power, 1e-12, std::to_string(k));
  }
}

TEST(Jet, CostsTheSquareOfTheOrder) {
  const Tensor x = vec({0.3, 0.4, 0.5, 0.6});
  const auto calls = [&](const Unary& f, int64_t order) {
    const auto along = [&](const Tensor& a) {
      return tower::derivatives_along([&](const Tensor& t) { return f(t.sin()); }, a, x, order).back();
    };
    return static_cast<double>(tower::graph(along)(x).calls.size());
  };
  const std::vector<std::pair<std::string, Unary>> functions = {
      {"pow(-1.5)", [](const Tensor& t) { return t.pow(-1.5); }},
      {"pow(-3)", [](const Tensor& t) { return t.pow(-3); }},
      {"mm",
       [](const Tensor& t) {
         return t.view({2, 2}).mm(t.view({2, 2}));
       }},
      {"bmm",
       [](const Tensor& t) {
         return t.view({1, 2, 2}).bmm(t.view({1, 2, 2}));
       }},
      {"inv",
       [](const Tensor& t) {
         return at::linalg_inv(t.view({2, 2}));
       }},
      {"softmax", [](const Tensor& t) { return t.softmax(0); }}};
  for (const auto& [name, f] : functions) EXPECT_LT(calls(f, 12), 4.4 * calls(f, 6)) << name;
}

TEST(Jet, OfAConstantIsZeroAndOfAPolynomialEnds) {
  const Tensor x = vec({2, 3});
  const auto found = tower::derivatives_along([](const Tensor& a) { return a * a * a + 5; }, x, at::ones_like(x), 5);
  expect_close(found[3], vec({6, 6}), 0);
  expect_close(found[4], vec({0, 0}), 0);
  expect_close(found[5], vec({0, 0}), 0);
  const auto none = tower::derivatives_along([](const Tensor& a) { return at::ones_like(a); }, x, x, 2);
  expect_close(none[1], vec({0, 0}), 0);
}

TEST(Jet, IsWhatNestingGivesWhereDerivativesDoNotExist) {
  for (const Unary& f :
       std::vector<Unary>{[](const Tensor& x) { return x.abs(); }, [](const Tensor& x) { return x.relu(); },
                          [](const Tensor& x) { return x.sqrt(); }, [](const Tensor& x) { return x.pow(2.5); },
                          [](const Tensor& x) { return x.clamp(0, 1); }}) {
    const Tensor x = vec({0, 0.5, -0.5}), v = vec({1, 2, 3});
    const auto first = [&](const Tensor& a) { return tower::jvp(f, a, v).second; };
    const auto second = [&](const Tensor& a) { return tower::jvp(first, a, v).second; };
    const auto found = tower::derivatives_along(f, x, v, 3);
    expect_close(found[1], first(x), 1e-14);
    expect_close(found[2], second(x), 1e-14);
    expect_close(found[3], tower::jvp(second, x, v).second, 1e-14);
  }
}

// ---- nestings ------------------------------------------------------------------------------------------------------

Tensor program(const Tensor& x) {
  const Tensor w = at::arange(9, at::kDouble).view({3, 3}).sin();
  const Tensor h = at::mv(w, x).tanh();
  return (h * x.exp()).cumsum(0) / (1 + at::dot(x, x)) + at::softmax(x, 0);
}
Tensor loss(const Tensor& x) { return (program(x) * x).sum(); }

// d³/dt³ program(x + v t), by three nested jvp.
Tensor third(const Unary& f, const Tensor& x, const Tensor& v) {
  Unary g = f;
  for (int k = 0; k < 3; ++k) g = [g, v](const Tensor& a) { return tower::jvp(g, a, v).second; };
  return g(x);
}
Tensor third_by_jet(const Unary& f, const Tensor& x, const Tensor& v) {
  return tower::derivatives_along(f, x, v, 3)[3];
}

TEST(Jet, NestsWithTheOtherTransforms) {
  const Tensor x = vec({0.3, -0.4, 0.7}), v = vec({1, 0.5, -2}), u = vec({-0.2, 0.9, 0.4});
  const Tensor xs = at::stack({x, u, v}), vs = at::stack({v, x, u});
  const auto check = [&](const char* what, const std::function<Tensor(decltype(third)*)>& f) {
    expect_close(f(third_by_jet), f(third), 1e-10, what);
  };
  using Third = decltype(third)*;
  check("jet", [&](Third d) { return d(program, x, v); });
  check("vmap of jet", [&](Third d) {
    return tower::vmap([d](const Tensor& a, const Tensor& b) { return d(program, a, b); })(xs, vs);
  });
  check("jet of vmap", [&](Third d) { return d([](const Tensor& a) { return tower::vmap(program)(a); }, xs, vs); });
  check("grad of jet", [&](Third d) { return tower::grad([&](const Tensor& a) { return d(loss, a, v); })(x); });
  check("jet of grad", [&](Third d) { return d([](const Tensor& a) { return tower::grad(loss)(a); }, x, v); });
  check("jvp of jet",
        [&](Third d) { return tower::jvp([&](const Tensor& a) { return d(program, a, v); }, x, u).second; });
  check("jet of jvp",
        [&](Third d) { return d([&](const Tensor& a) { return tower::jvp(program, a, u).second; }, x, v); });
  check("jet of jet", [&](Third d) { return d([&](const Tensor& a) { return d(program, a, u); }, x, v); });
  check("vmap of grad of jet", [&](Third d) {
    return tower::vmap([d](const Tensor& a, const Tensor& b) {
      return tower::grad([&](const Tensor& c) { return d(loss, c, b); })(a);
    })(xs, vs);
  });
  check("jet of vmap of grad",
        [&](Third d) { return d([](const Tensor& a) { return tower::vmap(tower::grad(loss))(a); }, xs, vs); });
  check("grad of vmap of jet", [&](Third d) {
    return tower::grad([&](const Tensor& a) {
      return tower::vmap([d](const Tensor& c, const Tensor& b) { return d(loss, c, b); })(a, vs).sum();
    })(xs);
  });
  check("jet of loops, branches and solves", [&](Third d) {
    const auto f = [](const Tensor& a) {
      const Tensor matrix = at::outer(a, a) + 3 * at::eye(3, at::kDouble);
      const Tensor looped = tower::fori_loop(
          0, 3, [](int64_t, const Tensor& s) { return s.sin() + s; }, a);
      return tower::cond(
          a.sum() > 0, [](const Tensor& s) { return s.exp(); }, [](const Tensor& s) { return s.cos(); },
          at::linalg_solve(matrix, looped));
    };
    return d(f, x, v);
  });
}

TEST(Jet, OfTreesAndOfSeveralArguments) {
  const auto f = [](const std::vector<Tensor>& a, const Tensor& b) {
    return std::pair(a[0] * a[1] * b, std::vector<Tensor>{b.exp()});
  };
  const std::tuple<std::vector<Tensor>, Tensor> x{{vec({2}), vec({3})}, vec({0})};
  const std::tuple<std::vector<Tensor>, Tensor> v{{vec({1}), vec({1})}, vec({1})};
  const auto found = tower::derivatives_along(f, x, v, 3);
  // (2 + t)(3 + t)t = 6t + 5t² + t³
  expect_close(found[1].first, vec({6}), 1e-14);
  expect_close(found[2].first, vec({10}), 1e-14);
  expect_close(found[3].first, vec({6}), 1e-14);
  expect_close(found[3].second[0], vec({1}), 1e-14);
  const std::tuple<std::vector<Tensor>, Tensor> zero{{Tensor(), Tensor()}, Tensor()};
  expect_close(tower::jet(f, x, {zero, v}).second[1].first, vec({6}), 1e-14);  // along t²/2
}

TEST(Jet, SeesWritesInsideTheFunction) {
  const auto f = [](const Tensor& x) {
    Tensor y = at::zeros({2, 2}, at::kDouble);
    y[0] = x.exp();
    y.select(1, 1).mul_(x);
    y[1].add_(x * x);
    return y;
  };
  const Tensor x = vec({0.4, 0.7}), v = vec({1, -1});
  const auto functional = [](const Tensor& a) {
    const Tensor one = vec({1, 0});
    return at::stack({a.exp() * (one + a[0] * vec({0, 1})), a * a});
  };
  for (int k = 0; k <= 3; ++k)
    expect_close(tower::derivatives_along(f, x, v, 3)[static_cast<size_t>(k)],
                 tower::derivatives_along(functional, x, v, 3)[static_cast<size_t>(k)], 1e-14);
  Tensor argument = x.clone();
  tower::derivatives_along([](Tensor a) { return a.mul_(2); }, argument, v, 2);
  expect_close(argument, 2 * x, 0);
}

TEST(Jet, ShowsTheFirstDerivativeWhereATensorIsPrinted) {
  std::string text;
  const auto f = [&](const Tensor& x) { return text = tower::to_string(x), x.exp(); };
  tower::derivatives_along(f, at::full({}, 2.0, at::kDouble), at::full({}, 5.0, at::kDouble), 2);
  EXPECT_TRUE(contains(text, "value=2") && contains(text, "tangent=5")) << text;
}

// ---- laplacian -----------------------------------------------------------------------------------------------------

Tensor trace_of_hessian(const Unary& f, const Tensor& x) {
  const Tensor h = tower::hessian(f)(x);
  const Tensor y = f(x);
  return h.reshape({y.numel(), x.numel(), x.numel()}).diagonal(0, 1, 2).sum(-1).view(y.sizes());
}

TEST(Laplacian, OfHarmonicFunctionsIsZero) {
  const Tensor p = vec({0.3, -0.8, 0.5});
  for (const Unary& f : std::vector<Unary>{[](const Tensor& x) { return x[0] * x[0] - x[1] * x[1]; },
                                           [](const Tensor& x) { return x[0].exp() * x[1].sin(); },
                                           [](const Tensor& x) { return 1 / at::dot(x, x).sqrt(); },
                                           [](const Tensor& x) { return x[0].pow(3) - 3 * x[0] * x[1].square(); }})
    expect_close(tower::laplacian(f)(p).second, at::zeros({}, at::kDouble), 1e-13);
}

TEST(Laplacian, OfGaussiansIsTheClosedForm) {
  for (const int64_t n : {0, 1, 4}) {
    const Tensor x = at::linspace(-0.5, 0.8, n, at::kDouble);
    const auto [value, sum] = tower::laplacian([](const Tensor& a) { return (-(a * a).sum()).exp(); })(x);
    const Tensor square = (x * x).sum();
    expect_close(value, (-square).exp(), 1e-14);
    expect_close(sum, (4 * square - 2 * static_cast<double>(n)) * (-square).exp(), 1e-14);
  }
}

Tensor perceptron(const Tensor& x) {
  const Tensor w1 = at::linspace(-1, 1, 15, at::kDouble).view({5, 3}).sin();
  const Tensor w2 = at::linspace(-1, 2, 10, at::kDouble).view({2, 5}).cos();
  return at::linear(at::tanh(at::linear(x, w1, at::ones({5}, at::kDouble))), w2);
}

TEST(Laplacian, IsTheTraceOfTheHessian) {
  const Tensor x = vec({0.3, -0.4, 0.7});
  for (const Unary& f :
       std::vector<Unary>{perceptron, program,
                          [](const Tensor& a) { return at::linalg_inv(at::outer(a, a) + 2 * at::eye(3, at::kDouble)); },
                          [](const Tensor& a) { return at::logsumexp(a, 0) * std::get<0>(a.sort()).prod(); },
                          [](const Tensor& a) { return at::linalg_vector_norm(a) + at::gelu(a); },
                          [](const Tensor& a) { return a + 1; }, [](const Tensor& a) { return at::ones_like(a); },
                          [](const Tensor& a) { return at::where(a > 0, a.exp(), a.sin()); }}) {
    const auto [value, sum] = tower::laplacian(f)(x);
    expect_close(value, f(x), 1e-14);
    expect_close(sum, trace_of_hessian(f, x), 1e-12);
    expect_close(tower::laplacian(f, {.chunk_size = 2})(x).second, sum, 1e-12);
  }
}

TEST(Laplacian, IsAlongTheDirectionsAndByTheArgumentsThatAreNamed) {
  const Tensor x = vec({0.3, -0.4, 0.7}), y = vec({0.2, 0.1});
  const Tensor factor = at::linspace(0, 1, 6, at::kDouble).view({2, 3});
  const Tensor h = tower::hessian(loss)(x);
  expect_close(tower::laplacian(loss, {.directions = {factor}})(x).second, (at::mm(factor.t(), factor) * h).sum(),
               1e-12);
  const auto f = [](const Tensor& a, const Tensor& b) { return loss(a) * at::dot(b, b).exp(); };
  const double e = at::dot(y, y).exp().item<double>(), square = at::dot(y, y).item<double>();
  const Tensor by_x = h.trace() * e, by_y = loss(x) * e * (4 * square + 4);
  expect_close(tower::laplacian(f)(x, y).second, by_x, 1e-12);
  expect_close(tower::laplacian<1>(f)(x, y).second, by_y, 1e-12);
  expect_close((tower::laplacian<0, 1>(f)(x, y).second), by_x + by_y, 1e-12);
}

TEST(Laplacian, NestsWithTheOtherTransforms) {
  const Tensor xs = at::linspace(-1, 1, 12, at::kDouble).view({4, 3}).sin();
  const auto sum = [](const Tensor& x) { return tower::laplacian(perceptron)(x).second.sum(); };
  const auto expected = [](const Tensor& x) { return trace_of_hessian(perceptron, x).sum(); };
  expect_close(tower::vmap(sum)(xs), tower::vmap(expected)(xs), 1e-12);
  expect_close(tower::vmap(tower::grad(sum))(xs), tower::vmap(tower::grad(expected))(xs), 1e-12);
  const Tensor x = xs[1], v = xs[2];
  const auto f = [&](const support::Tensors& a) { return support::Tensors{sum(a[0])}; };
  expect_close(at::dot(tower::grad(sum)(x), v), support::directional_derivative(f, {x}, {v})[0], 1e-9);
  expect_close(tower::jvp(sum, x, v).second, tower::jvp(expected, x, v).second, 1e-12);
  expect_close(tower::derivatives_along(sum, x, v, 3)[3], third(expected, x, v), 1e-10);
  // Δ exp(-|x|²) = (4r² - 2n) exp(-|x|²), and of that once more, in one dimension: Hermite's fourth.
  const auto gauss = [](const Tensor& a) { return (-(a * a).sum()).exp(); };
  const auto twice = tower::laplacian([&](const Tensor& a) { return tower::laplacian(gauss)(a).second; });
  expect_close(twice(vec({0.4})).second, at::full({}, hermite(4, 0.4) * std::exp(-0.16), at::kDouble), 1e-13);
  // Rows, their Laplacians inside of the function.
  const auto rows = [](const Tensor& a) { return tower::vmap(perceptron)(a).sum(); };
  expect_close(tower::laplacian(rows)(xs).second, tower::vmap(expected)(xs).sum(), 1e-12);
}

// ---- what is refused -----------------------------------------------------------------------------------------------

TEST(Taylor, RefusesWhatDoesNotFit) {
  const auto f = [](const Tensor& x) { return x.exp(); };
  const Tensor x = vec({1, 2});
  using tower::ArgumentError;
  using tower::DerivativeError;
  const auto along = [&](const Tensor& at, const Tensor& v, int64_t order) {
    return [=] { tower::derivatives_along(f, at, v, order); };
  };
  const auto says = [](const std::string& message, const std::string& part) {
    EXPECT_TRUE(contains(message, part)) << message;
  };
  says(message_of<ArgumentError>(along(x, x, 0)), "jet: the series has no term");
  says(message_of<ArgumentError>(along(x, vec({1}), 2)), "term 0 of primal 0 is Double [1], expected the shape of");
  says(message_of<ArgumentError>(along(x, x.to(at::kFloat), 2)), "expected the dtype of Double [2]");
  says(message_of<DerivativeError>(along(x.to(at::kLong), x.to(at::kLong), 2)), "primal 0 is Long [2]");
  says(message_of<ArgumentError>([&] { tower::jet(f, x, {x, vec({1, 2, 3})}); }), "term 1 of primal 0");
  says(message_of<ArgumentError>([&] {
         td::jet([](const Tensors& a) { return a; }, {x}, {{x, x}});
       }),
       "1 primals, but 2 tensors in term 0");
  says(message_of<ArgumentError>([&] { td::jet([](const Tensors& a) { return a; }, {Tensor()}, {{Tensor()}}); }),
       "primal 0 is an undefined tensor");
  says(message_of<DerivativeError>([&] { tower::laplacian(f)(x.to(at::kLong)); }), "is Long [2]");
  says(message_of<DerivativeError>([&] { tower::laplacian(f)(x.to(at::kComplexDouble)); }),
       "Pass real and imaginary part");
  says(message_of<ArgumentError>([&] { tower::laplacian(f, {.chunk_size = 0})(x); }), "chunk_size is 0");
  says(message_of<ArgumentError>([&] { tower::laplacian(f, {.directions = {x}})(x); }), "tensor of directions 0");
  says(message_of<ArgumentError>([&] {
         tower::laplacian(f, {.directions = {x, x}})(x);
       }),
       "2 tensors of directions for 1");
  says(message_of<tower::UnsupportedError>(
           [&] { tower::laplacian([](const Tensor& a) { return at::rrelu(a, 0.1, 0.3, true); })(-x); }),
       "Draw outside");
}

TEST(Taylor, GivesDerivativesOfIntegersAsZeros) {
  const auto [value, series] = td::jet(
      [](const Tensors& a) {
        return Tensors{a[0] > 0, a[0].round()};
      },
      {vec({1})}, {{vec({1})}});
  EXPECT_EQ(series[0][0].scalar_type(), at::kBool);
  expect_close(series[0][1], vec({0}), 0);
}

}  // namespace
