// What loops do besides what they compute: idle examples, trees, draws, ends, refusals.
#include "tower/loops.h"

#include <ATen/core/grad_mode.h>

#include <limits>

#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/cond.h"
#include "tower/transforms.h"

namespace {

using tower::Checkpoints;

struct State {
  Tensor x, error;
  double factor;
  std::map<std::string, Tensor> extra;
};
constexpr auto tower_fields(const State&) {
  return std::tuple(&State::x, &State::error, &State::factor, &State::extra);
}

// ---- outside of transforms -----------------------------------------------------------------------------------------

TEST(WhileLoop, OutsideOfTransformsItIsTheLoopThatItLooksLike) {
  int steps = 0;
  const Tensor last = tower::while_loop([](const Tensor& s) { return s.item<double>() < 10; },
                                        [&](const Tensor& s) { return ++steps, s * 2; }, number(1));
  EXPECT_TRUE(same(last, number(16)));
  EXPECT_EQ(steps, 4);
}

TEST(WhileLoop, AStateIsATreeWhoseStaticPartsStay) {
  const auto run = [](const Tensor& x) {
    const State start{x, at::ones_like(x), 0.5, {{"sum", at::zeros_like(x)}}};
    const State last = tower::while_loop(
        [](const State& s) { return s.error > 1e-3; },
        [](const State& s) {
          return State{s.x + s.error, s.error * s.factor, s.factor, {{"sum", s.extra.at("sum") + s.x}}};
        },
        start);
    return std::pair(last.x, last.extra.at("sum"));
  };
  const auto [x, sum] = run(number(1));
  EXPECT_TRUE(same(x, number(3 - std::ldexp(1, -9))));
  const auto [xs, sums] = tower::vmap(run)(vec({1, 1}));
  EXPECT_TRUE(same(xs[1], x));
  EXPECT_TRUE(same(sums[0], sum));
}

TEST(ForiLoop, NoStepsGiveTheStart) {
  const auto never = [](int64_t, const Tensor& s) { return s * at::full({}, std::nan(""), at::kDouble); };
  EXPECT_TRUE(same(tower::fori_loop(3, 3, never, number(2)), number(2)));
  EXPECT_TRUE(same(tower::fori_loop(3, -1, never, number(2)), number(2)));
}

// ---- idle examples -------------------------------------------------------------------------------------------------

// x loses one until it is not positive; the step's derivative by w and by x is infinite or nan where x <= 0.
const auto draining = [](const Tensor& x, const Tensor& w) {
  return tower::while_loop([](const std::array<Tensor, 2>& s) { return s[0] > 0; },
                           [w](const std::array<Tensor, 2>& s) {
                             return std::array<Tensor, 2>{s[0] - 1, s[1] + w * s[0].sqrt() + s[0].log() / s[0]};
                           },
                           std::array<Tensor, 2>{x, x * w})[1];
};
const Tensor drained = vec({2.5, 0, -1, 1});  // three steps, none, none, one
const double by_hand = std::sqrt(2.5) + std::sqrt(1.5) + std::sqrt(0.5) + 1 + 2.5 + 0 - 1 + 1;  // slope of the sum

TEST(WhileLoop, IdleExamplesContributeExactlyNothingToASharedGradient) {
  const auto total = [](const Tensor& w) {
    return tower::vmap([w](const Tensor& x) { return draining(x, w); })(drained).sum();
  };
  EXPECT_TRUE(same(tower::grad(total)(number(0.3)), number(by_hand)));
  EXPECT_TRUE(same(tower::jvp(total, number(0.3), number(1)).second, number(by_hand)));
  EXPECT_TRUE(same(tower::grad(tower::grad(total))(number(0.3)), number(0)));
  EXPECT_TRUE(same(tower::jvp(tower::grad(total), number(0.3), number(1)).second, number(0)));
}

TEST(WhileLoop, IdleExamplesKeepTheirStateAndItsDerivatives) {
  const Tensor w = number(0.3);
  const auto one = [w](const Tensor& x) { return draining(x, w); };
  const Tensor slopes = tower::vmap(tower::grad(one))(drained), curvatures = tower::vmap(tower::hessian(one))(drained);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(same(slopes[i], tower::grad(one)(drained[i])));
    EXPECT_TRUE(same(curvatures[i], tower::hessian(one)(drained[i])));
  }
  EXPECT_TRUE(same(slopes[1], w));
  EXPECT_TRUE(same(curvatures[2], number(0)));
}

