// What users of other libraries asked for and did not get, each as a test of what they wanted.
#include "support/prelude.h"
#include "tower/function.h"
#include "tower/transforms.h"

namespace {

using tower::Context;
using tower::Function;

struct Square : Function<Square> {
  static Tensor forward(const Tensor& x) { return x * x; }
  static void setup_context(Context& ctx, const std::tuple<Tensor>& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
    ctx.save_for_forward({std::get<0>(inputs)});
  }
  static Tensor backward(Context& ctx, const Tensor& grad) { return 2 * ctx.saved_tensors()[0] * grad; }
  static Tensor jvp(Context& ctx, const Tensor& t) { return 2 * ctx.saved_tensors()[0] * t; }
};

// https://github.com/pytorch/pytorch/pull/89860
TEST(Wish, GradOfAFunctionWithItsOwnBackwardInsideAndOutsideOfVmap) {
  const auto f = [](const Tensor& x) { return Square::apply(x).sum(); };
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::grad(f)(x), 2 * x));
  EXPECT_TRUE(same(tower::vmap(tower::grad(f))(x), 2 * x));
  EXPECT_TRUE(same(tower::grad([&](const Tensor& x) { return tower::vmap(f)(x).sum(); })(x), 2 * x));
  EXPECT_TRUE(same(tower::vmap(tower::grad(tower::grad(f)))(x), at::full_like(x, 2)));
}

// https://github.com/pytorch/pytorch/issues/197867: [108, 0, 0] there
TEST(Wish, NestedJacfwdOfAFunctionWithAJvpGivesHigherDerivatives) {
  const auto fourth_power = [](const Tensor& x) { return Square::apply(Square::apply(x)); };
  const auto first = tower::jacfwd(fourth_power);
  const auto second = tower::jacfwd(first);
  const auto third = tower::jacfwd(second);
  EXPECT_TRUE(same(first(number(3)), number(108)));
  EXPECT_TRUE(same(second(number(3)), number(108)));
  EXPECT_TRUE(same(third(number(3)), number(72)));
}

// https://github.com/jax-ml/jax/issues/16049
TEST(Wish, TheHessianOfAFunctionWithACustomBackward) {
  const auto f = tower::custom_vjp(
      [](const Tensor& x, const Tensor& y) { return x.sin() * y; },
      [](const Tensor& x, const Tensor& y) { return std::pair(x.sin() * y, std::tuple(x.cos(), x.sin(), y)); },
      [](const auto& residuals, const Tensor& grad) {
        const auto& [cos, sin, y] = residuals;
        return std::tuple(cos * grad * y, sin * grad);
      });
  const Tensor expected = -2 * number(1).sin();
  EXPECT_TRUE(same(tower::jacrev(tower::jacrev(f))(number(1), number(2)), expected));
  EXPECT_TRUE(same(tower::hessian(f.linear_backward())(number(1), number(2)), expected));
  const std::string text = refusal<tower::DerivativeError>([&] { tower::hessian(f)(number(1), number(2)); });
  EXPECT_TRUE(says(text, {"linear_backward"})) << text;
}

// https://github.com/jax-ml/jax/issues/3996
TEST(Wish, BothACustomJvpAndACustomVjpForOneFunction) {
  const auto f = tower::custom([](const Tensor& x) { return x * 1; })
                     .jvp([](const Tensor&, const Tensor& t) { return 5 * t; })
                     .vjp([](const Tensor& x) { return std::pair(x * 1, std::tuple()); },
                          [](const std::tuple<>&, const Tensor& grad) { return 3 * grad; });
  EXPECT_TRUE(same(tower::jacfwd(f)(number(1)), number(5)));
  EXPECT_TRUE(same(tower::jacrev(f)(number(1)), number(3)));
}

// https://github.com/jax-ml/jax/issues/14150
TEST(Wish, ACustomVjpAndACustomVmapForOneFunction) {
  const auto add = tower::custom([](const Tensor& a, const Tensor& b) { return a + b; })
                       .vjp([](const Tensor& a, const Tensor& b) { return std::pair(a + b, std::tuple()); },
                            [](const std::tuple<>&, const Tensor& grad) { return std::tuple(7 * grad, grad); })
                       .vmap([](tower::VmapInfo, const tower::InDims&, const Tensor& a, const Tensor& b) {
                         return std::pair(a + b + 1000, 0);
                       });
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::vmap(add)(x, x), 2 * x + 1000));
  const auto [y, pullback] = tower::vjp(tower::vmap(add), x, x);
  EXPECT_TRUE(same(y, 2 * x + 1000));
  const auto [da, db] = pullback(x);
  EXPECT_TRUE(same(da, 7 * x));
  EXPECT_TRUE(same(db, x));
  EXPECT_TRUE(same(tower::vmap(tower::grad(add))(x, x), at::full_like(x, 7)));
}

// https://github.com/jax-ml/jax/issues/20889: the mask is an ordinary argument
TEST(Wish, ACustomJvpWithAMaskThatIsNotDifferentiatedUsedInALoop) {
  const auto masked = tower::custom_jvp(
      [](const Tensor& x, const Tensor& mask) { return x * mask; },
      [](const auto& primals, const auto& tangents) { return std::get<0>(tangents) * std::get<1>(primals); });
  const auto loss = [&](Tensor x, const Tensor& mask) {
    for (int step = 0; step < 2; ++step) x = masked(x, mask);
    return x.sum();
  };
  const Tensor x = vec({1, 2, 3}), mask = vec({1, 0, 1}).to(at::kBool);
  EXPECT_TRUE(same(tower::grad(loss)(x, mask), vec({1, 0, 1})));
  EXPECT_TRUE(same(tower::vmap(tower::grad(loss), {.in_dims = {std::nullopt, 0}})(x, at::stack({mask, ~mask})),
                   at::stack({vec({1, 0, 1}), vec({0, 1, 0})})));
}

// The program of https://github.com/ml-explore/mlx/pull/1246, mapped: the custom rule is lost there
TEST(Wish, TheGradientOfASumOverAMappedCustomFunction) {
  const auto mul =
      tower::custom_vjp([](const Tensor& a, const Tensor& b) { return 2 * a * b; },
                        [](const Tensor& a, const Tensor& b) { return std::pair(2 * a * b, std::tuple(a, b)); },
                        [](const auto& primals, const Tensor& grad) {
                          const auto& [a, b] = primals;
                          return std::tuple(100 * grad * b, 100 * grad * a);
                        });
  const auto loss = [&](const Tensor& a, const Tensor& b) { return tower::vmap(mul)(a, b).sum(); };
  const Tensor a = vec({1, 2, 3}), b = vec({4, 5, 6});
  const auto [da, db] = tower::grad<0, 1>(loss)(a, b);
  EXPECT_TRUE(same(da, 100 * b));
  EXPECT_TRUE(same(db, 100 * a));
  // An argument that all examples share collects the sum.
  const auto shared = [&](const Tensor& a, const Tensor& b) {
    return tower::vmap(mul, {.in_dims = {std::nullopt, 0}})(a, b).sum();
  };
  EXPECT_TRUE(same(tower::grad(shared)(number(2), b), number(1500)));
}

}  // namespace
