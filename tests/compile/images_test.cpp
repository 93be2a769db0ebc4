// Compiled functions under transforms: their images are compiled, too, and right to any order. Each is asked twice or
// more: the first call traces what the next ones run. Oracles: the function itself, the loop, difference quotients.
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <tower/compile.h>
#include <tower/cond.h>
#include <tower/transforms.h>

#include <thread>

#include "support/prelude.h"

namespace {

// Enough operators that it is worth being one.
Tensor energy(const Tensor& x) { return ((x * x + 0.3).log().sin() * x + x.exp()).square() / (x * x + 1); }

Tensor products(const Tensor& x) {
  const Tensor m = x.unsqueeze(0) * x.unsqueeze(1) + at::eye(x.size(0), at::kDouble) * 3;
  return at::linalg_solve(m, x.cos()).tanh() * at::mv(m, x);
}

std::string disagreement_of_compiled(const td::Function& f, const Tensors& examples, support::Compositions which = {}) {
  const td::Function compiled = td::compile(f);
  std::string text = disagreement(compiled, examples, which);
  return text.empty() ? disagreement(compiled, examples, which) : text;
}

TEST(CompiledImages, AgreeUnderPairsOfTransforms) {
  EXPECT_EQ(disagreement_of_compiled(of_one(energy), {waves({3, 4})}), "");
  EXPECT_EQ(disagreement_of_compiled(of_one(products), {waves({3, 4})}), "");
  EXPECT_EQ(disagreement_of_compiled(
                [](const Tensors& in) {
                  const Tensor a = in[0] * in[1] + in[0].sin(), b = (a * in[1]).exp() - a;
                  return Tensors{a, b.sum(), at::mm(b, a.t())};
                },
                {waves({3, 2, 4}), waves({3, 2, 4}, 0.7)}),
            "");
}

TEST(CompiledImages, OfWritesToWhatIsMadeInside) {
  const auto f = [](const Tensor& x) {
    Tensor y = x.clone();
    y.slice(0, 0, 2).mul_(x.slice(0, 1, 3)).add_(1);
    y[0] = y[1] * x[0];
    return y.cos() * x;
  };
  EXPECT_EQ(disagreement_of_compiled(of_one(f), {waves({3, 3})}), "");
}

TEST(CompiledImages, OfWritesToArguments) {
  const auto f = [](const Tensor& x) {
    const Tensor before = (x * x).sin() * x + x;
    Tensor(x).mul_(2).add_(before);
    return before * x;
  };
  EXPECT_EQ(disagreement_of_compiled(of_one(f), {waves({3, 3})}, {.libtorch = false}), "");
  const auto compiled = tower::vmap(tower::compile(f));
  for (int i = 0; i < 3; ++i) {
    Tensor x = waves({2, 3}, i), y = x.clone();
    EXPECT_TRUE(same(compiled(x), tower::vmap(f)(y)));
    EXPECT_TRUE(same(x, y));
  }
}

TEST(CompiledImages, ResultsThatAreArgumentsOrViewsComeBackAsSuch) {
  const auto f = tower::compile([](const Tensor& x) {
    const Tensor y = (x.sin() * 2 + x).exp() - 1;
    return std::tuple(y, y.t(), x, x[1]);
  });
  for (int i = 0; i < 3; ++i) {
    const auto loss = [&](const Tensor& x) {
      auto [y, transposed, same_x, row] = f(x);
      y.mul_(3);
      EXPECT_TRUE(same_x.is_same(x));
      Tensor(row).zero_();
      return transposed.sum() + (x * x).sum();
    };
    const auto plain = [](const Tensor& x) {
      Tensor y = (x.sin() * 2 + x).exp() - 1;
      y = y * 3;
      Tensor(x)[1].zero_();
      return y.t().sum() + (x * x).sum();
    };
    EXPECT_TRUE(same(tower::grad(loss)(waves({2, 2}, i)), tower::grad(plain)(waves({2, 2}, i))));
  }
}

TEST(CompiledImages, ToTheFourthOrder) {
  const auto f = tower::compile([](const Tensor& x) { return (x.sin() * x.exp() + x * x * x).square(); });
  const auto plain = [](const Tensor& x) { return (x.sin() * x.exp() + x * x * x).square(); };
  const auto fourth = [](const auto& g) { return tower::grad(tower::grad(tower::grad(tower::grad(g)))); };
  const auto mixed = [](const auto& g) {
    return tower::grad([g](const Tensor& x) {
      return tower::jvp(tower::grad([g](const Tensor& y) { return tower::jvp(g, y, y).second; }), x, x).second;
    });
  };
  for (int i = 0; i < 3; ++i) {
    const Tensor x = number(0.3 + 0.2 * i), xs = waves({5}, i);
    EXPECT_TRUE(same(fourth(f)(x), fourth(plain)(x)));
    EXPECT_TRUE(same(mixed(f)(x), mixed(plain)(x)));
    EXPECT_TRUE(same(tower::vmap(fourth(f))(xs), tower::vmap(fourth(plain))(xs)));
    EXPECT_TRUE(same(tower::grad([&](const Tensor& x) { return tower::vmap(tower::grad(f))(x).sum(); })(xs),
                     tower::vmap(tower::grad(tower::grad(plain)))(xs)));
  }
}

TEST(CompiledImages, HessiansAndTheirCompilation) {
  const auto loss = [](const Tensor& x) { return energy(x).sum() * x.square().mean() + products(x).sum(); };
  const auto f = tower::compile(loss);
  const auto compiled_again = tower::compile(tower::hessian(tower::compile(loss)));
  for (int i = 0; i < 3; ++i) {
    const Tensor x = waves({4}, i);
    const Tensor expected = tower::hessian(loss)(x);
    EXPECT_TRUE(same(tower::hessian(f)(x), expected));
    EXPECT_TRUE(same(tower::jacrev(tower::grad(f))(x), expected));
    EXPECT_TRUE(same(compiled_again(x), expected));
    EXPECT_TRUE(same(tower::vmap(tower::hessian(f))(x.expand({2, 4}))[1], expected));
  }
}

TEST(CompiledImages, PullbacksAreCalledLaterAndMoreThanOnce) {
  const auto f = tower::compile(energy);
  for (int i = 0; i < 3; ++i) {
    const Tensor x = waves({4}, i), a = waves({4}, 0.5), b = waves({4}, 0.9);
    const auto [y, pullback] = tower::vjp(f, x);
    const auto [expected_y, expected] = tower::vjp(energy, x);
    f(x + 1);
    EXPECT_TRUE(same(y, expected_y));
    EXPECT_TRUE(same(pullback(a), expected(a)));
    EXPECT_TRUE(same(pullback(b.expand({4})), expected(b)));
    EXPECT_TRUE(same(tower::vmap(pullback)(at::stack({a, b})), at::stack({expected(a), expected(b)})));
    EXPECT_TRUE(same(tower::grad([&](const Tensor& ct) { return pullback(ct).square().sum(); })(a),
                     tower::grad([&](const Tensor& ct) { return expected(ct).square().sum(); })(a)));
    EXPECT_TRUE(same(tower::compile(pullback)(a), expected(a)));
  }
}

TEST(CompiledImages, EachArgumentForItself) {
  const auto f = [](const Tensor& x, const Tensor& y) {
    return std::pair((x * y).sin() + x * x, (x - y).exp() * y.cos());
  };
  const auto compiled = tower::compile(f);
  const auto of = [](const auto& g, const Tensor& x, const Tensor& y) {
    Tensors all;
    const auto first = [&](const Tensor& x) { return g(x, y).first.sum(); };
    const auto second = [&](const Tensor& y) { return g(x, y).second.sum(); };
    const auto both = [&](const Tensor& x, const Tensor& y) { return g(x, y).first.sum() + g(x, y).second.sum(); };
    all.push_back(tower::grad(first)(x));
    all.push_back(tower::grad(second)(y));
    all.push_back(std::get<1>(tower::grad<0, 1>(both)(x, y)));
    all.push_back(tower::jvp([&](const Tensor& y) { return g(x, y).first; }, y, x).second);
    return all;
  };
  for (int i = 0; i < 3; ++i) {
    const Tensor x = waves({4}, i), y = waves({4}, 0.5 + i);
    const Tensors actual = of(compiled, x, y), expected = of(f, x, y);
    for (size_t k = 0; k < actual.size(); ++k) EXPECT_TRUE(same(actual[k], expected[k])) << k;
  }
}

TEST(CompiledImages, CapturedTensorsAreOperands) {
  const Tensor w = waves({4}, 0.6);
  const auto f = tower::compile([&](const Tensor& x) { return ((x * w).sin() + w * w).exp() * x; });
  const auto plain = [&](const Tensor& x) { return ((x * w).sin() + w * w).exp() * x; };
  const Tensor v = w.clone().requires_grad_();
  const auto learned = tower::compile([&](const Tensor& x) { return ((x * v).sin() + v * v).exp() * x; });
  for (int i = 0; i < 3; ++i) {
    const Tensor x = waves({3, 4}, i);
    EXPECT_TRUE(same(tower::vmap(f)(x), plain(x)));
    EXPECT_TRUE(same(tower::vmap(tower::grad([&](const Tensor& x) { return f(x).sum(); }))(x),
                     tower::grad([&](const Tensor& x) { return plain(x).sum(); })(x)));
    w.mul_(0.7);
    // LibTorch's autograd follows it where nothing else is differentiated.
    Tensor u = v.detach().clone().requires_grad_();
    v.mutable_grad() = Tensor();
    learned(x).sum().backward();
    (((x * u).sin() + u * u).exp() * x).sum().backward();
    EXPECT_TRUE(same(v.grad(), u.grad()));
  }
}

TEST(CompiledImages, CapturedTensorsOfTransformsAround) {
  const auto with = [](auto&& wrap) {
    return [wrap](const Tensor& x) {
      const auto f = wrap([x](const Tensor& y) { return ((y * x).sin() + x * x).exp() * y; });
      return f(x + 1).sum() + f(x * 2).sum() + f(at::ones_like(x)).square().sum();
    };
  };
  const auto compiled = with([](auto f) { return tower::compile(f); });
  const auto plain = with([](auto f) { return f; });
  EXPECT_EQ(disagreement(of_one(compiled), {waves({3, 4})}), "");
  const Tensor x = waves({3, 4});
  EXPECT_TRUE(same(tower::vmap(tower::hessian(compiled))(x), tower::vmap(tower::hessian(plain))(x)));
}

TEST(CompiledImages, ArgumentsThatAreOneTensor) {
  const auto f = [](const Tensor& x, const Tensor& y) { return (x * y).sin() * x + (y * 2).exp(); };
  const auto compiled = tower::compile(f);
  const auto once = [](const auto& g) { return tower::grad([&](const Tensor& x) { return g(x, x).sum(); }); };
  for (int i = 0; i < 3; ++i) {
    const Tensor x = waves({4}, i);
    EXPECT_TRUE(same(once(compiled)(x), once(f)(x)));
    EXPECT_TRUE(same(tower::vmap(compiled)(x, x), tower::vmap(f)(x, x)));
    Tensor y = x.clone().requires_grad_(), z = x.clone().requires_grad_();
    compiled(y, y).sum().backward();
    f(z, z).sum().backward();
    EXPECT_TRUE(same(y.grad(), z.grad()));
  }
}

TEST(CompiledImages, LibtorchsSecondDerivatives) {
  const auto f = tower::compile(energy);
  for (int i = 0; i < 3; ++i) {
    const Tensor x = waves({4}, i).requires_grad_(), y = x.detach().clone().requires_grad_();
    const auto second = [](const Tensor& value, const Tensor& x) {
      const Tensor g = torch::autograd::grad({value.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
      return torch::autograd::grad({g.square().sum()}, {x})[0];
    };
    EXPECT_TRUE(same(second(f(x), x), second(energy(y), y)));
  }
}

TEST(CompiledImages, OfChoicesAndRandomNumbersRunTheirOperators) {
  const auto choose = [](const Tensor& x) {
    return tower::cond(
        x.sum() > 0, [](const Tensor& x) { return x.sin() * x; }, [](const Tensor& x) { return x.exp() + x; }, x);
  };
  EXPECT_EQ(disagreement_of_compiled(of_one(choose), {waves({3, 4})}), "");
  const auto noisy = [](const Tensor& x) { return ((x + at::rand_like(x)) * x).sin() * at::rand_like(x) + x; };
  const auto compiled = tower::compile(noisy);
  const Tensor x = waves({3, 4});
  for (int i = 0; i < 3; ++i) {
    for (const auto randomness : {tower::Randomness::different, tower::Randomness::same}) {
      const auto gradients = [&](const auto& f) {
        at::manual_seed(i);
        return tower::vmap(tower::grad([&](const Tensor& x) { return f(x).sum(); }), {.randomness = randomness})(x);
      };
      EXPECT_TRUE(same(gradients(compiled), gradients(noisy)));
    }
  }
}

TEST(CompiledImages, UnderTheModesOfTheCall) {
  const Tensor w = waves({4, 4}).to(at::kFloat);
  const auto f = [&](const Tensor& x) { return (at::mv(w, x).tanh() * x + x.exp()).square().sum(); };
  const auto compiled = tower::compile(f);
  const auto gradients = [](const auto& g) { return tower::vmap(tower::grad(g)); };
  for (int i = 0; i < 3; ++i) {
    const Tensor x = waves({3, 4}, i).to(at::kFloat);
    EXPECT_TRUE(at::allclose(gradients(compiled)(x), gradients(f)(x)));
    {
      const at::NoGradGuard guard;
      EXPECT_TRUE(at::allclose(gradients(compiled)(x), gradients(f)(x)));
      EXPECT_TRUE(at::allclose(tower::jvp(compiled, x[0], x[1]).second, tower::jvp(f, x[0], x[1]).second));
    }
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Tensor actual = gradients(compiled)(x), expected = gradients(f)(x);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_TRUE(at::equal(actual, expected)) << (actual - expected).abs().max();
  }
}

TEST(CompiledImages, OfWholeNumbersAndMasks) {
  const auto f = [](const Tensor& x, const Tensor& n) {
    const Tensor mask = x > 0;
    return std::tuple(at::where(mask, x * n, x.exp() + x.square()), n * 2 + 1, mask.logical_not());
  };
  const auto compiled = tower::compile(f);
  const auto all = [](const auto& g, const Tensor& x, const Tensor& n) {
    const auto [a, b, c] = tower::vmap(g)(x, n);
    const auto [y, tangents] = tower::jvp([&](const Tensor& x) { return std::get<0>(g(x, n)); }, x, x);
    return Tensors{a, b, c, y, tangents, tower::grad([&](const Tensor& x) { return std::get<0>(g(x, n)).sum(); })(x)};
  };
  for (int i = 0; i < 3; ++i) {
    const Tensor x = waves({3, 4}, i), n = at::arange(12).view({3, 4});
    const Tensors actual = all(compiled, x, n), expected = all(f, x, n);
    for (size_t k = 0; k < actual.size(); ++k)
      EXPECT_TRUE(at::allclose(actual[k].to(at::kDouble), expected[k].to(at::kDouble))) << k;
  }
}

// What is compiled shows in the report, and in how often operators are called.
TEST(CompiledImages, AreCompiled) {
  int runs = 0;
  const auto f = tower::compile([&](const Tensor& x) {
    ++runs;
    return energy(x);
  });
  const auto g = tower::vmap(tower::grad([&](const Tensor& x) { return f(x).sum(); }));
  for (int i = 0; i < 4; ++i) g(waves({3, 4}, i));
  EXPECT_EQ(runs, 1);
  const std::string report = f.report();
  EXPECT_TRUE(says(report, {"under vjp, recorded", "under vjp, pulled back", "under vmap"})) << report;
}

TEST(CompiledImages, SeveralThreadsTransformOneFunction) {
  const auto f = tower::compile(energy);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      const auto gradient = [](const auto& h) {
        return tower::vmap(tower::grad([h](const Tensor& x) { return h(x).sum(); }));
      };
      const auto tangent = [](const auto& h, const Tensor& x) { return tower::jvp(h, x, x).second; };
      for (int i = 0; i < 10; ++i) {
        const Tensor x = waves({2 + i % 3, 4}, t + i);
        wrong += !same(gradient(f)(x), gradient(energy)(x));
        wrong += !same(tangent(f, x), tangent(energy, x));
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
