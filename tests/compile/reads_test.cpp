// Compiled functions that read whether something holds, and values of captured tensors. Oracle: the function itself.
#include <tower/compile.h>
#include <tower/graph.h>
#include <tower/transforms.h>

#include <cstdio>

#include "support/prelude.h"

namespace {

struct Counted {
  int traced = 0;
  Tensor clipped(const Tensor& x) {
    ++traced;
    TORCH_CHECK(!at::is_nonzero(x.isnan().any()), "a nan");
    if (at::is_nonzero((x > 2).any())) return x.clamp_max(2) * 3;
    return x * x;
  }
};

TEST(CompileReads, AGraphIsForWhatWasRead) {
  Counted inside, plain;
  const auto f = tower::compile([&](const Tensor& x) { return inside.clipped(x); });
  for (int round = 0; round < 3; ++round)
    for (const double scale : {1.0, 3.0, 0.5, 4.0}) {
      const Tensor x = waves({5}, round) * scale;
      EXPECT_TRUE(same(f(x), plain.clipped(x))) << scale;
    }
  EXPECT_EQ(inside.traced, 2);
  EXPECT_THROW(f(at::full({5}, NAN, at::kDouble)), c10::Error);
  EXPECT_TRUE(same(f(waves({5})), plain.clipped(waves({5}))));
}

TEST(CompileReads, UnderTransformsAsUncompiled) {
  Counted inside, plain;
  const auto f = tower::compile([&](const Tensor& x) { return inside.clipped(x); });
  const auto g = [&](const Tensor& x) { return plain.clipped(x); };
  const auto sum_of = [](const auto& h) { return [h](const Tensor& x) { return h(x).sum(); }; };
  const auto mapped_inside = tower::compile(tower::vmap(tower::grad(sum_of(g))));
  for (int call = 0; call < 3; ++call)
    for (const double scale : {1.0, 50.0}) {
      const Tensor xs = waves({2, 5}, call) * scale, x = xs[0];
      EXPECT_TRUE(same(tower::grad(sum_of(f))(x), tower::grad(sum_of(g))(x)));
      EXPECT_TRUE(same(tower::jvp(f, x, x).second, tower::jvp(g, x, x).second));
      EXPECT_TRUE(same(tower::vmap(f)(xs), tower::vmap(g)(xs)));
      EXPECT_TRUE(same(mapped_inside(xs), tower::vmap(tower::grad(sum_of(g)))(xs)));
    }
  // Where the examples differ, neither can choose.
  const Tensor mixed = at::stack({waves({5}), waves({5}) * 50});
  EXPECT_THROW(tower::vmap(g)(mixed), tower::UnsupportedError);
  EXPECT_THROW(tower::vmap(f)(mixed), tower::UnsupportedError);
}

TEST(CompileReads, ChecksThatOperatorsMakeThemselves) {
  const Tensor x = waves({3, 5}), weights = at::abs(waves({5})) + 1, mask = waves({3, 5}, 0.4) > 0;
  const auto cov = tower::compile([](const Tensor& x, const Tensor& w) { return at::cov(x, 1, {}, w); });
  const auto scattered = tower::compile(
      tower::vmap([](const Tensor& x, const Tensor& m, const Tensor& s) { return x.masked_scatter(m, s); }));
  for (int call = 0; call < 3; ++call) {
    EXPECT_TRUE(same(cov(x + call, weights), at::cov(x + call, 1, {}, weights)));
    EXPECT_TRUE(same(scattered(x, mask, x * call), tower::vmap([](const Tensor& x, const Tensor& m, const Tensor& s) {
                       return x.masked_scatter(m, s);
                     })(x, mask, x * call)));
  }
  EXPECT_THROW(cov(x, -weights), c10::Error);
  EXPECT_THROW(scattered(x, at::ones_like(mask), x.slice(1, 0, 2)), c10::Error);
}

TEST(CompileReads, CapturedTensorsAsTheyAreAtEachCall) {
  const Tensor start = at::tensor(1, at::kLong), mask = waves({5}) > 0, scale = vec({2, NAN});
  const auto plain = [&](const Tensor& x) {
    return x.slice(0, start.item<int64_t>(), 4).sum() * scale[0].item<double>() + x.index({mask}).sum() +
           x.masked_select(mask).sum();
  };
  const auto f = tower::compile(plain);
  const auto g = tower::compile(tower::vmap(tower::grad(plain)));
  for (int call = 0; call < 6; ++call) {
    const Tensor xs = waves({2, 5}, call);
    EXPECT_TRUE(same(f(xs[0]), plain(xs[0]))) << call;
    EXPECT_TRUE(same(g(xs), tower::vmap(tower::grad(plain))(xs))) << call;
    if (call == 1) start.fill_(0);
    if (call == 2) mask.fill_(false);
    if (call == 3) scale.mul_(3);
    if (call == 4) mask.logical_not_();
  }
}

TEST(CompileReads, WhatIsMadeInsideOfNothing) {
  const auto plain = [](const Tensor& x) { return at::combinations(x, 2) + x.index({at::arange(5) > 3}); };
  const auto f = tower::compile(plain);
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(same(f(waves({5}, call)), plain(waves({5}, call))));
}

TEST(CompileReads, NumbersOfArgumentsAreRefused) {
  const auto number = tower::compile([](const Tensor& x) { return x * x[0].item<double>(); });
  EXPECT_TRUE(
      says(refusal<tower::UnsupportedError>([&] { number(waves({3})); }), {"compile", "reads a value", "any()"}));
  const auto shape = tower::compile([](const Tensor& x) { return x.index({x > 0}); });
  EXPECT_TRUE(
      says(refusal<tower::UnsupportedError>([&] { shape(waves({3})); }), {"compile", "shape depends on values"}));
}

TEST(CompileReads, AfterAWriteOrOfADrawAreRefused) {
  const Tensor calls = at::zeros({2});
  const auto written = tower::compile([&](const Tensor& x) {
    calls[0].add_(1);
    return (x > 0).any().item<bool>() ? x : -x;
  });
  EXPECT_TRUE(
      says(refusal<tower::UnsupportedError>([&] { written(waves({3})); }), {"compile", "reads a value", "writes"}));
  const auto drawn =
      tower::compile([&](const Tensor& x) { return (at::rand_like(x) > 2).any().item<bool>() ? x : -x; });
  EXPECT_TRUE(says(refusal<tower::UnsupportedError>([&] { drawn(waves({3})); }), {"compile", "reads a value"}));
}

TEST(CompileReads, AreNotStored) {
  Counted inside;
  const auto f = tower::compile([&](const Tensor& x) { return inside.clipped(x); });
  f(waves({5}));
  EXPECT_TRUE(says(refusal<tower::UnsupportedError>([&] { f.save("reads.tower"); }), {"save", "read a value"}));
  std::remove("reads.tower");
}

}  // namespace
