// cond under every transform and nesting. Oracles: a loop over examples with an `if`, closed forms.
#include "tower/cond.h"

#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/transforms.h"

namespace {

// √x where x > 0, else 0: the derivative of the branch not taken is nan.
Tensor root(const Tensor& x) {
  return tower::cond(
      x > 0, [](const Tensor& v) { return v.sqrt(); }, [](const Tensor& v) { return v * 0; }, x);
}

TEST(Cond, AnUnbatchedPredicateRunsOneBranch) {
  int ran = 0;
  const auto f = [&](const Tensor& x) {
    return tower::cond(
        x.sum() > 0, [&](const Tensor& v) { return ++ran, v * 2; }, [&](const Tensor& v) { return ran += 100, v * 3; },
        x);
  };
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(f(x), 2 * x));
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(same(f(-x), -3 * x));
  EXPECT_EQ(ran, 101);
  const auto loss = [&](const Tensor& v) { return f(v).sum(); };
  ran = 0;
  EXPECT_TRUE(same(tower::grad(loss)(x), at::full_like(x, 2)));
  EXPECT_TRUE(same(tower::jvp(f, -x, x).second, 3 * x));
  EXPECT_EQ(ran, 101);
}

TEST(Cond, ABatchedPredicateGivesEachExampleItsBranch) {
  const Tensor x = vec({4, -1, 0, 9});
  EXPECT_TRUE(same(tower::vmap(root)(x), vec({2, 0, 0, 3})));
}

TEST(Cond, NoNanOfTheBranchNotTakenGetsIntoADerivative) {
  const Tensor x = vec({4, -1, 0, 9});
  const Tensor expected = vec({0.25, 0, 0, 1.0 / 6});
  EXPECT_TRUE(same(tower::vmap(tower::grad(root))(x), expected));
  const auto total = [](const Tensor& v) { return tower::vmap(root)(v).sum(); };
  EXPECT_TRUE(same(tower::grad(total)(x), expected));
  const auto slope = [](const Tensor& v) { return tower::jvp(root, v, at::ones_like(v)).second; };
  EXPECT_TRUE(same(tower::vmap(slope)(x), expected));
  EXPECT_TRUE(same(tower::jvp(tower::vmap(root), x, at::ones_like(x)).second, expected));
}

TEST(Cond, SecondDerivativesInEveryOrder) {
  const Tensor x = vec({4, -1, 0, 9});
  const Tensor expected = vec({-1.0 / 32, 0, 0, -1.0 / 108});
  EXPECT_TRUE(same(tower::vmap(tower::grad(tower::grad(root)))(x), expected));
  const auto slope = [](const Tensor& v) { return tower::jvp(root, v, at::ones_like(v)).second; };
  EXPECT_TRUE(same(tower::vmap(tower::grad(slope))(x), expected));
  const auto total = [](const Tensor& v) { return tower::vmap(root)(v).sum(); };
  EXPECT_TRUE(same(tower::hessian(total)(x), at::diag(expected)));
  const auto total_slope = [](const Tensor& v) { return tower::vmap(tower::grad(root))(v).sum(); };
  EXPECT_TRUE(same(tower::grad(total_slope)(x), expected));
  EXPECT_TRUE(same(tower::jvp(tower::vmap(tower::grad(root)), x, at::ones_like(x)).second, expected));
}

TEST(Cond, NestedBatchesAndNestedConds) {
  const auto f = [](const Tensor& x, const Tensor& y) {
    return tower::cond(
        x > 0,
        [](const Tensor& a, const Tensor& b) {
          return tower::cond(
              b > 0, [](const Tensor& u, const Tensor& v) { return u * v; },
              [](const Tensor& u, const Tensor& v) { return u - v; }, a, b);
        },
        [](const Tensor& a, const Tensor& b) { return a.exp() * b; }, x, y);
  };
  const Tensor x = vec({1, -2, 3}), y = vec({2, -1});
  const auto table = tower::vmap(tower::vmap(f, {.in_dims = {std::nullopt, 0}}), {.in_dims = {0, std::nullopt}});
  const Tensor values = table(x, y);
  const auto gradients =
      tower::vmap(tower::vmap(tower::grad<0, 1>(f), {.in_dims = {std::nullopt, 0}}), {.in_dims = {0, std::nullopt}});
  const auto [gx, gy] = gradients(x, y);
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 2; ++j) {
      EXPECT_TRUE(same(values[i][j], f(x[i], y[j])));
      const auto [dx, dy] = tower::grad<0, 1>(f)(x[i], y[j]);
      EXPECT_TRUE(same(gx[i][j], dx));
      EXPECT_TRUE(same(gy[i][j], dy));
    }
  }
}

