// biharmonic against closed forms, traces of nested Hessians and finite differences; what it carries.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/errors.h>
#include <tower/graph.h>
#include <tower/taylor.h>
#include <tower/tower.h>

#include <cmath>
#include <functional>

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

Tensor perceptron(const Tensor& x) {
  const Tensor w1 = at::linspace(-1, 1, 15, at::kDouble).view({5, 3}).sin();
  const Tensor w2 = at::linspace(-1, 2, 10, at::kDouble).view({2, 5}).cos();
  return at::linear(at::tanh(at::linear(x, w1, at::ones({5}, at::kDouble))), w2);
}
Tensor program(const Tensor& x) {
  const Tensor h = at::mv(at::arange(9, at::kDouble).view({3, 3}).sin(), x).tanh();
  return (h * x.exp()).cumsum(0) / (1 + at::dot(x, x)) + at::softmax(x, 0);
}
Tensor loss(const Tensor& x) { return (program(x) * x).sum(); }

Tensor trace_of_hessian(const Unary& f, const Tensor& x) {
  const Tensor y = f(x);
  return tower::hessian(f)(x).reshape({y.numel(), x.numel(), x.numel()}).diagonal(0, 1, 2).sum(-1).view(y.sizes());
}

TEST(Biharmonic, IsTheClosedFormAndTheTraceOfFourthDerivatives) {
  // r⁴ in three dimensions: Δ r⁴ = 20 r², and Δ 20 r² = 120.
  const Tensor x = vec({0.3, -0.4, 0.7});
  const auto fourth = [](const Tensor& a) { return at::dot(a, a).square(); };
  expect_close(tower::biharmonic(fourth)(x), at::full({}, 120.0, at::kDouble), 1e-13);
  expect_close(td::biharmonic([&](const Tensors& a) { return Tensors{fourth(a[0])}; }, {0})({x})[0],
               at::full({}, 120.0, at::kDouble), 1e-13);
}

TEST(Biharmonic, OfEveryKindOfRuleIsTheTraceOfFourthDerivatives) {
  const Tensor xs = at::stack({vec({0.3, -0.4, 0.7}), vec({0.2, 0.9, -0.5})}), x = xs[0];
  for (const Unary& f : std::vector<Unary>{
           perceptron, program,
           // Products of two that are followed, also of matrices in either place, and of what has no first derivative.
           [](const Tensor& a) { return a.sin() * a.flip({0}).exp(); },
           [](const Tensor& a) { return at::mm(at::outer(a, a).sin(), at::outer(a, a.flip({0}) * 2).cos()); },
           [](const Tensor& a) { return (a.square() + a * a.flip({0})).square() * a.select(0, 1); },
           // By two Laplacians of the one call: several arguments, several results, lists.
           [](const Tensor& a) { return at::linalg_inv(at::outer(a, a) + 2 * at::eye(3, at::kDouble)); },
           [](const Tensor& a) { return at::logsumexp(a, 0) * std::get<0>(a.sort()).prod(); },
           [](const Tensor& a) { return at::linalg_vector_norm(a) + at::gelu(a); },
           [](const Tensor& a) { return a[0].exp() / (a[1] * a[2]).cos() + at::atan2(a, a.flip({0}) * a + 1); },
           [](const Tensor& a) {
             return at::cat({a.exp(), a[1].sin().unsqueeze(0), at::softmax(2 * a, 0) * a});
           },
           // Where it is less, or none.
           [](const Tensor& a) { return a + 1; }, [](const Tensor& a) { return a.square(); },
           [](const Tensor& a) { return at::ones_like(a); },
           [](const Tensor& a) { return at::where(a > 0, a.exp(), a.sin()); }}) {
    const auto trace = [&](const Tensor& a) { return trace_of_hessian(f, a); };
    const auto expected = [&](const Tensor& a) { return trace_of_hessian(trace, a); };
    const auto found = tower::biharmonic(f);
    expect_close(found(x), expected(x), 1e-10);
    const Tensor all = at::stack({expected(xs[0]), expected(xs[1])});
    expect_close(tower::vmap(found)(xs), all, 1e-10);
    const auto compiled = tower::compile(tower::vmap(found));
    for (int call = 0; call < 2; ++call) expect_close(compiled(xs), all, 1e-10);
  }
}

