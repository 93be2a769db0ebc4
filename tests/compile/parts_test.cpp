// Compiled functions under transforms that do what has to be seen in its order: draw random numbers, choose, run a
// user's function, write to captured tensors. What lies between is compiled. Oracles: the function itself, with equal
// draws; the loop, difference quotients.
#include <torch/nn/modules/batchnorm.h>
#include <tower/compile.h>
#include <tower/cond.h>
#include <tower/function.h>
#include <tower/nn.h>
#include <tower/transforms.h>

#include <cmath>

#include "support/prelude.h"

namespace {

constexpr int kCalls = 4;

size_t count_of(const std::string& part, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string disagreement_of_compiled(const td::Function& f, const Tensors& examples, support::Compositions which = {}) {
  const td::Function compiled = td::compile(f);
  std::string text = disagreement(compiled, examples, which);
  return text.empty() ? disagreement(compiled, examples, which) : text;
}

// Draws that depend on nothing, on a shape, and on what was computed.
Tensor noisy(const Tensor& x) {
  const Tensor a = ((x + at::rand_like(x)) * x).sin() * at::randn(x.sizes(), x.options()) + x;
  const Tensor chosen = at::bernoulli(a.detach().sigmoid() * 0.5 + 0.25);
  return (a * chosen + a.exp() * (1 - chosen)).cos() * at::dropout(x * a, 0.5, /*train=*/true);
}

template <class F>
auto seeded(const F& f, int seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return f();
}

TEST(CompiledParts, DrawRandomNumbersOnceAndInTheirOrder) {
  const auto compiled = tower::compile(noisy);
  const auto all = [](const auto& f, const Tensor& x, tower::Randomness randomness) {
    const auto loss = [&](const Tensor& x) { return f(x).sum(); };
    const tower::Mapping options{.randomness = randomness};
    return Tensors{tower::grad(loss)(x),
                   tower::jvp(f, x, x.cos()).second,
                   tower::vmap(f, options)(x),
                   tower::vmap(tower::grad(loss), options)(x),
                   tower::grad([&](const Tensor& x) { return tower::vmap(f, options)(x).sum(); })(x),
                   tower::jvp(tower::grad(loss), x, x.cos()).second};
  };
  for (int i = 0; i < kCalls; ++i)
    for (const auto randomness : {tower::Randomness::different, tower::Randomness::same}) {
      const Tensor x = waves({3, 4}, i);
      const auto of = [&](const auto& f) { return seeded([&] { return all(f, x, randomness); }, i); };
      const Tensors actual = of(compiled), expected = of(noisy);
      for (size_t k = 0; k < actual.size(); ++k) EXPECT_TRUE(same(actual[k], expected[k])) << i << ", " << k;
    }
  EXPECT_TRUE(contains(compiled.report(), "under vjp, pulled back")) << compiled.report();
}

TEST(CompiledParts, DrawRandomNumbersUnderLibtorchsAutograd) {
  const auto compiled = tower::compile(noisy);
  for (int i = 0; i < kCalls; ++i) {
    const auto gradient = [&](const auto& f) {
      const Tensor x = waves({3, 4}, i).requires_grad_();
      seeded([&] { return f(x); }, i).sum().backward();
      return x.grad();
    };
    EXPECT_TRUE(same(gradient(compiled), gradient(noisy)));
  }
}

TEST(CompiledParts, AllThatReadsDrawsOfNothingIsOne) {
  const auto f = tower::compile([](const Tensor& x) {
    const Tensor a = (x * at::rand_like(x)).sin() + x;
    return (a * at::rand_like(x)).exp() + a.cos() * x;
  });
  const auto gradient = tower::grad([&](const Tensor& x) { return f(x).sum(); });
  for (int i = 0; i < kCalls; ++i) gradient(waves({3}, i));
  EXPECT_EQ(count_of("under vjp, recorded", f.report()), 1u) << f.report();
}

Tensor choosing(const Tensor& x) {
  const Tensor a = (x * x + 0.5).log().sin() * x;
  const Tensor b = tower::cond(
      a.sum() > 0, [](const Tensor& a, const Tensor& x) { return a.sin() * x; },
      [](const Tensor& a, const Tensor& x) { return a.exp() + x; }, a, x);
  return ((b + a).cos() * b).exp() - x * a;
}

TEST(CompiledParts, AroundChoices) {
  EXPECT_EQ(disagreement_of_compiled(of_one(choosing), {waves({3, 4})}), "");
  const auto f = tower::compile(choosing);
  for (int i = 0; i < kCalls; ++i) {
    const Tensor x = waves({3, 4}, i);
    const auto loss = [](const auto& g) { return [g](const Tensor& x) { return g(x).sum(); }; };
    EXPECT_TRUE(same(tower::vmap(tower::hessian(loss(f)))(x), tower::vmap(tower::hessian(loss(choosing)))(x)));
  }
  // Branches that only compute are graphs: the function around them is one part.
  EXPECT_EQ(count_of("under vjp, recorded", f.report()), count_of("under vjp, pulled back", f.report()));
  EXPECT_GE(count_of("under vjp, pulled back", f.report()), 1u) << f.report();
}

// A derivative that is declared, not true: nothing else gives it.
struct Scaled : tower::Function<Scaled> {
  static inline int calls = 0;
  static Tensor forward(const Tensor& x) {
    ++calls;
    return x * 2;
  }
  static void setup_context(tower::Context& ctx, const std::tuple<Tensor>& inputs, const Tensor&) {
    ctx.save_for_backward({std::get<0>(inputs)});
  }
  static Tensor backward(tower::Context& ctx, const Tensor& grad) { return grad * ctx.saved_tensors()[0] * 7; }
};

Tensor with_rules(const Tensor& x) {
  const Tensor a = (x * x + 0.5).log().sin() * x;
  return ((Scaled::apply(a) + a).cos() * a).exp() - x * a;
}

TEST(CompiledParts, AroundAUsersFunctionWhoseRulesAreAsked) {
  const auto f = tower::compile(with_rules);
  const auto all = [](const auto& g, const Tensor& x) {
    const auto loss = [g](const Tensor& x) { return g(x).sum(); };
    return Tensors{tower::grad(loss)(x), tower::vmap(tower::grad(loss))(x),
                   tower::grad([&](const Tensor& x) { return tower::vmap(tower::grad(loss))(x).square().sum(); })(x)};
  };
  for (int i = 0; i < kCalls; ++i) {
    const Tensor x = waves({3, 4}, i);
    const int before = Scaled::calls;
    const Tensors expected = all(with_rules, x);
    const int plain = Scaled::calls - before;
    const Tensors actual = all(f, x);
    for (size_t k = 0; k < actual.size(); ++k) EXPECT_TRUE(same(actual[k], expected[k])) << i << ", " << k;
    // The first call traces, too.
    if (i > 0) {
      EXPECT_EQ(Scaled::calls - before - plain, plain);
    }
  }
  EXPECT_GE(count_of("under vjp, pulled back", f.report()), 2u) << f.report();
}

// What is read before a write and what is read after it.
auto with_counter(Tensor& seen) {
  return [&seen](const Tensor& x) {
    const Tensor row = seen[1];
    const Tensor before = ((seen + x).sin() + seen.exp() + x * 2 + row).cos() + x;
    seen.mul_(0.5).add_(1);
    return before * x + (seen - x).cos() + (seen + x.exp()) + row - x;
  };
}

TEST(CompiledParts, AroundWritesToCapturedTensors) {
  Tensor seen = at::zeros({3}, at::kDouble), expected_seen = seen.clone();
  const auto f = tower::compile(with_counter(seen));
  const auto plain = with_counter(expected_seen);
  for (int i = 0; i < kCalls; ++i) {
    const Tensor x = waves({3}, i), xs = waves({2, 3}, i);
    const auto all = [&](const auto& g) {
      const auto loss = [&](const Tensor& x) { return g(x).sum(); };
      return Tensors{tower::grad(loss)(x), tower::jvp(g, x, x).second, tower::vmap(tower::grad(loss))(xs),
                     tower::hessian(loss)(x)};
    };
    const Tensors actual = all(f), expected = all(plain);
    for (size_t k = 0; k < actual.size(); ++k) EXPECT_TRUE(same(actual[k], expected[k])) << i << ", " << k;
    EXPECT_TRUE(same(seen, expected_seen)) << i;
  }
  EXPECT_GE(count_of("under vjp, pulled back", f.report()), 2u) << f.report();
}

TEST(CompiledParts, WhatADerivativeNeedsMustNotBeWrittenTo) {
  Tensor seen = at::ones({3}, at::kDouble);
  const auto f = tower::compile([&](const Tensor& x) {
    const Tensor before = (seen * x).sin() * x + x.exp();
    seen.add_(1);
    return before.sum();
  });
  f(waves({3}));
  for (int i = 0; i < kCalls; ++i) {
    const std::string text = refusal<tower::DerivativeError>([&] { tower::grad(f)(waves({3}, i)); });
    EXPECT_TRUE(says(text, {"grad", "modified by an in-place operation"})) << text;
  }
}

TEST(CompiledParts, OfRunningStatistics) {
  torch::nn::BatchNorm1d net(3), plain(3);
  net->to(at::kDouble);
  plain->to(at::kDouble);
  const auto loss = [](torch::nn::BatchNorm1d& net) {
    return [module = net.ptr()](const Tensor& x) {
      return (module->forward((x.sin() + x) * x).exp() * x - x.cos()).sum();
    };
  };
  const auto f = tower::compile(loss(net));
  for (int i = 0; i < kCalls; ++i) {
    const Tensor x = waves({4, 3}, i);
    EXPECT_TRUE(same(tower::grad(f)(x), tower::grad(loss(plain))(x)));
    EXPECT_TRUE(same(net->running_mean, plain->running_mean));
    EXPECT_TRUE(same(net->running_var, plain->running_var));
    EXPECT_TRUE(at::equal(net->num_batches_tracked, plain->num_batches_tracked));
  }
}

TEST(CompiledParts, OfWritesToArgumentsAmongDraws) {
  const auto f = [](const Tensor& x) {
    const Tensor a = (x * at::rand_like(x)).sin() * x + x.exp();
    Tensor(x).mul_(a).add_(at::rand_like(x));
    return std::pair((x * a).cos() + at::rand_like(x) * x, x[1]);
  };
  const auto compiled = tower::compile(f);
  for (int i = 0; i < kCalls; ++i) {
    const auto run = [&](const auto& g) {
      Tensor x = waves({3, 4}, i);
      auto [y, row] = seeded([&] { return tower::vmap(g, {.randomness = tower::Randomness::different})(x); }, i);
      return Tensors{y, row, x};
    };
    const Tensors actual = run(compiled), expected = run(f);
    for (size_t k = 0; k < actual.size(); ++k) EXPECT_TRUE(same(actual[k], expected[k])) << i << ", " << k;
  }
}

}  // namespace
