// Patterns of loops whose number of steps depends on values: those of any number of steps. Oracles: dense Jacobians and
// Hessians at points where a loop makes other numbers of steps, and the fixed point in words.
#include "solvers/sparse_cases.h"
#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/cond.h"
#include "tower/loops.h"
#include "tower/sparse.h"
#include "tower/transforms.h"

namespace {

using sparse_cases::TensorFunction;
using tower::Sparsity;
using State = std::tuple<Tensor, Tensor>;

constexpr int64_t kSize = 6;

// At the first no step is made, at the others more and more.
std::vector<Tensor> points() {
  const Tensor x = vec({0.3, -0.4, 0.9, 0.1, -0.7, 0.5});
  std::vector<Tensor> result;
  for (const double factor : {30.0, 4.0, 1.0, 0.3, 0.1, 0.02}) result.push_back(factor * x);
  return result;
}

TensorFunction until_large(const TensorFunction& step) {
  return [step](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s.abs().sum() < 20; },
                             [step](const Tensor& s) { return step(s); }, x);
  };
}

Tensor mask_of(const TensorFunction& f, const Tensor& x) {
  const Sparsity pattern = tower::jacobian_sparsity(f, x);
  EXPECT_TRUE(pattern.taken_for_dense().empty()) << pattern.taken_for_dense()[0];
  return pattern.mask();
}

void expect_within(const Tensor& mask, const Tensor& matrix, const char* name) {
  EXPECT_TRUE(at::logical_or(mask, matrix.reshape(mask.sizes()) == 0).all().item<bool>()) << name << "\n"
                                                                                          << mask << "\n"
                                                                                          << matrix;
}

// The pattern is the same wherever it is found, and holds the derivatives at all points.
void expect_superset(const char* name, const TensorFunction& f) {
  const Tensor mask = mask_of(f, points()[0]);
  for (const Tensor& x : points()) {
    EXPECT_TRUE(at::equal(mask_of(f, x), mask)) << name;
    expect_within(mask, tower::jacfwd(f)(x), name);
  }
  const auto energy = [&](const Tensor& x) { return f(x).sin().sum(); };
  const Tensor second = tower::hessian_sparsity(energy, points()[0]).mask();
  for (const Tensor& x : points()) {
    EXPECT_TRUE(at::equal(tower::hessian_sparsity(energy, x).mask(), second)) << name;
    expect_within(second, tower::hessian(energy)(x), name);
  }
}

TEST(SparsityOfLoops, IsThatOfAnyNumberOfSteps) {
  expect_superset("pointwise", until_large([](const Tensor& s) { return s * (1.5 + s.square() / 10); }));
  expect_superset("a stencil", until_large([](const Tensor& s) { return 1.5 * s + s.roll(1, 0).sin(); }));
  expect_superset("a shift", until_large([](const Tensor& s) {
                    return at::constant_pad_nd(s.narrow(0, 0, kSize - 1), {1, 0}) + 1 + s.abs().sum() * 0;
                  }));
  expect_superset("with what it captured", [](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s.abs().sum() < 20; },
                             [x](const Tensor& s) { return 1.5 * s.sin() + s + x.roll(2, 0).square() + 0.5; },
                             at::zeros_like(x));
  });
  expect_superset("in pairs", [](const Tensor& x) {
    const auto [a, b] = tower::while_loop([](const State& s) { return std::get<1>(s).abs().sum() < 30; },
                                          [](const State& s) {
                                            const auto& [a, b] = s;
                                            return State{b * 1.1, b + a.roll(1, 0).sin() + 0.5};
                                          },
                                          State{x, x.exp()});
    return a + b;
  });
}

TEST(SparsityOfLoops, AShiftAStepIsATriangle) {
  const auto f = until_large([](const Tensor& s) {
    return at::constant_pad_nd(s.narrow(0, 0, kSize - 1), {1, 0}) + 1;
  });
  for (const Tensor& x : points())
    EXPECT_TRUE(at::equal(mask_of(f, x), at::ones({kSize, kSize}, at::kDouble).tril().to(at::kBool)));
}

TEST(SparsityOfLoops, StepsThatMixNothingStayDiagonal) {
  const Tensor diagonal = at::eye(kSize, at::kBool);
  for (const Tensor& x : points()) {
    EXPECT_TRUE(at::equal(mask_of(until_large([](const Tensor& s) { return s * 2 + 0.1; }), x), diagonal));
    const auto energy = [](const Tensor& v) {
      return until_large([](const Tensor& s) { return s + s.square() / 3 + 0.1; })(v).sum();
    };
    const Sparsity second = tower::hessian_sparsity(energy, x);
    EXPECT_TRUE(second.taken_for_dense().empty());
    EXPECT_TRUE(at::equal(second.mask(), diagonal));
  }
}

TEST(SparsityOfLoops, ANumberOfStepsThatDoesNotDependOnXIsExact) {
  const auto f = [](const Tensor& x) {
    return std::get<1>(tower::while_loop([](const State& s) { return std::get<0>(s) < 2; },
                                         [](const State& s) {
                                           return State{std::get<0>(s) + 1, std::get<1>(s).roll(1, 0)};
                                         },
                                         State{at::zeros({}, at::kLong), x}));
  };
  EXPECT_TRUE(at::equal(mask_of(f, points()[0]), at::eye(kSize, at::kBool).roll(2, 0)));
}