TEST(WhileLoop, LibTorchsGradientOfWhatTheStateHoldsIsFiniteToo) {
  const Tensor w = number(0.3).requires_grad_();
  tower::vmap(draining)(drained, w.expand({4})).sum().backward();
  EXPECT_TRUE(same(w.grad(), number(by_hand)));
  const std::string text = refusal<tower::DerivativeError>([&] {
    tower::vmap([w](const Tensor& x) {
      return tower::while_loop([](const Tensor& s) { return s > 0; }, [w](const Tensor& s) { return s - w; }, x);
    })(drained);
  });
  EXPECT_TRUE(says(text, {"while_loop", "captured", "requires grad", "operand", "no_grad"}));
}

TEST(WhileLoop, ABatchOfNoExamplesMakesNoStep) {
  const auto f = [](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s.sum() < 9; }, [](const Tensor& s) { return s + 1; }, x);
  };
  EXPECT_EQ(tower::vmap(f)(at::zeros({0, 2}, at::kDouble)).sizes(), at::IntArrayRef({0, 2}));
  const auto slope = tower::grad([f](const Tensor& x) { return f(x).sum(); });
  EXPECT_EQ(tower::vmap(slope)(at::zeros({0, 2}, at::kDouble)).sizes(), at::IntArrayRef({0, 2}));
}

TEST(WhileLoop, ABatchStopsWithItsLastExample) {
  int steps = 0;
  const auto f = [&](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s < 5; }, [&](const Tensor& s) { return ++steps, s + 1; }, x);
  };
  EXPECT_TRUE(same(tower::vmap(f)(vec({0, 4.5, 7})), vec({5, 5.5, 7})));
  EXPECT_EQ(steps, 5);
}

TEST(Loops, NothingKeepsWhatALoopCapturedWhenItIsOver) {
  const Tensor xs = drained.clone(), w = number(0.3);
  for (const Checkpoints few : {Checkpoints::all(), Checkpoints(2)}) {
    const auto total = [&](const Tensor& v) {
      return tower::vmap([v, few](const Tensor& x) {
               return tower::while_loop([](const Tensor& s) { return s > 0; },
                                        [v, x](const Tensor& s) { return s - v - x.square(); }, x,
                                        {.checkpoints = few});
             })(xs)
          .sum();
    };
    auto [y, pullback] = tower::vjp(total, w);
    pullback(number(1));
    tower::vmap(tower::grad(total))(w.expand({2}));
  }
  EXPECT_EQ(w.use_count(), 1U);
  EXPECT_EQ(xs.use_count(), 1U);
}

// ---- random numbers ------------------------------------------------------------------------------------------------

// Rounds of multiplication by random numbers; the derivative says what they were.
Tensor random_product(const Tensor& x, const Tensor& rounds, Checkpoints checkpoints) {
  return tower::while_loop([rounds](const std::pair<Tensor, Tensor>& s) { return s.second < rounds; },
                           [](const std::pair<Tensor, Tensor>& s) {
                             return std::pair(s.first * (1 + at::rand_like(s.first)), s.second + 1);
                           },
                           std::pair(x, at::zeros({}, at::kLong)), {.checkpoints = checkpoints})
      .first;
}

TEST(Loops, TheBackwardPassDrawsTheSameNumbersAgain) {
  const Tensor xs = vec({1, 2, 3}), rounds = at::tensor({1, 4, 2}, at::kLong);
  for (const Checkpoints few : {Checkpoints::all(), Checkpoints(1), Checkpoints::automatic()}) {
    for (const auto randomness : {tower::Randomness::different, tower::Randomness::same}) {
      const auto f = [&](const Tensor& x) {
        return tower::vmap([few](const Tensor& v, const Tensor& n) { return random_product(v, n, few); },
                           {.randomness = randomness})(x, rounds);
      };
      at::manual_seed(7);
      const auto [ys, pullback] = tower::vjp(f, xs);
      const Tensor next = at::rand({3});
      EXPECT_TRUE(same(pullback(at::ones_like(ys)), ys / xs));
      EXPECT_FALSE(at::equal(at::rand({3}), next));
      at::manual_seed(7);
      EXPECT_TRUE(same(f(xs), ys));
      EXPECT_TRUE(at::equal(at::rand({3}), next)) << "the backward pass took numbers from those to come";
    }
  }
}

