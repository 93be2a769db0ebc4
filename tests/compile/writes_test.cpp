// What a compiled function writes to: its own tensors, its arguments, tensors that it captured. Oracles: the function
// itself on plain tensors, which LibTorch runs.
#include <c10/core/GradMode.h>
#include <torch/nn/modules/batchnorm.h>
#include <tower/compile.h>
#include <tower/nn.h>
#include <tower/transforms.h>

#include "support/prelude.h"

namespace {

// The same twice, on copies, with other values the second time.
template <class F>
void expect_like_plain(const F& f, const Tensor& x) {
  const auto compiled = tower::compile(f);
  for (const double shift : {0.0, 0.4}) {
    Tensor a = x + shift, b = x + shift;
    const Tensor actual = compiled(a), expected = f(b);
    EXPECT_TRUE(same(actual, expected)) << shift;
    EXPECT_TRUE(same(a, b)) << "the argument, " << shift;
    EXPECT_EQ(actual.is_alias_of(a), expected.is_alias_of(b));
    EXPECT_EQ(actual.is_same(a), expected.is_same(b));
    // A write to the result goes where it would.
    Tensor into_actual = actual, into_expected = expected;
    into_actual.mul_(3);
    into_expected.mul_(3);
    EXPECT_TRUE(same(a, b)) << "the argument, after a write to the result";
  }
}

TEST(CompileWrites, ToTensorsMadeInside) {
  expect_like_plain(
      [](const Tensor& x) {
        Tensor y = at::zeros_like(x);
        y.select(0, 1).copy_(x.select(0, 0));
        Tensor row = y[0];
        y.add_(x);
        row.mul_(2);
        return y * row;
      },
      waves({3, 4}));
}

TEST(CompileWrites, PartsOfATensorMadeOfTheShapeOfAnother) {
  expect_like_plain(
      [](const Tensor& x) {
        Tensor out = x.new_empty({2, 6});
        out.slice(1, 1, 5).copy_(x);
        out.slice(1, 0, 1).copy_(out.slice(1, 4, 5));
        out.slice(1, 5, 6).copy_(out.slice(1, 1, 2));
        return out;
      },
      waves({2, 4}));
}

TEST(CompileWrites, ToAnArgument) {
  expect_like_plain([](const Tensor& x) { return at::Tensor(x).mul_(2).sum(); }, waves({3, 4}));
  expect_like_plain([](const Tensor& x) { return at::Tensor(x).mul_(2); }, waves({3, 4}));
}

TEST(CompileWrites, AViewOfAnArgumentComesBackAsOne) {
  expect_like_plain([](const Tensor& x) { return x[1]; }, waves({3, 4}));
  expect_like_plain(
      [](const Tensor& x) {
        const Tensor row = x.t()[1];
        x[0].mul_(2);
        return row;
      },
      waves({3, 4}));
}

TEST(CompileWrites, ArgumentsThatShareMemoryAreRefusedWhereOneIsWritten) {
  const auto f = tower::compile([](const Tensor& x, const Tensor& y) { return Tensor(x).mul_(2) + y; });
  const Tensor a = waves({4}), b = waves({4}, 0.5);
  f(a, b);
  const std::string text = refusal<tower::MutationError>([&] { f(a, a); });
  EXPECT_TRUE(says(text, {"compile", "argument 0", "shares memory with argument 1", "clone()"})) << text;
}

TEST(CompileWrites, ACapturedTensorThatTheWrittenArgumentIsIsRefused) {
  const Tensor w = waves({4}, 0.5);
  const auto f = tower::compile([&](const Tensor& x) {
    const Tensor y = x * w;
    Tensor(x).mul_(2);
    return y;
  });
  f(waves({4}));
  const std::string text = refusal<tower::MutationError>([&] { f(w); });
  EXPECT_TRUE(says(text, {"compile", "argument 0", "captured"})) << text;
}

TEST(CompileWrites, ACapturedTensorIsReadAtEachCall) {
  Tensor w = vec({1, 2, 3});
  const auto f = tower::compile([&](const Tensor& x) { return x * w.exp(); });
  const auto mapped = tower::compile(tower::vmap([&](const Tensor& x) { return x * w.exp(); }));
  const Tensor x = waves({3}), xs = waves({2, 3});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(same(f(x), x * w.exp()));
    EXPECT_TRUE(same(mapped(xs), xs * w.exp()));
    w.mul_(-0.5);
  }
  w.set_(vec({1}));
  EXPECT_TRUE(same(f(x), x * vec({1}).exp()));
}