TEST(Biharmonic, NestsWithTheOtherTransforms) {
  const Tensor x = vec({0.3, -0.4, 0.7}), v = vec({0.5, 0.1, -0.2});
  const auto sum = [](const Tensor& a) { return tower::biharmonic(loss)(a); };
  const auto f = [&](const support::Tensors& a) { return support::Tensors{sum(a[0])}; };
  const Tensor along = support::directional_derivative(f, {x}, {v})[0];
  expect_close(at::dot(tower::grad(sum)(x), v), along, 1e-7);
  expect_close(tower::jvp(sum, x, v).second, along, 1e-7);
  expect_close(tower::derivatives_along(sum, x, v, 1)[1], along, 1e-7);
  // In one dimension the sixth derivative, Hermite's polynomial.
  const auto gauss = [](const Tensor& a) { return (-(a * a).sum()).exp(); };
  const double sixth = (64 * std::pow(0.4, 6) - 480 * std::pow(0.4, 4) + 720 * 0.16 - 120) * std::exp(-0.16);
  expect_close(tower::laplacian(tower::biharmonic(gauss))(vec({0.4})).second, at::full({}, sixth, at::kDouble), 1e-11);
  const auto of_laplacian = tower::biharmonic([&](const Tensor& a) { return tower::laplacian(gauss)(a).second; });
  expect_close(of_laplacian(vec({0.4})), at::full({}, sixth, at::kDouble), 1e-11);
}

TEST(Biharmonic, IsByTheArgumentsThatAreNamedAndOfTrees) {
  const Tensor x = vec({0.3, -0.4}), y = vec({0.2});
  // ∂ₓ⁴ + 2 ∂ₓ²∂ᵧ² + ∂ᵧ⁴ of exp(a · x) is (a · a)² times it.
  const auto f = [](const Tensor& a, const Tensor& b) {
    const Tensor e = (a.sum() * 2 + b.sum() * 3).exp();
    return std::pair(e, a * b);
  };
  const Tensor e = f(x, y).first;
  expect_close(tower::biharmonic(f)(x, y).first, 64 * e, 1e-12);
  expect_close(tower::biharmonic<1>(f)(x, y).first, 81 * e, 1e-12);
  expect_close((tower::biharmonic<0, 1>(f)(x, y).first), 289 * e, 1e-12);
  expect_close((tower::biharmonic<0, 1>(f)(x, y).second), at::zeros({2}, at::kDouble), 1e-12);
  const auto exponential = [](const Tensor& a) { return a.sum().exp(); };
  expect_close(tower::biharmonic(exponential)(at::zeros({0}, at::kDouble)), at::zeros({}, at::kDouble), 1e-14);
  EXPECT_TRUE(
      contains(message_of<tower::DerivativeError>([&] { tower::biharmonic(exponential)(at::ones({2}, at::kLong)); }),
               "biharmonic"));
}

// Rows that a layer multiplies: the value, five first derivatives, fifteen second, five of the Laplacian, one sum.
TEST(Biharmonic, CarriesEachMixedDerivativeOnce) {
  const Tensor w1 = at::linspace(-1, 1, 35, at::kDouble).view({5, 7}),
               w2 = at::linspace(0, 1, 77, at::kDouble).view({7, 11});
  const auto f = [&](const Tensor& x) { return x.unsqueeze(0).mm(w1).tanh().mm(w2).tanh().sum(); };
  const tower::Graph graph = tower::graph(tower::biharmonic(f))(at::linspace(0, 1, 5, at::kDouble));
  int64_t rows = 0;
  for (const auto& call : graph.calls)
    for (const int64_t id : call.results)
      if (call.op == "aten::mm" && graph.values[static_cast<size_t>(id)].sizes.back() == 11)
        rows += c10::multiply_integers(graph.values[static_cast<size_t>(id)].sizes) / 11;
  EXPECT_EQ(rows, 27);
}

}  // namespace