TEST(Cond, TheBackwardPassDrawsTheSameNumbersAgain) {
  const auto f = [](const Tensor& x) {
    return tower::cond(
        x > 0, [](const Tensor& v) { return v * at::rand_like(v); },
        [](const Tensor& v) { return v * at::randn_like(v); }, x);
  };
  const Tensor xs = vec({1, -2, 3});
  const auto [ys, pullback] =
      tower::vjp([&](const Tensor& x) { return tower::vmap(f, {.randomness = tower::Randomness::different})(x); }, xs);
  EXPECT_TRUE(same(pullback(at::ones_like(ys)), ys / xs));
}

// ---- ends ----------------------------------------------------------------------------------------------------------

TEST(WhileLoop, MoreStepsThanAllowedAreAnError) {
  const auto f = [](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s < 10; }, [](const Tensor& s) { return s + 1; }, x,
                             {.max_steps = 8});
  };
  EXPECT_TRUE(same(f(number(2)), number(10)));
  EXPECT_TRUE(says(refusal<tower::MaxStepsError>([&] { f(number(1)); }), {"while_loop", "8 steps", "try_while_loop"}));
  const Tensor xs = vec({5, 0, 1, 20});
  EXPECT_TRUE(says(refusal<tower::MaxStepsError>([&] { tower::vmap(f)(xs); }), {"for 2 of 4 examples"}));
  EXPECT_TRUE(says(refusal<tower::MaxStepsError>([&] { tower::vmap(tower::grad(f))(xs); }), {"for 2 of 4 examples"}));
}

TEST(WhileLoop, OrAFlagForEachExample) {
  const auto f = [](const Tensor& x) {
    return tower::try_while_loop([](const Tensor& s) { return s < 10; }, [](const Tensor& s) { return s * 2; }, x,
                                 {.max_steps = 3});
  };
  const auto [state, finished, steps] = tower::vmap(f)(vec({6, 1, 2, 20}));
  EXPECT_TRUE(same(state, vec({12, 8, 16, 20})));
  EXPECT_TRUE(at::equal(finished, vec({1, 0, 1, 1}).to(at::kBool)));
  EXPECT_TRUE(at::equal(steps, at::tensor({1, 3, 3, 0}, at::kLong)));
  const auto value = [f](const Tensor& x) { return f(x).state; };
  EXPECT_TRUE(same(tower::vmap(tower::grad(value))(vec({6, 1, 2, 20})), vec({2, 8, 8, 1})));
}

TEST(Scan, OfNoStepsKnowsTheShapesOfItsOutputs) {
  const auto step = [](const Tensor& carry, const Tensor& x) {
    return std::pair(carry + x.sum(), at::rand({2}, at::kDouble) * x[0]);
  };
  at::manual_seed(1);
  const auto [last, outputs] = tower::scan(step, number(1), at::zeros({0, 3}, at::kDouble));
  EXPECT_TRUE(same(last, number(1)));
  EXPECT_EQ(outputs.sizes(), at::IntArrayRef({0, 2}));
  const Tensor drawn = at::rand({1});
  at::manual_seed(1);
  EXPECT_TRUE(at::equal(at::rand({1}), drawn));
}

TEST(Scan, WithoutInputsMakesAsManyStepsAsItIsTold) {
  const auto step = [](const Tensor& s) { return std::pair(s * 2, std::tuple(s, s + 1)); };
  const auto [last, outputs] = tower::scan(step, number(1), {.length = 3});
  EXPECT_TRUE(same(last, number(8)));
  EXPECT_TRUE(same(std::get<1>(outputs), vec({2, 3, 5})));
}

TEST(AssociativeScan, IsWhatLibTorchHasOperatorsFor) {
  for (const int64_t length : {0, 1, 2, 3, 8, 13}) {
    const Tensor x = waves({2, length, 3}) + 1;
    const auto add = [](const Tensor& a, const Tensor& b) { return a + b; };
    const auto multiply = [](const Tensor& a, const Tensor& b) { return a * b; };
    EXPECT_TRUE(same(tower::associative_scan(add, x, {.dim = 1}), x.cumsum(1)));
    EXPECT_TRUE(same(tower::associative_scan(multiply, x, {.dim = -2}), x.cumprod(1)));
    EXPECT_TRUE(same(tower::associative_scan(add, x, {.dim = 1, .reverse = true}), x.flip(1).cumsum(1).flip(1)));
  }
}

