// In-place writes, out= variants and factories inside transforms mean what they mean outside.
#include <torch/csrc/autograd/autograd.h>

#include "support/prelude.h"

namespace {

using tower::MutationError;

const Tensor kRows = at::arange(1, 7, at::kDouble).view({2, 3});

TEST(Writes, OfABatchedValueIntoAFreshTensorGiveEachExampleItsOwn) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor y = at::zeros({3}, at::kDouble);
    const Tensor alias = y;
    y.add_(x);
    alias.mul_(2);
    return y;
  });
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({kRows})[0], 2 * kRows));
  EXPECT_TRUE(same(td::vmap(f, {1}, {1})({kRows.t()})[0], 2 * kRows.t()));
}

TEST(Writes, AtOneElementOfAFreshTensorReachItUnderEveryTransform) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor y = at::zeros({4}, at::kDouble);
    y.select(0, 1).copy_(x.select(0, 0) * x.select(0, 2));
    y.slice(0, 2).add_(x.slice(0, 0, 2));
    return y;
  });
  const Tensor x = vec({2, 3, 5});
  const Tensor jacobian = at::zeros({4, 3}, at::kDouble);
  jacobian.select(0, 1).copy_(vec({5, 0, 2}));
  jacobian.select(0, 2).copy_(vec({1, 0, 0}));
  jacobian.select(0, 3).copy_(vec({0, 1, 0}));
  EXPECT_TRUE(same(f({x})[0], vec({0, 10, 2, 3})));
  EXPECT_TRUE(same(td::jacrev(f, {0})({x})[0], jacobian));
  EXPECT_TRUE(same(td::jacfwd(f, {0})({x})[0], jacobian));
  EXPECT_TRUE(same(td::vmap(td::jacfwd(f, {0}), {0}, {0})({at::stack({x, x})})[0], at::stack({jacobian, jacobian})));
}

TEST(Writes, OfATrackedValueIntoACapturedTensorAreRefusedAndChangeNothing) {
  const Tensor captured = vec({7, 8, 9});
  const auto f = of_one([&](const Tensor& x) {
    captured.add_(x);
    return x.sum();
  });
  EXPECT_TRUE(says(refusal<MutationError>([&] { td::vmap(f, {0}, {0})({kRows}); }),
                   {"vmap (level 1): aten::add_", "made outside", "Make the tensor inside", "[3]"}));
  EXPECT_TRUE(says(refusal<MutationError>([&] {
                     td::grad(f, {0})({vec({1, 2, 3})});
                   }),
                   {"grad (level 1): aten::add_", "made outside"}));
  EXPECT_TRUE(says(refusal<MutationError>([&] {
                     td::jvp(f, {vec({1, 2, 3})}, {vec({1, 2, 3})});
                   }),
                   {"jvp (level 1): aten::add_", "made outside"}));
  EXPECT_TRUE(same(captured, vec({7, 8, 9})));
}

TEST(Writes, OfAConstantIntoACapturedTensorHappen) {
  const Tensor captured = vec({7, 8, 9});
  const auto f = of_one([&](const Tensor& x) {
    captured.add_(1);
    return x.sum();
  });
  td::vmap(f, {0}, {0})({kRows});
  EXPECT_TRUE(same(captured, vec({8, 9, 10})));
  td::grad(f, {0})({vec({1, 2, 3})});
  EXPECT_TRUE(same(captured, vec({9, 10, 11})));
}

// Batch normalization differentiates its result, and not what it makes of the running statistics.
TEST(Writes, OfAValueWithoutADerivativeIntoACapturedTensorHappen) {
  const Tensor w = vec({2, -1, 3}), ct = vec({1, 0, 2, -1, 3, 1}).view({2, 3});
  struct Statistics {
    Tensor mean = vec({1, 2, 3}), variance = vec({3, 1, 2});
  };
  const auto normalize = [&](const Tensor& x, Statistics& running) {
    return std::get<0>(at::_native_batch_norm_legit(x, w, {}, running.mean, running.variance, true, 0.1, 1e-5));
  };
  Statistics expected, by_vjp, by_jvp, by_vmap;
  const Tensor x = kRows.pow(2).requires_grad_();
  const Tensor gradient = torch::autograd::grad({normalize(x, expected)}, {x}, {ct})[0];
  const Tensor at = x.detach();

  const auto pullback = td::vjp(of_one([&](const Tensor& x) { return normalize(x, by_vjp); }), {at}).second;
  EXPECT_TRUE(same(pullback({ct})[0], gradient));
  EXPECT_TRUE(same(by_vjp.mean, expected.mean));
  EXPECT_TRUE(same(by_vjp.variance, expected.variance));
  const Tensor tangent =
      td::jvp(of_one([&](const Tensor& x) { return normalize(x, by_jvp); }), {at}, {kRows}).second[0];
  EXPECT_NEAR((tangent * ct).sum().item<double>(), (gradient * kRows).sum().item<double>(), 1e-9);
  EXPECT_TRUE(same(by_jvp.variance, expected.variance));

  const auto each = of_one([&](const Tensor& x) { return normalize(x, by_vmap); });
  EXPECT_TRUE(says(refusal<MutationError>([&] {
                     td::vmap(each, {0}, {0})({at::stack({at, at + 1})});
                   }),
                   {"vmap (level 1): aten::_native_batch_norm_legit", "made outside"}));
  EXPECT_TRUE(same(by_vmap.mean, vec({1, 2, 3})));
}