TEST(CompileWrites, ACapturedTensorIsWrittenAtEachCall) {
  Tensor seen = at::zeros({3}, at::kDouble), expected = seen.clone();
  const Tensor part = seen.slice(0, 0, 2);
  const auto f = tower::compile([&](const Tensor& x) {
    const Tensor before = part * 1;
    seen.add_(x);
    seen.mul_(2);
    return before + part + seen[0] + x.sum();
  });
  for (int i = 0; i < 3; ++i) {
    const Tensor x = waves({3}, i);
    const Tensor before = expected.slice(0, 0, 2).clone();
    expected.add_(x).mul_(2);
    EXPECT_TRUE(same(f(x), before + expected.slice(0, 0, 2) + expected[0] + x.sum()));
    EXPECT_TRUE(same(seen, expected));
  }
}

TEST(CompileWrites, RunningStatistics) {
  torch::nn::BatchNorm1d net(3), plain(3);
  net->to(at::kDouble);
  plain->to(at::kDouble);
  const auto f = tower::compile([&](const Tensor& x) { return net->forward(x); });
  for (int i = 0; i < 3; ++i) {
    const Tensor x = waves({4, 3}, i);
    EXPECT_TRUE(same(f(x).detach(), plain->forward(x).detach()));
    EXPECT_TRUE(same(net->running_mean, plain->running_mean));
    EXPECT_TRUE(same(net->running_var, plain->running_var));
    EXPECT_TRUE(at::equal(net->num_batches_tracked, plain->num_batches_tracked));
  }
}

TEST(CompileWrites, AWriteThatIsNotRecordedLeavesTheHistory) {
  const auto f = [](const Tensor& x) {
    Tensor y = x * x;
    {
      const at::NoGradGuard guard;
      y.mul_(x);
    }
    return y.sum();
  };
  const auto compiled = tower::compile(f);
  compiled(waves({3}, 0.7));
  const Tensor x = waves({3});
  EXPECT_TRUE(same(compiled(x), f(x)));
  EXPECT_TRUE(same(tower::grad(compiled)(x), tower::grad(f)(x)));
  EXPECT_TRUE(same(tower::grad(f)(x), 2 * x));
  EXPECT_TRUE(same(tower::jvp(compiled, x, x).second, tower::jvp(f, x, x).second));
}

TEST(CompileWrites, WhatIsConstantLeavesInMemoryOfItsOwn) {
  const auto f = tower::compile([](const Tensor& x) {
    const Tensor z = at::zeros({2, 3}, at::kDouble);
    return std::tuple(z, z[0], x + 1, x + 1);
  });
  for (int i = 0; i < 3; ++i) {
    auto [z, row, a, b] = f(waves({3}));
    EXPECT_TRUE(same(z, at::zeros({2, 3}, at::kDouble))) << i;
    row.add_(5);
    EXPECT_TRUE(same(z[0], at::full({3}, 5, at::kDouble)));
    EXPECT_FALSE(a.is_alias_of(b));
    a.zero_();
    EXPECT_TRUE(same(b, waves({3}) + 1));
  }
}

TEST(CompileWrites, ResultsThatWereMadeApartStayApart) {
  const auto f = tower::compile([](const Tensor& x) {
    return std::tuple(at::matmul(x, x), at::matmul(x, x), x.mm(x).view({-1}), x.mm(x).view({-1}));
  });
  for (int i = 0; i < 2; ++i) {
    const Tensor x = waves({2, 3, 3}, i)[0];
    const auto [a, b, c, d] = f(x);
    for (const Tensor& other : {b, c, d}) EXPECT_FALSE(a.is_alias_of(other));
    EXPECT_FALSE(c.is_alias_of(d));
  }
  const auto batched =
      tower::compile([](const Tensor& x) { return std::pair(at::matmul(x, x[0]), at::matmul(x, x[0])); });
  for (int i = 0; i < 2; ++i) {
    const auto [a, b] = batched(waves({2, 3, 3}, i));
    EXPECT_FALSE(a.is_alias_of(b));
  }
}

TEST(CompileWrites, UnderTransforms) {
  const auto f = [](const Tensor& x) {
    Tensor y = x.clone();
    y.slice(0, 0, 2).mul_(x.slice(0, 1, 3));
    y[0] = y[1] * x[0];
    return y;
  };
  const auto compiled = tower::compile(f);
  compiled(waves({3}, 0.7));
  EXPECT_EQ(disagreement(of_one(compiled), {waves({3, 3})}), "");
}

}  // namespace
