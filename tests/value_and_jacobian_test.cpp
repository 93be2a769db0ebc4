// value_and_jacobian: the function's own result beside the Jacobian that jacrev and jacfwd give.
#include "tower/value_and_jacobian.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/tower.h>

#include "support/compare.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using tower::Mode;

constexpr Mode kModes[] = {Mode::reverse, Mode::forward};

Tensor numbers(at::IntArrayRef sizes) { return at::rand(sizes, at::kDouble) + 0.5; }
Tensor f(const Tensor& w, const Tensor& x) { return at::mv(w, x.sin()) * x.sum(); }

void expect_same(const Tensor& found, const Tensor& expected) {
  EXPECT_TRUE(at::allclose(found, expected, 1e-12, 1e-12)) << found << expected;
}

TEST(ValueAndJacobian, AreThoseOfTheFunctionAndOfBothModes) {
  const Tensor w = numbers({3, 2}), x = numbers({2});
  const Tensor by_x = tower::jacrev<1>(f)(w, x), by_w = tower::jacfwd<0>(f)(w, x);
  for (const Mode mode : kModes) {
    const auto [value, jacobian] = tower::value_and_jacobian<1>(f, mode)(w, x);
    expect_same(value, f(w, x));
    expect_same(jacobian, by_x);
    const auto [again, both] = tower::value_and_jacobian<0, 1>(f, mode, {.chunk_size = 2})(w, x);
    expect_same(again, f(w, x));
    expect_same(std::get<0>(both), by_w);
    expect_same(std::get<1>(both), by_x);
  }
}

TEST(ValueAndJacobian, OfTreesAreTrees) {
  const auto g = [](const Tensor& x) { return std::pair(x.square(), std::vector<Tensor>{x.sum(), x.exp()}); };
  const Tensor x = numbers({3});
  for (const Mode mode : kModes) {
    const auto [value, jacobian] = tower::value_and_jacobian(g, mode)(x);
    expect_same(value.first, x.square());
    expect_same(value.second[1], x.exp());
    expect_same(jacobian.first, at::diag(2 * x));
    expect_same(jacobian.second[0], at::ones_like(x));
    expect_same(jacobian.second[1], at::diag(x.exp()));
  }
}

TEST(ValueAndJacobian, HandOutAux) {
  const auto g = [](const Tensor& x) { return std::pair(x.square(), std::pair(x.sum(), 3)); };
  const Tensor x = numbers({3});
  for (const Mode mode : kModes) {
    const auto [value, jacobian] = tower::value_and_jacobian(g, tower::has_aux, mode)(x);
    expect_same(value.first, x.square());
    expect_same(value.second.first, x.sum());
    EXPECT_EQ(value.second.second, 3);
    expect_same(jacobian, at::diag(2 * x));
  }
}

TEST(ValueAndJacobian, EvaluateTheFunctionOnce) {
  int calls = 0;
  const auto counted = [&](const Tensor& x) {
    ++calls;
    return x.sin();
  };
  for (const Mode mode : kModes) {
    calls = 0;
    tower::value_and_jacobian(counted, mode)(numbers({4}));
    EXPECT_EQ(calls, 1);
  }
}

// The value is no constant to the transforms around: both are mapped and differentiated.
TEST(ValueAndJacobian, AreMappedAndDifferentiated) {
  const Tensor w = numbers({3, 2}), xs = numbers({5, 2});
  for (const Mode mode : kModes) {
    const auto both = [&](const Tensor& x) {
      const auto [value, jacobian] = tower::value_and_jacobian<1>(f, mode)(w, x);
      return value.square().sum() + jacobian.sum();
    };
    const auto apart = [&](const Tensor& x) { return f(w, x).square().sum() + tower::jacrev<1>(f)(w, x).sum(); };
    expect_same(tower::vmap(tower::grad(both))(xs), tower::vmap(tower::grad(apart))(xs));
    expect_same(tower::jacfwd(tower::grad(both))(xs[0]), tower::hessian(apart)(xs[0]));
  }
}

TEST(ValueAndJacobian, OfListsHaveTheOutputsThenAux) {
  const td::FunctionWithAux g = [](const td::Tensors& in) {
    return std::pair(td::Tensors{in[0] * in[1], in[0].sum()}, td::Tensors{in[1].exp()});
  };
  const td::Tensors args{numbers({2}), numbers({2})};
  for (const Mode mode : kModes) {
    const auto [values, blocks] = td::value_and_jacobian(g, {1}, mode)(args);
    ASSERT_EQ(values.size(), 3);
    ASSERT_EQ(blocks.size(), 2);
    expect_same(values[0], args[0] * args[1]);
    expect_same(values[1], args[0].sum());
    expect_same(values[2], args[1].exp());
    expect_same(blocks[0], at::diag(args[0]));
    expect_same(blocks[1], at::zeros_like(args[1]));
    const td::Function alone = [](const td::Tensors& in) { return td::Tensors{in[0] * in[1]}; };
    expect_same(td::value_and_jacobian(alone, {0}, mode)(args).second[0], at::diag(args[1]));
  }
}

TEST(ValueAndJacobian, OfCompiledFunctionsAndCompiledAreTheSame) {
  const Tensor w = numbers({3, 2}), xs = numbers({40, 2});
  for (const Mode mode : kModes) {
    const auto both = tower::vmap(tower::value_and_jacobian<1>(f, mode), {.in_dims = {std::nullopt, 0}});
    const auto compiled = tower::compile(both);
    const auto expected = both(w, xs);
    for (int call = 0; call < 3; ++call) {
      const auto [value, jacobian] = compiled(w, xs);
      expect_same(value, expected.first);
      expect_same(jacobian, expected.second);
    }
  }
}

TEST(ValueAndJacobian, SayWhatJacobiansSay) {
  const auto whole = [](const Tensor& x) { return x.to(at::kLong); };
  for (const Mode mode : kModes) {
    try {
      tower::value_and_jacobian(whole, mode)(numbers({2}));
      FAIL();
    } catch (const tower::DerivativeError& e) {
      const std::string name = mode == Mode::reverse ? "jacrev: output 0" : "jacfwd: output 0";
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  }
}

}  // namespace