// ---- checkpoints ---------------------------------------------------------------------------------------------------

TEST(Loops, FewCheckpointsChangeNoBitOfValuesAndGradients) {
  const Tensor xs = waves({37});
  const auto run = [&](Checkpoints few) {
    const auto f = [few](const Tensor& start, const Tensor& inputs) {
      const auto step = [](const Tensor& h, const Tensor& x) {
        const Tensor next = (h.sin() + x * h).tanh();
        return std::pair(next, next * 2);
      };
      auto [last, all] = tower::scan(step, start, inputs, {.checkpoints = few});
      return tower::while_loop([](const Tensor& s) { return s < 30; }, [](const Tensor& s) { return s * 1.1 + 0.01; },
                               last + 1, {.checkpoints = few}) +
             all.sum();
    };
    return std::tuple_cat(std::tuple(f(number(0.3), xs)), tower::grad<0, 1>(f)(number(0.3), xs));
  };
  const auto expected = run(Checkpoints::all());
  for (const Checkpoints few :
       {Checkpoints(1), Checkpoints(3), Checkpoints(36), Checkpoints(100), Checkpoints::automatic()}) {
    const auto actual = run(few);
    EXPECT_TRUE(at::equal(std::get<0>(actual), std::get<0>(expected)));
    EXPECT_TRUE(at::equal(std::get<1>(actual), std::get<1>(expected)));
    EXPECT_TRUE(at::equal(std::get<2>(actual), std::get<2>(expected)));
  }
}

// With c states and n <= (c + r over c) steps, none is evaluated more than r times to get there and once for the tape,
// beside the first evaluation, of values.
TEST(Loops, StepsAreEvaluatedAsOftenAsRevolveSays) {
  const auto most = [](int64_t steps, Checkpoints few) {
    auto times = std::make_shared<std::map<int64_t, int>>();
    const auto f = [=](const Tensor& x) {
      return tower::fori_loop(0, steps, [times](int64_t i, const Tensor& s) { return ++(*times)[i], s.sin(); }, x,
                              {.checkpoints = few});
    };
    tower::grad(f)(number(1));
    int all = 0, highest = 0;
    for (const auto& [step, count] : *times) all += count, highest = std::max(highest, count);
    return std::pair(highest, all);
  };
  EXPECT_EQ(most(56, Checkpoints(3)).first, 6);  // (3 + 5 over 3) = 56
  EXPECT_EQ(most(57, Checkpoints(3)).first, 7);
  EXPECT_EQ(most(561, Checkpoints(32)).first, 3);  // (32 + 2 over 2) = 561
  EXPECT_EQ(most(1000, Checkpoints::automatic()).first, 4);
  EXPECT_EQ(most(100, Checkpoints::all()).second, 100);
}

TEST(Loops, NumbersOfCheckpointsThatAreNone) {
  const auto f = [](const Tensor& x) {
    return tower::fori_loop(0, 3, [](int64_t, const Tensor& s) { return s.sin(); }, x, {.checkpoints = 0});
  };
  EXPECT_TRUE(
      says(refusal<tower::ArgumentError>([&] { tower::grad(f)(number(1)); }), {"checkpoints", "0", "at least one"}));
}

// ---- refusals ------------------------------------------------------------------------------------------------------

TEST(WhileLoop, APredicateIsABoolOfOneElement) {
  const auto run = [](auto predicate) {
    return refusal<tower::ArgumentError>([&] {
      tower::while_loop(
          predicate, [](const Tensor& s) { return s; }, vec({1, 2}));
    });
  };
  EXPECT_TRUE(says(run([](const Tensor& s) { return s > 0; }), {"while_loop", "predicate", "Bool [2]", "any()"}));
  EXPECT_TRUE(says(run([](const Tensor& s) { return s.sum(); }), {"while_loop", "predicate", "Double []"}));
}