TEST(Writes, OfAnInnerValueIntoATensorOfAnOuterLevelAreRefusedWhereItCannotHoldThem) {
  const auto outer = of_one([](const Tensor& x) {
    const Tensor here = x * 1;
    td::vmap(of_one([&](const Tensor& e) {
               here.add_(e);
               return e;
             }),
             {0}, {0})({x});
    return here;
  });
  EXPECT_TRUE(says(refusal<MutationError>([&] { td::vmap(outer, {0}, {0})({kRows}); }),
                   {"vmap (level 2): aten::add_", "made outside"}));
  // A value of the outer level it can hold, from wherever the write is done.
  const auto inside = of_one([](const Tensor& x) {
    const Tensor here = x * 1;
    return td::vmap(of_one([&](const Tensor& e) {
                      here.add_(x);
                      return e;
                    }),
                    {0}, {0})({vec({1})})[0] +
           here;
  });
  EXPECT_TRUE(same(td::vmap(inside, {0}, {0})({kRows})[0], 2 * kRows + 1));
}

TEST(Writes, ToAnInputReachTheCallersTensor) {
  const auto doubles = of_one([](const Tensor& x) {
    x.mul_(2);
    return x.sum();
  });
  const Tensor rows = kRows.clone();
  EXPECT_TRUE(same(td::vmap(doubles, {0}, {0})({rows})[0], vec({12, 30})));
  EXPECT_TRUE(same(rows, 2 * kRows));
  const Tensor columns = kRows.clone();
  td::vmap(doubles, {1}, {0})({columns});
  EXPECT_TRUE(same(columns, 2 * kRows));
  const Tensor x = vec({1, 2, 3});
  EXPECT_TRUE(same(td::grad(doubles, {0})({x})[0], vec({2, 2, 2})));
  EXPECT_TRUE(same(x, vec({2, 4, 6})));
}

TEST(Writes, ToAnInputLeaveThePullbackRight) {
  const Tensor x = vec({1, 2, 3});
  const auto [y, pullback] = td::vjp(of_one([](const Tensor& v) {
                                       const Tensor before = v * v;
                                       v.mul_(3);
                                       return before + v * v;  // v² + 9 v²
                                     }),
                                     {x});
  EXPECT_TRUE(same(x, vec({3, 6, 9})));
  EXPECT_TRUE(same(y[0], vec({10, 40, 90})));
  EXPECT_TRUE(same(pullback({vec({1, 1, 1})})[0], vec({20, 40, 60})));
}

TEST(Writes, ThatWouldChangeAShapeOrLoseAKindOfNumberAreRefused) {
  const auto grows = of_one([](const Tensor& x) { return at::zeros({1}, at::kDouble).add_(x); });
  EXPECT_THROW(td::grad(of_one([&](const Tensor& x) { return grows({x})[0].sum(); }), {0})({vec({1, 2})}),
               std::exception);
  const auto truncates = of_one([](const Tensor& x) { return at::zeros({3}, at::kLong).add_(x); });
  EXPECT_TRUE(says(refusal<MutationError>([&] { td::vmap(truncates, {0}, {0})({kRows}); }),
                   {"vmap (level 1): aten::add_", "Double", "Long"}));
  support::expect_intact();
}

TEST(OutVariants, WriteTrackedValuesIntoFreshTensors) {
  const auto f = of_one([](const Tensor& x) {
    Tensor out = at::empty({3}, at::kDouble);
    at::mul_out(out, x, x);
    Tensor sum = at::empty({0}, at::kDouble);
    at::add_out(sum, out, x);
    return sum;
  });
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({kRows})[0], kRows * kRows + kRows));
  EXPECT_TRUE(same(td::jacrev(f, {0})({vec({1, 2, 3})})[0], at::diag(vec({3, 5, 7}))));
  EXPECT_TRUE(same(td::jacfwd(f, {0})({vec({1, 2, 3})})[0], at::diag(vec({3, 5, 7}))));
}

TEST(OutVariants, IntoACapturedTensorAreRefused) {
  Tensor captured = vec({7, 8, 9});
  const auto f = of_one([&](const Tensor& x) { return at::mul_out(captured, x, x); });
  EXPECT_TRUE(says(refusal<MutationError>([&] { td::vmap(f, {0}, {0})({kRows}); }),
                   {"vmap (level 1): aten::mul", "made outside"}));
  EXPECT_TRUE(same(captured, vec({7, 8, 9})));
}

TEST(Factories, GiveWhatTheyGiveOutside) {
  const auto f = of_one([](const Tensor& x) {
    return x + at::arange(3, at::kDouble) + at::ones({3}, at::kDouble) + at::zeros_like(x) + at::full_like(x, 2) +
           x.new_ones({3}) + at::eye(3, at::kDouble).sum(0) + at::linspace(0, 2, 3, at::kDouble);
  });
  const Tensor shift = 2 * vec({0, 1, 2}) + 5;
  EXPECT_TRUE(same(td::vmap(f, {0}, {0})({kRows})[0], kRows + shift));
  EXPECT_TRUE(same(td::jacrev(f, {0})({vec({1, 2, 3})})[0], at::eye(3, at::kDouble)));
}

TEST(Factories, LikeAnExampleHaveTheExamplesShape) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor y = at::empty_like(x).fill_(1);
    EXPECT_EQ(y.sizes(), (at::IntArrayRef{3}));
    y.select(0, 0).copy_(x.sum());
    return y;
  });
  EXPECT_TRUE(
      same(td::vmap(f, {0}, {0})({kRows})[0], at::tensor({6.0, 1.0, 1.0, 15.0, 1.0, 1.0}, at::kDouble).view({2, 3})));
}

}  // namespace
