// Traps that other implementations fell into. What is right is known from finite differences, a loop or the hand.
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "support/oracles.h"
#include "support/prelude.h"

namespace {

using support::mapped;

TEST(Traps, TheGradientOfSelectScattersSourceIsNotMultipliedByTheSize) {
  const auto f = [](const Tensors& in) { return Tensors{(at::select_scatter(in[0], in[1], 1, 2) * in[0]).sum()}; };
  const Tensor x = numbers({2, 3, 4}), s = numbers({2, 3}) * 10;
  const Tensors g = td::vmap(td::grad(f, {0, 1}), {0, 0}, {0})({x, s});
  EXPECT_TRUE(same(g[1], x.select(2, 2)));
  const Tensor expected = 2 * x;
  expected.select(2, 2).copy_(s);
  EXPECT_TRUE(same(g[0], expected));
}

TEST(Traps, RollOfAScalarOfEachExampleStaysInIt) {
  EXPECT_TRUE(same(mapped(of_one([](const Tensor& x) { return at::roll(x, 1); }), vec({1, 2, 3})), vec({1, 2, 3})));
  EXPECT_TRUE(same(mapped(of_one([](const Tensor& x) { return at::roll(x, 1); }), numbers({2, 3})),
                   numbers({2, 3}).roll(1, 1)));
}

TEST(Traps, FlipsSortsAndCumulationsOfAScalarOfEachExampleStayInIt) {
  const Tensor x = vec({3, 1, 2});
  EXPECT_TRUE(same(mapped(of_one([](const Tensor& v) { return v.cumsum(0); }), x), x));
  EXPECT_TRUE(same(mapped(of_one([](const Tensor& v) { return std::get<0>(v.sort()); }), x), x));
  EXPECT_TRUE(same(mapped(of_one([](const Tensor& v) { return v.softmax(0); }), x), at::ones_like(x)));
  EXPECT_TRUE(same(mapped(of_one([](const Tensor& v) { return v.sum(0); }), x), x));
}

TEST(Traps, AsStridedSpeaksOfOneExample) {
  const auto f = of_one([](const Tensor& v) { return v.as_strided({2, 2}, {3, 1}, 1); });
  EXPECT_TRUE(same(mapped(f, numbers({3, 2, 3})), looped(f, numbers({3, 2, 3}))));
  const auto in_place = of_one([](const Tensor& v) {
    const Tensor own = v.clone();
    own.as_strided_({2, 2}, {1, 2}, 1);
    return own;
  });
  EXPECT_TRUE(same(mapped(in_place, numbers({3, 2, 3})), looped(in_place, numbers({3, 2, 3}))));
  EXPECT_TRUE(same(td::grad(of_one([&](const Tensor& v) {
                              return (f({v})[0] * numbers({2, 2})).sum();
                            }),
                            {0})({numbers({2, 3})})[0],
                   at::tensor({0.0, 1.0, 2.0, 0.0, 3.0, 4.0}, at::kDouble).view({2, 3})));
}

TEST(Traps, ResizeSpeaksOfOneExampleOrIsRefused) {
  const auto f = of_one([](const Tensor& v) {
    const Tensor own = v.clone();
    own.resize_({2, 2});
    return own;
  });
  const Tensor x = numbers({3, 6});
  try {
    EXPECT_TRUE(same(mapped(f, x), looped(f, x)));
  } catch (const tower::Error& e) {
    EXPECT_TRUE(support::contains(e.what(), "resize_")) << e.what();
  }
  support::expect_intact();
}

TEST(Traps, ScatterReduceWithProductsHasAForwardDerivative) {
  const Tensor x = vec({2, 3, 5}), src = vec({7, 11, 13, 17}), index = at::tensor({0, 1, 0, 2}, at::kLong);
  const auto f = [&](const Tensors& in) { return Tensors{in[0].scatter_reduce(0, index, in[1], "prod")}; };
  const Tensors dx{vec({1, 2, 3}), vec({1, -1, 2, 0.5})};
  // out = (x0 s0 s2, x1 s1, x2 s3)
  const Tensor expected = vec({1 * 7 * 13 + 2 * 1 * 13 + 2 * 7 * 2, 2 * 11 + 3 * -1, 3 * 17 + 5 * 0.5});
  EXPECT_TRUE(same(td::jvp(f, {x, src}, dx).second[0], expected));
  const Tensors g = td::vjp(f, {x, src}).second({vec({1, 1, 1})});
  EXPECT_TRUE(same(g[0], vec({7 * 13, 11, 17})));
  EXPECT_TRUE(same(g[1], vec({2 * 13, 3, 2 * 7, 5})));
}

TEST(Traps, LossesWithFusedLinearLayersHaveAForwardDerivative) {
  const auto f = [](const Tensors& in) {
    return Tensors{at::cross_entropy_loss(at::linear(in[0], in[1]), at::tensor({1, 0}, at::kLong))};
  };
  const Tensors x{numbers({2, 3}) / 5, numbers({2, 3}) / 7}, t{numbers({2, 3}).sin(), numbers({2, 3}).cos()};
  const double expected = support::directional_derivative(f, x, t)[0].item<double>();
  EXPECT_NEAR(td::jvp(f, x, t).second[0].item<double>(), expected, 1e-8);
  EXPECT_GT(std::abs(expected), 1e-3);
}

TEST(Traps, TheBranchNotTakenDoesNotLeakANaN) {
  const Tensor x = vec({-1, 0, 4});
  const auto f = of_one([](const Tensor& v) {
    const Tensor safe = at::where(v > 0, v, at::ones_like(v));
    return at::where(v > 0, safe.sqrt(), v * 3).sum();
  });
  EXPECT_TRUE(same(td::grad(f, {0})({x})[0], vec({3, 3, 0.25})));
  EXPECT_TRUE(same(td::jvp(f, {x}, {vec({1, 1, 1})}).second[0], at::full({}, 6.25, at::kDouble)));
  // Values that are NaN themselves: the gradient of the other branch is a zero, not NaN.
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto masked = of_one([](const Tensor& v) { return at::where(v.isnan(), at::zeros_like(v), v * v).sum(); });
  EXPECT_TRUE(same(td::grad(masked, {0})({vec({nan, 2})})[0].slice(0, 1), vec({4})));
  const auto filled = of_one([](const Tensor& v) { return v.masked_fill(v.isnan(), 0).pow(2).sum(); });
  EXPECT_TRUE(same(td::grad(filled, {0})({vec({nan, 2})})[0], vec({0, 4})));
}

TEST(Traps, AFunctionThatCapturesATrackedTensorHasItsGradient) {
  const auto f = of_one([](const Tensor& x) {
    const std::function<Tensor(const Tensor&)> scaled = [&](const Tensor& v) { return v * x; };
    return td::vmap(of_one(scaled), {0}, {0})({vec({1, 2, 3})})[0].sum();
  });
  EXPECT_TRUE(same(td::grad(f, {0})({at::ones({}, at::kDouble)})[0], at::full({}, 6.0, at::kDouble)));
  EXPECT_TRUE(same(td::jvp(f, {at::ones({}, at::kDouble)}, {at::ones({}, at::kDouble)}).second[0],
                   at::full({}, 6.0, at::kDouble)));
}

TEST(Traps, NestedForwardModeKeepsTheOuterTangentOfSavedValues) {
  const auto slope = [](const Function& f) {
    return of_one([f](const Tensor& v) { return td::jvp(f, {v}, {at::ones_like(v)}).second[0]; });
  };
  const auto f = of_one([](const Tensor& x) { return x.tanh() * x.exp(); });
  const Tensor x = vec({0.3, -0.4}), t = x.tanh(), s = 1 - t * t;  // f'' = eˣ (t + 2 s − 2 t s)
  EXPECT_TRUE(same(slope(slope(f))({x})[0], x.exp() * (t + 2 * s - 2 * t * s)));
  const Tensor hessians = td::vmap(td::jacfwd(td::jacfwd(f, {0}), {0}), {0}, {0})({x})[0];
  EXPECT_TRUE(same(hessians, x.exp() * (t + 2 * s - 2 * t * s)));
}

TEST(Traps, ThePullbackOfAMapIsAMapOfPullbacks) {
  const Tensor x = numbers({3, 2}) / 4, w = numbers({2, 2}) / 3, c = numbers({3, 2}).cos();
  const auto f = [](const Tensors& in) { return Tensors{at::mv(in[1], in[0]).tanh()}; };
  const Tensors whole = td::vjp(td::vmap(f, {0, std::nullopt}, {0}), {x, w}).second({c});
  Tensors rows;
  Tensor weights = at::zeros_like(w);
  for (int64_t i = 0; i < 3; ++i) {
    const Tensors one = td::vjp(f, {x[i], w}).second({c[i]});
    rows.push_back(one[0]);
    weights = weights + one[1];
  }
  EXPECT_TRUE(same(whole[0], at::stack(rows)));
  EXPECT_TRUE(same(whole[1], weights));
}

TEST(Traps, OperatorsWithoutADerivativeAreDeclaredSoAndGiveZeros) {
  const auto f = of_one([](const Tensor& x) {
    return (x.sign() + x.floor() + (x > 1).to(at::kDouble) + x.argmax().to(at::kDouble) + x * 2).sum();
  });
  EXPECT_TRUE(same(td::grad(f, {0})({vec({0.5, 1.5})})[0], vec({2, 2})));
}

TEST(Traps, HessiansByPartsOfSeveralArgumentsNeedNotAskRulesOfArgumentsThatStandStill) {
  const Tensor w = vec({0.3, -0.2, 0.7}), v = vec({2, 1.5, -1}), zero;
  const std::pair<const char*, Function> cases[] = {
      {"tanh", [](const Tensors& in) { return Tensors{(in[0].tanh() * in[1]).sum()}; }},
      {"sigmoid", [](const Tensors& in) { return Tensors{(in[0].sigmoid() * in[1]).sum()}; }},
      {"softmax", [](const Tensors& in) { return Tensors{(in[0].softmax(0) * in[1]).sum()}; }},
      {"log_softmax", [](const Tensors& in) { return Tensors{(in[0].log_softmax(0) * in[1]).sum()}; }},
      {"cross", [](const Tensors& in) { return Tensors{at::linalg_cross(in[0], in[1]).exp().sum()}; }},
      {"entropy",
       [](const Tensors& in) { return Tensors{at::binary_cross_entropy(in[0].sigmoid(), in[1].sigmoid())}; }}};
  for (const auto& [name, f] : cases) {
    const Tensors forward = td::hessian(f, {0, 1})({w, v});
    const Tensors reverse = td::jacrev(td::grad(f, {0, 1}), {0, 1})({w, v});
    for (size_t k = 0; k < 4; ++k) EXPECT_TRUE(same(forward[k], reverse[k])) << name << ' ' << k;
    const auto push = td::linearize(td::grad(f, {0, 1}), {w, v}).second;
    EXPECT_TRUE(same(push({zero, v})[0], push({at::zeros_like(w), v})[0])) << name;
    EXPECT_TRUE(same(push({w, zero})[1], push({w, at::zeros_like(v)})[1])) << name;
  }
}

TEST(Traps, ForwardModeFollowsWhateverTheModeAroundTheTransform) {
  const auto f = of_one([](const Tensor& x) { return (x * x).exp().sum(); });
  const Tensor x = vec({0.5, -1}), slope = 2 * x * (x * x).exp(), ones = at::ones_like(x);
  const Tensor curvature = at::diag((2 + 4 * x * x) * (x * x).exp());
  const auto check = [&] {
    EXPECT_TRUE(same(td::jvp(f, {x}, {ones}).second[0], slope.sum()));
    EXPECT_TRUE(same(td::jacfwd(f, {0})({x})[0], slope));
    EXPECT_TRUE(same(td::hessian(f, {0})({x})[0], curvature));
    EXPECT_TRUE(same(td::jacfwd(td::jacfwd(f, {0}), {0})({x})[0], curvature));
    EXPECT_TRUE(same(td::linearize(f, {x}).second({ones})[0], slope.sum()));
  };
  {
    const c10::InferenceMode mode;
    check();
  }
  {
    const c10::AutoFwGradMode off(false);
    check();
  }
  const c10::NoGradGuard off;
  check();
}

TEST(Traps, LazyConjugatesKeepWhatLibTorchsAutogradKnowsOfThem) {
  const Tensor parts = vec({1, 2, 3, -4}).requires_grad_(true),
               z = at::complex(parts.slice(0, 0, 2), parts.slice(0, 2));
  const std::pair<Function, Tensor> cases[] = {
      {of_one([](const Tensor& x) { return x * (x.conj() * 2); }), z},
      {of_one([](const Tensor& x) { return x.conj().sin(); }), z},
      {of_one([](const Tensor& x) { return x * x; }), z.conj()},
      {of_one([](const Tensor& x) { return at::complex(at::imag(x.conj()), at::real(x)); }), z},
      {of_one([](const Tensor& x) { return x.conj(); }), z}};
  const auto gradient = [&](const Tensor& y) {
    return torch::autograd::grad({at::view_as_real(y.resolve_conj()).square().sum()}, {parts}, {}, true)[0];
  };
  for (const auto& [f, x] : cases) EXPECT_TRUE(same(gradient(td::vmap(f, {0}, {0})({x})[0]), gradient(f({x})[0])));
}

// Differences of what is linear are its derivatives.
TEST(Traps, OfWritesToOnePlaceTheLastOneHasTheGradient) {
  const auto lists = [](const Tensor& a, const Tensor& b) { return c10::List<std::optional<Tensor>>({a, b}); };
  const auto all = std::optional<Tensor>();
  const Tensor base = at::arange(12, at::kDouble).view({4, 3}), weights = (base * base + 1).sqrt();
  using Write = std::function<Tensor(const Tensor& source, const Tensor& index)>;
  const Write writes[] = {
      [&](auto& v, auto& i) {
        return base.scatter(0, i.view({4, 1}).expand({4, 2}), v);
      },
      [&](auto& v, auto& i) {
        return base.scatter(1, i.view({2, 2}) % 3, v);
      },
      [&](auto& v, auto& i) {
        return base.index_copy(0, i, at::constant_pad_nd(v, {0, 1}));
      },
      [&](auto& v, auto& i) { return base.index_put({i}, v.select(1, 0).unsqueeze(1)); },
      [&](auto& v, auto& i) { return base.index_put({i - 4}, v.select(0, 0).select(0, 0)); },
      [&](auto& v, auto& i) { return base.index_put(lists(i, i % 3), v.select(1, 1)); },
      [&](auto& v, auto& i) {
        return base.index_put({all, i % 3}, v.t().repeat({2, 1}));
      },
      [&](auto& v, auto& i) {
        return base.put(i.view({2, 2}), v.slice(0, 0, 2));
      },
      [&](auto& v, auto& i) { return base.put(i, v.select(1, 0), /*accumulate=*/true); },
  };
  const Tensor source = base.slice(1, 0, 2) * 3 + 1;
  const Tensor indices = at::tensor({3, 1, 3, 3, 0, 1, 2, 3, 2, 2, 2, 2}, at::kLong).view({3, 4});
  for (const Write& write : writes) {
    const auto f = [&](const Tensor& v, const Tensor& i) { return (write(v, i) * weights).sum(); };
    const auto gradient = tower::grad(f);
    Tensor expected;
    for (const Tensor& i : indices.unbind()) {
      Tensor one = at::zeros_like(source);
      for (int64_t k = 0; k < source.numel(); ++k) {
        const Tensor along = at::one_hot(at::scalar_tensor(k, at::kLong), source.numel()).view_as(source);
        one.view({-1})[k] = f(source + along, i) - f(source, i);
      }
      expected = expected.defined() ? at::cat({expected, one.unsqueeze(0)}) : one.unsqueeze(0);
      EXPECT_TRUE(same(gradient(source, i), one));
    }
    const Tensor sources = source.expand({3, 4, 2});
    EXPECT_TRUE(same(tower::vmap(gradient)(sources, indices), expected));
    const auto summed = [&](const Tensor& v) { return tower::vmap(f)(v, indices).sum(); };
    EXPECT_TRUE(same(tower::grad(summed)(sources), expected));
    const auto compiled = tower::compile(tower::vmap(gradient));
    for (int call = 0; call < 3; ++call) EXPECT_TRUE(same(compiled(sources, indices), expected));
  }
}

}  // namespace
