// The engine: levels are told apart by identity, and what LibTorch means outside a transform it means inside.
#include <ATen/core/grad_mode.h>

#include <thread>

#include "support/libtorch_duals.h"
#include "support/prelude.h"
#include "tower/substitution.h"

namespace {

template <class F>
Tensor gradient(F f, const Tensor& x) {
  return td::grad(of_one(f), {0})({x})[0];
}
/// The derivative of `f` along ones.
template <class F>
Tensor slope(F f, const Tensor& x) {
  return td::jvp(of_one(f), {x}, {at::ones_like(x)}).second[0];
}
template <class F>
Tensor mapped(F f, const Tensor& x) {
  return td::vmap(of_one(f), {0}, {0})({x})[0];
}

// Perturbation confusion: d/dx (x · d/dy (x + y)) = 1, whichever modes the two derivatives are taken in.

TEST(LevelsAreToldApart, WhereAnInnerDerivativeCapturesAnOuterVariable) {
  const auto gg = gradient(
      [](const Tensor& x) { return x * gradient([&](const Tensor& y) { return x + y; }, number(1)); }, number(3));
  const auto gj =
      gradient([](const Tensor& x) { return x * slope([&](const Tensor& y) { return x + y; }, number(1)); }, number(3));
  const auto jg =
      slope([](const Tensor& x) { return x * gradient([&](const Tensor& y) { return x + y; }, number(1)); }, number(3));
  const auto jj =
      slope([](const Tensor& x) { return x * slope([&](const Tensor& y) { return x + y; }, number(1)); }, number(3));
  for (const Tensor& d : {gg, gj, jg, jj}) EXPECT_TRUE(same(d, number(1)));
}

TEST(LevelsAreToldApart, WhereBothVariablesAreMultiplied) {
  // d/dx (x · d/dy (x · y²) at y = x) where y is x itself: x · 2x·x = 2x³, so 6x².
  const auto inner = [](const Tensor& x) { return gradient([&](const Tensor& y) { return x * y * y; }, x); };
  EXPECT_TRUE(same(gradient([&](const Tensor& x) { return x * inner(x); }, number(3)), number(54)));
  const auto forward = [](const Tensor& x) { return slope([&](const Tensor& y) { return x * y * y; }, x); };
  EXPECT_TRUE(same(slope([&](const Tensor& x) { return x * forward(x); }, number(3)), number(54)));
}

TEST(LevelsAreToldApart, AmongThreeCapturedVariables) {
  // x y z: third mixed derivative one, each taken at another level.
  const auto d = gradient(
      [](const Tensor& x) {
        return slope([&](const Tensor& y) { return gradient([&](const Tensor& z) { return x * y * z; }, number(5)); },
                     number(2));
      },
      number(3));
  EXPECT_TRUE(same(d, number(1)));
}

TEST(LevelsAreToldApart, WhereAnInnerMapCapturesAnOuterExample) {
  const Tensor x = vec({1, 2, 3}), y = vec({10, 20});
  const Tensor z = mapped([&](const Tensor& a) { return mapped([&](const Tensor& b) { return a * b; }, y); }, x);
  EXPECT_TRUE(same(z, x.unsqueeze(1) * y));
  const Tensor flipped = mapped([&](const Tensor& a) { return mapped([&](const Tensor& b) { return b - a; }, y); }, x);
  EXPECT_TRUE(same(flipped, y - x.unsqueeze(1)));
}

TEST(LevelsAreToldApart, WhereAMapWithinAGradientUsesTheGradientsVariable) {
  const Tensor w = vec({1, 2, 3});
  const auto f = [&](const Tensor& x) { return mapped([&](const Tensor& a) { return a * x * x; }, w).sum(); };
  EXPECT_TRUE(same(gradient(f, number(2)), number(24)));
}

TEST(DeepNesting, OfTheSineGivesItsDerivatives) {
  Function f = of_one([](const Tensor& x) { return x.sin(); });
  const Tensor x = number(0.7);
  for (int order = 1; order <= 6; ++order) {
    f = order % 2 == 0 ? td::grad(f, {0}) : td::jacfwd(f, {0});
    const Tensor right = order % 2 == 0 ? x.sin() : x.cos();
    EXPECT_TRUE(same(f({x})[0], (order / 2) % 2 == 0 ? right : -right)) << order;
  }
}

TEST(DeepNesting, OfDerivativesOverAMapIsTheDerivativeOfEveryExample) {
  const Tensor x = vec({0.1, 0.5, 1.2});
  const auto third = [](const Tensor& a) {
    return gradient(
        [](const Tensor& b) {
          return slope([](const Tensor& c) { return gradient([](const Tensor& d) { return (d * d).exp(); }, c); }, b);
        },
        a);
  };
  EXPECT_TRUE(same(mapped(third, x), (8 * x * x * x + 12 * x) * (x * x).exp()));
}

// no_grad and detach belong to the derivative of the moment.

TEST(NoGrad, StopsTheDerivativeOfTheInnermostGradient) {
  const auto f = [](const Tensor& x) {
    Tensor still;
    {
      at::NoGradGuard off;
      still = x * x;
    }
    return still * x;
  };
  EXPECT_TRUE(same(gradient(f, number(3)), number(9)));
  support::expect_intact();
}

TEST(NoGrad, AroundATransformDoesNotReachInside) {
  at::NoGradGuard off;
  EXPECT_TRUE(same(gradient([](const Tensor& x) { return x * x; }, number(3)), number(6)));
}

TEST(NoGrad, InsideAnInnerGradientLeavesTheOuterTangentAlone) {
  const auto inner = [](const Tensor& x) {
    return gradient(
        [](const Tensor& y) {
          Tensor still;
          {
            at::NoGradGuard off;
            still = y * y;
          }
          return still * y;
        },
        x);
  };
  EXPECT_TRUE(same(inner(number(3)), number(9)));         // y² is a number here
  EXPECT_TRUE(same(slope(inner, number(3)), number(6)));  // but forward mode has no no_grad
}

TEST(Detach, StopsDerivativesAtEveryLevel) {
  const auto f = [](const Tensor& x) { return x.detach() * x; };
  EXPECT_TRUE(same(gradient(f, number(3)), number(3)));
  EXPECT_TRUE(same(gradient([&](const Tensor& x) { return gradient(f, x); }, number(3)), number(0)));
  EXPECT_TRUE(same(mapped([&](const Tensor& x) { return gradient(f, x); }, vec({1, 2})), vec({1, 2})));
}

TEST(SymbolicZeros, ComeOutAsZerosOfTheRightShape) {
  const auto f = [](const Tensors& in) { return Tensors{in[0].sum(), at::ones({2}, at::kDouble)}; };
  const Tensors x{vec({1, 2, 3}), at::ones({2, 2}, at::kFloat)};
  const auto [y, pullback] = td::vjp(f, x);
  const Tensors g = pullback({Tensor(), Tensor()});
  EXPECT_TRUE(same(g[0], vec({0, 0, 0})));
  EXPECT_TRUE(same(g[1], at::zeros({2, 2}, at::kFloat)));
  const Tensors t = td::jvp(f, x, {Tensor(), Tensor()}).second;
  EXPECT_TRUE(same(t[0], number(0)));
  EXPECT_TRUE(same(t[1], vec({0, 0})));
}

// LibTorch's own autograd outside.

TEST(OutsideAutograd, FlowsThroughEveryTransform) {
  const auto cube = of_one([](const Tensor& x) { return (x * x * x).sum(); });
  const Tensor at3 = vec({1, 2, 3});
  const auto backward = [&](const std::function<Tensor(const Tensor&)>& f) {
    const Tensor x = at3.clone().requires_grad_();
    f(x).sum().backward();
    return x.grad();
  };
  EXPECT_TRUE(same(backward([&](const Tensor& x) { return td::vmap(cube, {0}, {0})({x})[0]; }), 3 * at3 * at3));
  EXPECT_TRUE(same(backward([&](const Tensor& x) { return td::grad(cube, {0})({x})[0]; }), 6 * at3));
  EXPECT_TRUE(
      same(backward([&](const Tensor& x) { return td::jvp(cube, {x}, {at::ones_like(at3)}).second[0]; }), 6 * at3));
  EXPECT_TRUE(
      same(backward([&](const Tensor& x) { return td::vmap(td::grad(cube, {0}), {0}, {0})({x})[0]; }), 6 * at3));
  EXPECT_TRUE(same(backward([&](const Tensor& x) { return td::hessian(cube, {0})({x})[0]; }), vec({6, 6, 6})));
  EXPECT_TRUE(same(backward([&](const Tensor& x) { return td::linearize(cube, {x}).second({at::ones_like(at3)})[0]; }),
                   6 * at3));
  support::expect_intact();
}

TEST(OutsideAutograd, ReachesCapturedTensors) {
  const Tensor w = vec({2, 3}).requires_grad_(), x = vec({5, 7});
  const Tensor g = gradient([&](const Tensor& v) { return (w * w * v * v).sum(); }, x);  // 2 w² v
  g.sum().backward();
  EXPECT_TRUE(same(g.detach(), vec({40, 126})));
  EXPECT_TRUE(same(w.grad(), 4 * w.detach() * x));
  const Tensor u = number(4).requires_grad_();
  mapped([&](const Tensor& v) { return v * u * u; }, x).sum().backward();
  EXPECT_TRUE(same(u.grad(), number(8 * 12)));
}

TEST(OutsideAutograd, OfATangentReachesTheTangent) {
  const Tensor t = vec({1, 1}).requires_grad_(), x = vec({2, 3});
  td::jvp(of_one([](const Tensor& v) { return v * v; }), {x}, {t}).second[0].sum().backward();
  EXPECT_TRUE(same(t.grad(), 2 * x));
}

TEST(OutsideForwardMode, ItsTangentsFlowThroughEveryTransform) {
  const auto cube = of_one([](const Tensor& x) { return (x * x * x).sum(); });
  const Tensor at3 = vec({1, 2, 3}), direction = vec({1, -1, 2});
  const auto tangent = [&](const std::function<Tensor(const Tensor&)>& f) {
    const support::LibtorchForwardMode mode;
    return mode.tangent(f(mode.dual(at3, direction))).clone();
  };
  EXPECT_TRUE(
      same(tangent([&](const Tensor& x) { return td::vmap(cube, {0}, {0})({x})[0]; }), 3 * at3 * at3 * direction));
  EXPECT_TRUE(same(tangent([&](const Tensor& x) { return td::grad(cube, {0})({x})[0]; }), 6 * at3 * direction));
  EXPECT_TRUE(same(tangent([&](const Tensor& x) { return td::jvp(cube, {x}, {at::ones_like(at3)}).second[0]; }),
                   (6 * at3 * direction).sum()));
  EXPECT_TRUE(same(tangent([&](const Tensor& x) { return td::hessian(cube, {0})({x})[0]; }), (6 * direction).diag()));
  const auto captures = [&](const Tensor& w) {
    return gradient([&](const Tensor& v) { return (w * v * v).sum(); }, at3);
  };
  EXPECT_TRUE(same(tangent(captures), 2 * at3 * direction));
  support::expect_intact();
}

// Threads.

TEST(Threads, RunTransformsAtTheSameTimeWithoutMeeting) {
  const auto run = [](int seed) {
    const Tensor x = at::arange(1, 13, at::kDouble).view({4, 3}) * (0.1 + seed);
    const Tensor expected = 3 * x * x + x.cos() + seed;
    for (int repeat = 0; repeat < 20; ++repeat) {
      const auto loss = of_one([&](const Tensor& v) { return (v * v * v + v.sin() + seed * v).sum(); });
      if (!same(td::vmap(td::grad(loss, {0}), {0}, {0})({x})[0], expected)) return false;
    }
    return tower::top() == nullptr;
  };
  std::vector<char> right(8, 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&, i] { right[static_cast<size_t>(i)] = run(i); });
  for (auto& t : threads) t.join();
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(right[i]) << "thread " << i;
}