TEST(SparsityOfLoops, ACounterMayPointAnywhere) {
  const auto f = [](const Tensor& x) {
    return std::get<1>(tower::while_loop(
        [](const State& s) { return at::logical_and(std::get<1>(s).sum() < 0.5, std::get<0>(s) < kSize); },
        [x](const State& s) {
          const auto& [i, sum] = s;
          return State{i + 1, sum + x.index_select(0, i.view({1})).abs()};
        },
        State{at::zeros({}, at::kLong), at::zeros({1}, at::kDouble)}));
  };
  for (const Tensor& x : points()) {
    const Tensor mask = tower::jacobian_sparsity(f, x).mask();
    for (const Tensor& other : points()) expect_within(mask, tower::jacfwd(f)(other), "a counter");
  }
}

TEST(SparsityOfLoops, WhatAStepKeepsIsConstant) {
  const Tensor band = at::ones({kSize, kSize}, at::kDouble).tril(1).triu(0);
  const auto f = [&](const Tensor& x) {
    return std::get<1>(tower::while_loop([](const State& s) { return std::get<1>(s).abs().sum() < 20; },
                                         [](const State& s) {
                                           const auto& [matrix, v] = s;
                                           return State{matrix, v + at::mv(matrix, v).abs() + 0.1};
                                         },
                                         State{band, x}));
  };
  EXPECT_TRUE(at::equal(mask_of(f, points()[0]), at::ones({kSize, kSize}, at::kDouble).triu().to(at::kBool)));
}

TEST(SparsityOfLoops, NestedOnes) {
  const auto inner = until_large([](const Tensor& s) { return 1.2 * s + s.roll(2, 0).sin() + 0.1; });
  expect_superset("a loop in a loop", [inner](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s.abs().sum() < 40; },
                             [inner](const Tensor& s) { return 1.3 * inner(s); }, x);
  });
  const Tensor mask = mask_of(
      [inner](const Tensor& x) {
        return tower::while_loop([](const Tensor& s) { return s.abs().sum() < 40; },
                                 [inner](const Tensor& s) { return 1.3 * inner(s); }, x);
      },
      points()[2]);
  Tensor expected = at::eye(kSize, at::kBool);
  for (const int64_t by : {2, 4}) expected = expected | at::eye(kSize, at::kBool).roll(by, 0);
  EXPECT_TRUE(at::equal(mask, expected)) << mask;
  expect_superset("a choice in a loop", until_large([](const Tensor& s) {
                    return tower::cond(
                        s.sum() > 2, [](const Tensor& v) { return 1.5 * v + 0.2; },
                        [](const Tensor& v) { return 1.5 * v + v.roll(3, 0).sin() + 0.3; }, s);
                  }));
}

TEST(SparsityOfLoops, OfEachExampleUnderVmap) {
  const auto rows = [](const Tensor& x) {
    return tower::vmap([](const Tensor& row) {
             return tower::while_loop([](const Tensor& s) { return s.abs().sum() < 7; },
                                      [](const Tensor& s) { return 1.5 * s + s.roll(1, 0).sin() + 0.1; }, row);
           })(x.view({2, 3}))
        .flatten();
  };
  const Tensor block = at::ones({3, 3}, at::kBool);
  for (const Tensor& x : points()) EXPECT_TRUE(at::equal(mask_of(rows, x), at::block_diag({block, block})));
  expect_superset("under vmap", rows);
  const auto shared = [](const Tensor& x) {
    const auto one = [x](const Tensor& factor) {
      return tower::while_loop([](const Tensor& s) { return s.abs().sum() < 20; },
                               [factor, x](const Tensor& s) { return factor * s + x.roll(1, 0).sin() + 0.6; }, x);
    };
    return tower::vmap(one)(vec({1.1, 1.4})).sum(0);
  };
  expect_superset("a start that all examples share", shared);
}

TEST(SparsityOfLoops, UnderOtherTransforms) {
  const auto f = until_large([](const Tensor& s) { return 1.5 * s + s.roll(3, 0).sin() + 0.1; });
  expect_superset("a tangent of a loop", [f](const Tensor& x) { return tower::jvp(f, x, x.cos()).second; });
  expect_superset("a gradient of a loop", [f](const Tensor& x) {
    return tower::grad([&](const Tensor& v) { return f(v).square().sum(); })(x);
  });
}

TEST(SparsityOfLoops, OneThatIsTried) {
  expect_superset("try_while_loop", [](const Tensor& x) {
    return tower::try_while_loop([](const Tensor& s) { return s.abs().sum() < 20; },
                                 [](const Tensor& s) { return 1.5 * s + 0.1; }, x, {.max_steps = 3})
        .state;
  });
}

TEST(SparsityOfLoops, AStepThatCannotBeTakenHereIsDenseAndNamed) {
  const auto f = [](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s.diagonal().sum() > 5; },
                             [](const Tensor& s) { return at::linalg_cholesky(s); }, x.view({2, 2}));
  };
  const Sparsity pattern = tower::jacobian_sparsity(f, vec({-1, 0, 0, -1}));
  EXPECT_EQ(pattern.num_entries(), 16);
  EXPECT_EQ(pattern.taken_for_dense(), (std::vector<std::string>{"while_loop"}));
}

}  // namespace