TEST(Cond, OperandsAndResultsAreTrees) {
  using Pair = std::pair<Tensor, std::vector<Tensor>>;
  const auto f = [](const Tensor& p, const Pair& tree, double scale) {
    return tower::cond(
        p,
        [](const Pair& t, double s) {
          return Pair(t.first * s, {t.second[0], t.second[1] * 2});
        },
        [](const Pair& t, double s) {
          return Pair(t.first, {t.second[1] * s, t.second[0]});
        },
        tree, scale);
  };
  const Tensor p = vec({1, 0}) > 0, a = vec({1, 2}), b = vec({3, 4}), c = vec({5, 6});
  const Pair result = tower::vmap(f, {.in_dims = {0, 0, std::nullopt}})(p, Pair(a, {b, c}), 10.0);
  EXPECT_TRUE(same(result.first, vec({10, 2})));
  EXPECT_TRUE(same(result.second[0], vec({3, 60})));
  EXPECT_TRUE(same(result.second[1], vec({10, 4})));
  const Pair plain = f(p[1], Pair(a, {b, c}), 10.0);
  EXPECT_TRUE(same(plain.second[0], 10 * c));
}

TEST(Cond, CapturedTensorsAreDifferentiatedToo) {
  const Tensor xs = vec({4, -1, 9});
  // w captured by the branches, differentiated outside the vmap, inside it, and both.
  const auto loss = [&](const Tensor& w) {
    return tower::vmap([&](const Tensor& x) {
             return tower::cond(
                 x > 0, [w](const Tensor& v) { return w * w * v.sqrt(); }, [w](const Tensor& v) { return w * v; }, x);
           })(xs)
        .sum();
  };
  const Tensor w = number(3);
  EXPECT_TRUE(same(loss(w), number(9 * 5 - 3)));
  EXPECT_TRUE(same(tower::grad(loss)(w), number(2 * 3 * 5 - 1)));
  EXPECT_TRUE(same(tower::grad(tower::grad(loss))(w), number(10)));
  EXPECT_TRUE(same(tower::jvp(loss, w, number(1)).second, number(29)));
  const auto inside = [&](const Tensor& x) {
    return tower::grad([&](const Tensor& u) {
      return tower::cond(
          x > 0, [u, x](const Tensor&) { return u * u * x.sqrt(); }, [u](const Tensor& v) { return u * v; }, x);
    })(w);
  };
  EXPECT_TRUE(same(tower::vmap(inside)(xs), vec({12, -1, 18})));
}

TEST(Cond, AgreesWithTheLoopAndFiniteDifferencesOnASmoothChoice) {
  const auto f = [](const Tensor& x) {
    return tower::cond(
        x.sum() > 1, [](const Tensor& v) { return (v * v).sin().sum(); },
        [](const Tensor& v) { return v.exp().prod(); }, x);
  };
  const Tensor xs = at::linspace(-1, 2, 12, at::kDouble).view({4, 3});
  const Tensor values = tower::vmap(f)(xs), gradients = tower::vmap(tower::grad(f))(xs),
               hessians = tower::vmap(tower::hessian(f))(xs);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(same(values[i], f(xs[i])));
    EXPECT_TRUE(same(gradients[i], tower::grad(f)(xs[i])));
    EXPECT_TRUE(same(hessians[i], tower::hessian(f)(xs[i])));
    const Tensor step = vec({1e-5, 0, 0});
    EXPECT_NEAR(gradients[i][0].item<double>(), ((f(xs[i] + step) - f(xs[i] - step)) / 2e-5).item<double>(), 1e-8);
  }
}

TEST(Cond, WhatDoesNotFitIsRefused) {
  const Tensor x = vec({1, -1});
  EXPECT_TRUE(support::says(refusal<tower::ArgumentError>([&] {
                              root(vec({1, 2}));
                            }),
                            {"cond", "one element", "Bool [2]"}));
  const auto shapes = [](const Tensor& v) {
    return tower::cond(
        v > 0, [](const Tensor& u) { return u; }, [](const Tensor& u) { return u.expand({2}); }, v);
  };
  EXPECT_TRUE(support::says(refusal<tower::ArgumentError>([&] { tower::vmap(shapes)(x); }),
                            {"cond", "output 0", "Double []", "Double [2]"}));
  const auto dtypes = [](const Tensor& v) {
    return tower::cond(
        v > 0, [](const Tensor& u) { return u; }, [](const Tensor& u) { return u.to(at::kFloat); }, v);
  };
  EXPECT_TRUE(support::says(refusal<tower::ArgumentError>([&] { tower::vmap(dtypes)(x); }), {"cond", "Float"}));
}