TEST(Threads, APullbackCanBeCalledOnAnotherThread) {
  const auto [y, pullback] = td::vjp(of_one([](const Tensor& x) { return x.exp(); }), {vec({0, 1})});
  Tensor g;
  std::thread([&g, &pullback = pullback] { g = pullback({vec({2, 3})})[0]; }).join();
  EXPECT_TRUE(same(g, vec({2, 3}) * vec({0, 1}).exp()));
}

// Substitution.

TEST(Substitutions, StandForTensorsByIdentityAndNest) {
  const Tensor held = vec({1, 2}), equal = vec({1, 2});
  const auto doubled = [&] { return held * 2; };
  {
    tower::Substitution outer({{held, vec({10, 20})}});
    EXPECT_TRUE(same(doubled(), vec({20, 40})));
    EXPECT_TRUE(same(equal * 2, vec({2, 4})));
    {
      tower::Substitution inner({{held, vec({100, 200})}});
      EXPECT_TRUE(same(doubled(), vec({200, 400})));
    }
    EXPECT_TRUE(same(doubled(), vec({20, 40})));
  }
  EXPECT_TRUE(same(doubled(), vec({2, 4})));
  support::expect_intact();
}

TEST(Substitutions, CarryTransformedValues) {
  const Tensor held = vec({1, 2});
  const auto model = [&](const Tensor& x) { return (held * held * x).sum(); };
  const auto loss = of_one([&](const Tensor& w) {
    tower::Substitution stand_in({{held, w}});
    return model(vec({3, 4}));
  });
  EXPECT_TRUE(same(td::grad(loss, {0})({vec({5, 6})})[0], vec({30, 48})));
  const Tensor many = vec({1, 2, 3, 4}).view({2, 2});
  EXPECT_TRUE(same(td::vmap(td::grad(loss, {0}), {0}, {0})({many})[0], 2 * many * vec({3, 4})));
  EXPECT_TRUE(same(held, vec({1, 2})));
  support::expect_intact();
}

TEST(Substitutions, EndWithAnException) {
  const Tensor held = vec({1, 2});
  EXPECT_THROW(
      {
        tower::Substitution stand_in({{held, vec({5, 6})}});
        throw std::runtime_error("stop");
      },
      std::runtime_error);
  EXPECT_TRUE(same(held + 0, vec({1, 2})));
  support::expect_intact();
}

}  // namespace
