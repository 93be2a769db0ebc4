// Checkpoints that keep some intermediate values: which operators are computed again, and that nothing else changes.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "../bench/support/peak_memory.h"
#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/checkpoint.h"
#include "tower/explain.h"
#include "tower/nn.h"
#include "tower/transforms.h"

namespace {

using tower::CheckpointOptions;

Tensor block(const Tensor& x, const Tensor& w) {
  const Tensor hidden = tower::checkpoint_name(x.mm(w).tanh().view({-1}), "hidden").view({3, 4});
  return (hidden.mm(w) * hidden).sin();
}

const std::vector<std::pair<const char*, CheckpointOptions>> policies{
    {"nothing", {}},
    {"an operator", {.keep = {"aten::mm"}}},
    {"an overload", {.keep = {"aten::mul.Tensor"}}},
    {"a name", {.keep_names = {"hidden", "another"}}},
    {"a function", {.policy = [](const std::string& op, const Tensors&) { return op != "aten::mm"; }}},
    {"all", {.keep = {"aten::mm"}, .policy = [](const std::string&, const Tensors&) { return true; }}},
};

Tensor loss(const Tensor& x, const Tensor& w, const CheckpointOptions& options) {
  return tower::checkpoint(block, options)(tower::checkpoint(block, options)(x, w), w).sum();
}

// How often plain tensors were put through an operator. (What derivative rules call is not listed.)
template <class F>
std::map<std::string, int64_t> plain_calls(F&& f) {
  tower::Explainer explainer;
  f();
  std::map<std::string, int64_t> counts;
  for (const auto& call : explainer.calls())
    if (call.level == "plain") counts[call.op] += call.count;
  return counts;
}

TEST(CheckpointPolicy, WhatIsKeptIsComputedOnceAndTheRestAgain) {
  const Tensor x = waves({3, 4}), w = waves({4, 4}, 1);
  const auto calls = [&](const CheckpointOptions& options) {
    return plain_calls(
        [&] { tower::grad([&](const Tensor& w) { return tower::checkpoint(block, options)(x, w).sum(); })(w); });
  };
  auto others = calls({.keep = {"aten::add"}});
  EXPECT_EQ(others["aten::mm"], 4);
  EXPECT_EQ(others["aten::tanh"], 2);
  auto products = calls({.keep = {"aten::mm"}}), named = calls({.keep_names = {"hidden"}});
  EXPECT_EQ(products["aten::mm"], 2);
  EXPECT_EQ(products["aten::tanh"], 2);
  EXPECT_EQ(named["aten::mm"], 4);
  EXPECT_EQ(named["aten::tanh"], 1);
  int asked = 0;
  auto chosen = calls({.policy = [&](const std::string& op, const Tensors& results) {
    ++asked;
    return op == "aten::sin" && results[0].numel() == 12;
  }});
  EXPECT_EQ(chosen["aten::sin"], 1);
  EXPECT_EQ(chosen["aten::tanh"], 2);
  EXPECT_EQ(asked, 5);  // two products, tanh, mul, sin, once each
}

TEST(CheckpointPolicy, GradientsHaveTheBitsOfACheckpointThatKeepsNothing) {
  const Tensor x = waves({3, 4}), w = waves({4, 4}, 1);
  const auto gradients = [&](const CheckpointOptions& options) {
    return tower::grad<0, 1>([&](const Tensor& x, const Tensor& w) { return loss(x, w, options); })(x, w);
  };
  const auto plain =
      tower::grad<0, 1>([](const Tensor& x, const Tensor& w) { return block(block(x, w), w).sum(); })(x, w);
  const auto expected = gradients({});
  EXPECT_TRUE(same(std::get<0>(expected), std::get<0>(plain)));
  EXPECT_TRUE(same(std::get<1>(expected), std::get<1>(plain)));
  for (const auto& [name, options] : policies) {
    const auto found = gradients(options);
    EXPECT_TRUE(at::equal(std::get<0>(found), std::get<0>(expected))) << name;
    EXPECT_TRUE(at::equal(std::get<1>(found), std::get<1>(expected))) << name;
  }
}

TEST(CheckpointPolicy, CompositionsAreThoseOfTheFunction) {
  for (const auto& [name, options] : policies) {
    const auto f = [&options = options](const Tensors& in) {
      const Tensor w = in[1];
      return td::checkpoint(
          [w, &options](const Tensors& x) {
            const Tensor h = tower::checkpoint_name((x[0] * w).exp(), "hidden");
            return td::checkpoint([h](const Tensors& y) { return Tensors{h.sin() * y[0], y[0] * y[0]}; }, x, options);
          },
          {in[0]}, options);
    };
    EXPECT_EQ(disagreement(f, {waves({3, 2}), waves({3, 2}, 0.8)}, {.libtorch = false}), "") << name;
  }
}

TEST(CheckpointPolicy, LibTorchsBackwardUsesWhatIsKept) {
  for (const auto& [name, options] : policies) {
    const Tensor x = waves({3, 4}).requires_grad_(), w = waves({4, 4}, 1).requires_grad_();
    loss(x, w, options).backward();
    const Tensor y = waves({3, 4}).requires_grad_(), v = waves({4, 4}, 1).requires_grad_();
    block(block(y, v), v).sum().backward();
    EXPECT_TRUE(same(x.grad(), y.grad())) << name;
    EXPECT_TRUE(same(w.grad(), v.grad())) << name;
  }
}

TEST(CheckpointPolicy, ParametersOfAModuleAreOperands) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Tanh(), torch::nn::Linear(4, 4));
  net->to(at::kDouble);
  const Tensor x = waves({3, 4});
  const auto gradients = [&](const auto& wrapped) {
    return tower::grad([&](const tower::NamedTensors& p) { return wrapped(p, x).sum(); })(tower::parameters_of(*net));
  };
  const auto call = [&](const tower::NamedTensors& p, const Tensor& x) {
    return tower::functional_call(net, p, {}, x).sin();
  };
  const auto expected = gradients(call);
  const auto calls = plain_calls([&] {
    const auto found = gradients(tower::checkpoint(call, {.keep = {"aten::addmm"}}));
    for (const auto& [name, gradient] : expected) EXPECT_TRUE(same(found.at(name), gradient)) << name;
  });
  EXPECT_EQ(calls.at("aten::addmm"), 2);
}