TEST(Cond, BranchesThatDifferInMoreThanTensorsAreRefusedWhereExamplesTakeBoth) {
  const auto scaled = [](const Tensor& x) {
    const auto [y, factor] = tower::cond(
        x > 0, [](const Tensor& v) { return std::pair(v, 1.0); },
        [](const Tensor& v) { return std::pair(v * 2, 10.0); }, x);
    return y * factor;
  };
  EXPECT_TRUE(same(scaled(number(-1)), number(-20)));
  const auto keyed = [](const Tensor& x) {
    using Map = std::map<std::string, Tensor>;
    return tower::cond(
        x > 0,
        [](const Tensor& v) {
          return Map{{"a", v}};
        },
        [](const Tensor& v) {
          return Map{{"b", v}};
        },
        x);
  };
  const auto divided = [](const Tensor& x) {
    using Lists = std::pair<Tensors, Tensors>;
    return tower::cond(
        x > 0,
        [](const Tensor& v) {
          return Lists{{v, 2 * v}, {}};
        },
        [](const Tensor& v) {
          return Lists{{3 * v}, {4 * v}};
        },
        x);
  };
  const Tensor x = vec({1, -1});
  const std::initializer_list<const char*> words{"cond", "numbers, keys or sizes", "differs between examples"};
  EXPECT_TRUE(support::says(refusal<tower::ArgumentError>([&] { tower::vmap(scaled)(x); }), words));
  EXPECT_TRUE(support::says(refusal<tower::ArgumentError>([&] { tower::vmap(tower::grad(scaled))(x); }), words));
  EXPECT_TRUE(support::says(refusal<tower::ArgumentError>([&] { tower::vmap(keyed)(x); }), words));
  EXPECT_TRUE(support::says(refusal<tower::ArgumentError>([&] { tower::vmap(divided)(x); }), words));
  EXPECT_EQ(keyed(number(-1)).count("b"), 1U);
}

TEST(Cond, ABranchThatWritesToAnOperandIsRefusedWhereExamplesTakeBoth) {
  const auto f = [](const Tensor& x) {
    const Tensor y = x * 1;
    const auto write = [](const Tensor& v) { return v.mul_(10); };
    const auto keep = [](const Tensor& v) { return v * 1; };
    return tower::cond(x > 0, write, keep, y) + y;
  };
  EXPECT_TRUE(same(f(number(2)), number(40)));
  EXPECT_TRUE(support::says(refusal<tower::MutationError>([&] {
                              tower::vmap(f)(vec({1, -1}));
                            }),
                            {"cond", "true_branch", "operand 0", "Clone"}));
}

TEST(Cond, ABranchThatWritesToACapturedTensorIsRefusedWhereExamplesTakeBoth) {
  const auto writes = [](const Tensor& y) { return y.mul_(2); };
  const auto writes_to_a_view = [](const Tensor& y) { return y.view({1}).mul_(2)[0] * 1; };
  const auto writes_out = [](Tensor y) { return at::sin_out(y, y); };
  const auto check = [](const auto& write) {
    const auto f = [&](const Tensor& x) {
      const Tensor y = x * 1;
      return tower::cond(
          x > 1, [=] { return write(y); }, [=] { return y.sin(); });
    };
    const Tensor x = vec({0.5, 2}), two = number(2);
    const std::initializer_list<const char*> words{
        "level", "cond: true_branch", "aten::", "captured tensor", "differs between examples", "Clone"};
    EXPECT_TRUE(same(f(number(2)), write(two)));
    EXPECT_TRUE(support::says(refusal<tower::MutationError>([&] { tower::vmap(f)(x); }), words));
    EXPECT_TRUE(support::says(refusal<tower::MutationError>([&] { tower::vmap(tower::grad(f))(x); }), words));
    const auto sum = [&](const Tensor& v) { return tower::vmap(f)(v).sum(); };
    EXPECT_TRUE(support::says(refusal<tower::MutationError>([&] { tower::grad(sum)(x); }), words));
  };
  check(writes);
  check(writes_to_a_view);
  check(writes_out);
}

TEST(Cond, ABranchMayWriteToWhatItMakes) {
  const auto f = [](const Tensor& x) {
    return tower::cond(
        x > 1, [](const Tensor& v) { return at::zeros({}, v.options()).add_(v).mul_(v); },
        [](const Tensor& v) { return (v * 1).mul_(3); }, x);
  };
  EXPECT_TRUE(same(tower::vmap(f)(vec({0.5, 2})), vec({1.5, 4})));
  EXPECT_TRUE(same(tower::vmap(tower::grad(f))(vec({0.5, 2})), vec({3, 4})));
}

}  // namespace