TEST(Loops, AStepThatChangesShapeOrDtypeIsRefusedByTheNameOfTheLeaf) {
  using Pair = std::pair<Tensor, std::vector<Tensor>>;
  const Pair start{number(1), {number(2), vec({1, 2})}};
  const auto fori = [&](auto body) {
    return refusal<tower::ArgumentError>([&] { tower::fori_loop(0, 3, body, start); });
  };
  EXPECT_TRUE(says(fori([](int64_t, const Pair& s) {
                     return Pair{s.first, {s.second[0], s.second[1].sum()}};
                   }),
                   {"fori_loop", "state[1][1]", "Double [2]", "Double []"}));
  EXPECT_TRUE(says(fori([](int64_t, const Pair& s) {
                     return Pair{s.first.to(at::kFloat), s.second};
                   }),
                   {"fori_loop", "state[0]", "Double []", "Float []"}));
  const std::string scanned = refusal<tower::ArgumentError>([&] {
    tower::scan([](const Tensor& c, const Tensor& x) { return std::pair(c + x, x); }, number(1), numbers({2, 3}));
  });
  EXPECT_TRUE(says(scanned, {"scan", "carry", "Double []", "Double [3]"}));
  const std::string listed = refusal<tower::ArgumentError>([&] {
    td::while_loop([](const Tensors& s) { return s[0] < 3; },
                   [](const Tensors& s) {
                     return Tensors{s[0], s[0]};
                   },
                   {number(1)});
  });
  EXPECT_TRUE(says(listed, {"while_loop", "returned 2", "were 1"}));
}

TEST(Loops, AStepThatChangesAStaticPartIsRefused) {
  using Counted = std::pair<Tensor, int>;
  const auto run = [](const Counted& start) {
    return tower::while_loop([](const Counted& s) { return s.first < 3; },
                             [](const Counted& s) {
                               return Counted{s.first + 1, s.second + 1};
                             },
                             start);
  };
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] {
                     run({number(1), 0});
                   }),
                   {"while_loop", "static part", "tensor"}));
}

TEST(Loops, ABodyThatWritesToItsStateIsRefusedWhereSomeExamplesAreIdle) {
  const auto f = [](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s < 3; }, [](const Tensor& s) { return s.add_(1); }, x * 1);
  };
  EXPECT_TRUE(same(f(number(1)), number(3)));
  EXPECT_TRUE(says(refusal<tower::MutationError>([&] {
                     tower::vmap(f)(vec({0, 2, 5}));
                   }),
                   {"while_loop", "body", "writes", "Clone"}));
}

TEST(Scan, InputsMustFit) {
  const auto step = [](const Tensor& c, const std::pair<Tensor, Tensor>& x) { return std::pair(c, x.first); };
  const auto run = [&](const Tensor& a, const Tensor& b, tower::ScanOptions options) {
    return refusal<tower::ArgumentError>([&] { tower::scan(step, number(1), std::pair(a, b), options); });
  };
  EXPECT_TRUE(says(run(vec({1, 2}), vec({1}), {}), {"scan", "input 1", "2 steps"}));
  EXPECT_TRUE(says(run(vec({1, 2}), vec({1, 2}), {.length = 3}), {"scan", "input 0", "3 steps"}));
  EXPECT_TRUE(says(run(number(1), vec({1, 2}), {}), {"scan", "input 0", "first dimension"}));
  const auto alone = [](const Tensor& c) { return std::pair(c, c); };
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { tower::scan(alone, number(1), tower::ScanOptions{}); }),
                   {"scan", "say with length"}));
}

TEST(Scan, OutputsAreOfOneShape) {
  const auto step = [](const Tensor& n, const Tensor& x) {
    return std::pair(n + 1, x.narrow(0, 0, n.item<int64_t>()));
  };
  const std::string text = refusal<tower::ArgumentError>([&] {
    tower::scan(step, at::ones({}, at::kLong), numbers({2, 3}));
  });
  EXPECT_TRUE(says(text, {"scan", "output 0", "Double [1]", "Double [2]"}));
}

TEST(AssociativeScan, ElementsMustFit) {
  const auto run = [](auto combine, const Tensors& elements, tower::AssociativeScanOptions options = {}) {
    return refusal<tower::ArgumentError>([&] { td::associative_scan(combine, elements, options); });
  };
  const auto first = [](const Tensors& a, const Tensors&) { return a; };
  EXPECT_TRUE(says(run(first, {vec({1, 2})}, {.dim = 1}), {"associative_scan", "dim is 1", "Double [2]"}));
  EXPECT_TRUE(says(run(first, {vec({1, 2}), vec({1})}), {"associative_scan", "tensor 1", "same number"}));
  EXPECT_TRUE(says(run([](const Tensors& a, const Tensors&) { return Tensors{a[0].to(at::kFloat)}; }, {vec({1, 2})}),
                   {"associative_scan", "combine", "Float"}));
  EXPECT_TRUE(says(run(first, {}), {"associative_scan", "nothing"}));
}

}  // namespace