TEST(CheckpointPolicy, MemoryIsThatOfWhatIsKept) {
  const Tensor x = waves({64, 64}), w = waves({64, 64}, 1) / 8;
  const auto chain = [](const Tensor& x, const Tensor& w) {
    Tensor h = x;
    for (int layer = 0; layer < 20; ++layer) h = (h.mm(w).tanh() + h).sin();
    return h;
  };
  const auto states = [&](const auto& f) {
    tower::grad([&](const Tensor& w) { return f(x, w).sum(); })(w);
    // The first half is pulled back last, so both halves' kept values are there at first.
    const auto bytes = peak_memory(
        [&] { const auto [y, pullback] = tower::vjp([&](const Tensor& w) { return f(f(x, w), w).sum(); }, w); });
    return static_cast<double>(bytes) / static_cast<double>(x.nbytes());
  };
  const double nothing = states(tower::checkpoint(chain));
  const double products = states(tower::checkpoint(chain, {.keep = {"aten::mm"}}));
  const double all = states(chain);
  EXPECT_LT(nothing, 10);
  EXPECT_GE(products, 40);
  EXPECT_LT(products, 40 + 10);
  EXPECT_GT(all, 80);
}

TEST(CheckpointPolicy, RandomNumbersAreDrawnAgainAlthoughAllIsKept) {
  const Tensor x = waves({30});
  const auto f = tower::checkpoint(
      [](const Tensor& v) {
        const Tensor first = (v * at::rand_like(v)).exp();
        return first * at::rand_like(v);
      },
      {.policy = [](const std::string&, const Tensors&) { return true; }});
  at::manual_seed(3);
  const auto [y, pullback] = tower::vjp(f, x);
  at::manual_seed(3);
  const Tensor a = at::rand_like(x);
  EXPECT_TRUE(same(pullback(at::ones_like(y)), y * a));
}

TEST(CheckpointPolicy, OperatorsThatDoNotExistAreRefusedByName) {
  const auto f = tower::checkpoint([](const Tensor& x) { return x.sin(); }, {.keep = {"mm"}});
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { f(number(1)); }), {"checkpoint", "'mm'", "aten::mm"}));
}

TEST(CheckpointPolicy, AFunctionThatCallsOthersTheSecondTimeIsRefused) {
  int evaluated = 0;
  const auto f = tower::checkpoint([&](const Tensor& x) { return ++evaluated == 1 ? x.sin() * x : x.cos() * x; },
                                   {.keep = {"aten::sin"}});
  EXPECT_TRUE(says(refusal<tower::DerivativeError>([&] { tower::grad(f)(number(1)); }),
                   {"checkpoint", "aten::sin", "other operators"}));
}

}  // namespace
