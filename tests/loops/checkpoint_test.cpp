// checkpoint: what it keeps, draws and captures.
#include "tower/checkpoint.h"

#include <torch/csrc/autograd/autograd.h>

#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/transforms.h"

namespace {

TEST(Checkpoint, AFunctionIsEvaluatedAgainForEachPullbackAndNotBefore) {
  int evaluated = 0;
  const auto f = [&](const Tensor& x) { return ++evaluated, x.sin() * x; };
  const Tensor x = number(0.5);
  EXPECT_TRUE(same(tower::checkpoint(f)(x), f(x)));
  EXPECT_EQ(evaluated, 2);
  const auto [y, pullback] = tower::vjp(tower::checkpoint(f), x);
  EXPECT_EQ(evaluated, 3);
  const Tensor expected = x.sin() + x * x.cos();
  EXPECT_TRUE(same(pullback(number(1)), expected));
  EXPECT_TRUE(same(pullback(number(2)), 2 * expected));
  EXPECT_EQ(evaluated, 5);
}

TEST(Checkpoint, ForwardModeAloneEvaluatesItOnce) {
  int evaluated = 0;
  const auto f = [&](const Tensor& x) { return ++evaluated, x.sin() * x; };
  tower::jvp(tower::checkpoint(f), number(0.5), number(1));
  tower::vmap(tower::checkpoint(f))(vec({1, 2}));
  EXPECT_EQ(evaluated, 2);
}

TEST(Checkpoint, CompositionsAreThoseOfTheFunction) {
  const auto f = [](const Tensors& in) {
    const Tensor w = in[1];
    return td::checkpoint(
        [w](const Tensors& x) {
          const Tensor h = (x[0] * w).exp();
          return Tensors{h.sin() * h, x[0] * w};
        },
        {in[0]});
  };
  EXPECT_EQ(disagreement(f, {waves({3, 2}), waves({3, 2}, 0.8)}, {.libtorch = false}), "");
}

TEST(Checkpoint, ArgumentsAndResultsAreTrees) {
  using Named = std::map<std::string, Tensor>;
  const auto block = [](const Named& p, const Tensor& x, double scale) {
    return std::pair((p.at("w") * x).tanh() * scale, scale);
  };
  const auto loss = [&](const Named& p, const Tensor& x) {
    auto [h, scale] = tower::checkpoint(block)(p, x, 3.0);
    return h.sum() * scale;
  };
  const auto plain = [&](const Named& p, const Tensor& x) {
    auto [h, scale] = block(p, x, 3.0);
    return h.sum() * scale;
  };
  const Named p{{"w", waves({3})}};
  EXPECT_TRUE(same(tower::grad(loss)(p, waves({3}, 1)).at("w"), tower::grad(plain)(p, waves({3}, 1)).at("w")));
}

TEST(Checkpoint, LibTorchsBackwardEvaluatesItAgain) {
  int evaluated = 0;
  const Tensor x = vec({0.5, 2}).requires_grad_();
  const Tensor y = tower::checkpoint([&](const Tensor& v) { return ++evaluated, v.sin().square(); })(x).sum();
  EXPECT_EQ(evaluated, 1);
  y.backward();
  EXPECT_EQ(evaluated, 2);
  EXPECT_TRUE(same(x.grad(), (2 * x).sin().detach()));
}

TEST(Checkpoint, DropoutIsDrawnAsItWas) {
  const Tensor x = waves({50});
  for (const auto randomness : {tower::Randomness::different, tower::Randomness::same}) {
    const auto f = [&](const Tensor& v) {
      return tower::vmap(tower::checkpoint([](const Tensor& u) {
                           return tower::checkpoint([](const Tensor& t) { return t * at::rand_like(t); })(u) *
                                  at::rand_like(u);
                         }),
                         {.randomness = randomness})(v);
    };
    const auto [y, pullback] = tower::vjp(f, x);
    at::rand({5});
    EXPECT_TRUE(same(pullback(at::ones_like(y)), y / x));
    EXPECT_TRUE(same(pullback(at::ones_like(y)), y / x));
  }
}

TEST(Checkpoint, DrawsOfAFunctionThatRunsExampleByExampleAreRefused) {
  const auto f = [](const Tensor& x) { return x * x.item<double>() * at::rand({}, at::kDouble); };
  const auto g = [&](const Tensor& x) {
    return tower::vmap(tower::checkpoint(f), {.randomness = tower::Randomness::different})(x).sum();
  };
  EXPECT_TRUE(says(refusal<tower::Error>([&] {
                     tower::grad(g)(vec({1, 2}));
                   }),
                   {"checkpoint", "random", "each example"}));
}

TEST(Checkpoint, WritesToWhatItDidNotMakeAreRefused) {
  const auto to_captured = [](const Tensor& x) {
    const Tensor y = x * 1;
    return tower::checkpoint([=](const Tensor& v) { return (y.mul_(2) * v).sin(); })(x);
  };
  const auto to_argument = [](const Tensor& x) {
    return tower::checkpoint([](const Tensor& v) { return v.view({1}).mul_(2).sin()[0]; })(x * 1);
  };
  const auto check = [](const auto& f) {
    const std::initializer_list<const char*> words{"checkpoint: the function", "writes", "evaluated again", "Clone"};
    EXPECT_TRUE(says(refusal<tower::MutationError>([&] { tower::grad(f)(number(2)); }), words));
    EXPECT_TRUE(says(refusal<tower::MutationError>([&] { tower::vmap(tower::grad(f))(vec({1, 2})); }), words));
    EXPECT_TRUE(says(refusal<tower::MutationError>([&] { tower::grad(tower::grad(f))(number(2)); }), words));
  };
  check(to_captured);
  check(to_argument);
  const auto to_its_own = [](const Tensor& x) {
    return tower::checkpoint([](const Tensor& v) { return at::ones({}, v.options()).mul_(v).mul_(v); })(x);
  };
  EXPECT_TRUE(same(tower::grad(to_its_own)(number(3)), number(6)));
}

TEST(Checkpoint, LibTorchFollowsWhatItCapturedThroughATransform) {
  const Tensor w = number(3).requires_grad_(), x = number(0.5);
  const auto f = [=](const Tensor& v) { return (v * w).sin() * v; };
  const auto of_w = [&](const auto& g) { return torch::autograd::grad({tower::grad(g)(x)}, {w})[0]; };
  EXPECT_TRUE(same(of_w(tower::checkpoint(f)), of_w(f)));
  const auto of_batch = [&](const auto& g) {
    return torch::autograd::grad(
        {tower::grad([&](const Tensor& v) { return tower::vmap(g)(v).sum(); })(vec({1, 2})).sum()}, {w})[0];
  };
  EXPECT_TRUE(same(of_batch(tower::checkpoint(f)), of_batch(f)));
}

}  // namespace
