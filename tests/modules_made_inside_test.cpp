// Modules and parameters that a transformed function makes itself: constants, though they require grad.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "support/compositions.h"
#include "support/expect.h"
#include "support/functions.h"
#include "support/intact.h"
#include "tower/tower.h"

namespace {

namespace nn = torch::nn;
using at::Tensor;
using support::message_of, support::numbers, support::same, support::says, support::vec;

// A linear layer with known weights, made anew in every call.
Tensor through_new_layer(const Tensor& x) {
  nn::Linear layer(3, 2);
  layer->to(at::kDouble);
  EXPECT_TRUE(layer->weight.requires_grad());
  {
    const c10::NoGradGuard no_grad;
    layer->weight.copy_(numbers({2, 3}));
    nn::init::ones_(layer->bias);
  }
  EXPECT_TRUE(layer->weight.requires_grad());
  return layer->forward(x).square().sum();
}

Tensor by_hand(const Tensor& x) { return (numbers({2, 3}).mv(x) + 1).square().sum(); }

TEST(ModulesMadeInside, AreConstantsOfEveryTransform) {
  const Tensor x = vec({0.3, -1, 2}), u = vec({1, 2, -1}), batch = at::stack({x, u, x - u});
  const auto mapped = [&](auto f) { return tower::vmap(f, {.randomness = tower::Randomness::same})(batch); };
  EXPECT_TRUE(same(mapped(through_new_layer), mapped(by_hand)));
  EXPECT_TRUE(same(tower::grad(through_new_layer)(x), tower::grad(by_hand)(x)));
  EXPECT_TRUE(same(tower::jvp(through_new_layer, x, u).second, tower::jvp(by_hand, x, u).second));
  EXPECT_TRUE(same(mapped(tower::grad(through_new_layer)), mapped(tower::grad(by_hand))));
  support::expect_intact();
}

TEST(ModulesMadeInside, InitializeThemselvesWithoutLosingRequiresGrad) {
  const auto f = [](const Tensor& x) {
    nn::Sequential net(nn::Linear(3, 4), nn::LayerNorm(nn::LayerNormOptions({4})), nn::Linear(4, 1));
    for (const Tensor& p : net->parameters()) EXPECT_TRUE(p.requires_grad() && p.is_leaf());
    return net->forward(x.to(at::kFloat)).sum();
  };
  const Tensor x = vec({1, 2, 3});
  EXPECT_EQ(tower::vmap(f, {.randomness = tower::Randomness::same})(at::stack({x, x})).sizes(), (at::IntArrayRef{2}));
  EXPECT_EQ(tower::grad(f)(x).sizes(), (at::IntArrayRef{3}));
  EXPECT_EQ(tower::jvp(f, x, x).second.sizes(), at::IntArrayRef{});
}

TEST(RequiringGrad, OfAConstantIsAllowedAndMeansNothingToTheLevels) {
  const auto f = [](const Tensor& x) {
    const Tensor made = at::ones({3}, at::kDouble).requires_grad_(), also = (made.detach() * 2).set_requires_grad(true);
    EXPECT_TRUE(made.requires_grad() && also.requires_grad());
    return (made * also * x * x).sum();
  };
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(tower::grad(f)(x), 4 * x));
  EXPECT_TRUE(same(tower::vmap(f)(at::stack({x, x})), vec({28, 28})));
  EXPECT_TRUE(same(tower::jvp(f, x, x).second, at::full({}, 56.0, at::kDouble)));
}

TEST(RequiringGrad, AndThenAskingForItsGradientIsRefused) {
  const auto f = [](const Tensor& x) {
    const Tensor w = at::ones({3}, at::kDouble).requires_grad_();
    const Tensor y = (w * x).sum();
    y.backward();
    return y;
  };
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(support::contains(message_of<tower::UnsupportedError>([&] { tower::grad(f)(x); }), "backward()"));
  EXPECT_TRUE(support::contains(message_of<c10::Error>([&] { tower::vmap(f)(at::stack({x, x})); }), "grad"));
  support::expect_intact();
}

// A step from a gradient that is given.
template <class Optimizer, class Options>
Tensor stepped(const Tensor& x) {
  Tensor parameter = at::ones({3}, x.options()).requires_grad_();
  Optimizer optimizer({parameter}, Options(0.1));
  parameter.mutable_grad() = x * 2;
  optimizer.step();
  return parameter.detach() * x;
}

TEST(OptimizersMadeInside, TakeTheStepsOfPlainCodeOrSayWhoseMemoryTheyWriteTo) {
  const Tensor x = vec({0.3, -1, 2}), u = vec({1, 2, -1});
  const auto adam = stepped<torch::optim::Adam, torch::optim::AdamOptions>;
  EXPECT_TRUE(same(tower::vmap(adam)(at::stack({x, u})), at::stack({adam(x), adam(u)})));
  EXPECT_TRUE(same(tower::jvp(adam, x, u).first, adam(x)));
  // This one writes to parameter.data().
  const auto sgd = stepped<torch::optim::SGD, torch::optim::SGDOptions>;
  const std::string error = message_of<tower::Error>([&] { tower::vmap(sgd)(at::stack({x, u})); });
  EXPECT_TRUE(support::contains(error, "memory that data() or set_ gave to a tensor")) << error;
  support::expect_intact();
}

}  // namespace
