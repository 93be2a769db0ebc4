// while_loop that leaves examples out which have ended: the same bits, without their steps.
#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/loops.h"
#include "tower/transforms.h"

namespace {

using tower::Checkpoints;

// A product and a sum over a number of rounds, with a vector in the state and captured tensors of both kinds.
Tensor rounds(const Tensor& x, const Tensor& w, const Tensor& number, double compact,
              Checkpoints checkpoints = Checkpoints::all()) {
  const std::tuple start{x, x * w, at::zeros({}, at::kLong)};
  const auto last =
      tower::while_loop([number](const auto& s) { return std::get<2>(s) < number; },
                        [x, w](const auto& s) {
                          const auto& [a, b, n] = s;
                          return std::tuple(Tensor(a * w + x.sin()), Tensor(b + a.square() * 0.1), Tensor(n + 1));
                        },
                        start, {.checkpoints = checkpoints, .compact = compact});
  return std::get<0>(last).sum() + (std::get<1>(last) * w).sum();
}

const Tensor numbers_of_rounds() { return at::tensor({3, 0, 7, 1, 1, 2, 0, 1}, at::kLong); }

// Values and derivatives of first and second order, with the transform inside of vmap and around it.
Tensors all_of(double compact, Checkpoints checkpoints = Checkpoints::all()) {
  const Tensor xs = waves({8, 2}), w = waves({2}, 0.7), ns = numbers_of_rounds();
  const auto one = [&](const Tensor& x, const Tensor& w, const Tensor& n) {
    return rounds(x, w, n, compact, checkpoints);
  };
  const auto mapped = [&](const Tensor& xs, const Tensor& w) {
    return tower::vmap([&](const Tensor& x, const Tensor& n) { return one(x, w, n); })(xs, ns);
  };
  const auto total = [&](const Tensor& xs, const Tensor& w) { return mapped(xs, w).sum(); };
  const auto of_w = [&](const Tensor& w) { return total(xs, w); };
  const auto per_example = [&](const auto& transform) {
    return tower::vmap([&](const Tensor& x, const Tensor& n) {
      return transform([&](const Tensor& w) { return one(x, w, n); })(w);
    })(xs, ns);
  };
  const auto [by_x, by_w] = tower::grad<0, 1>(total)(xs, w);
  return {mapped(xs, w),
          by_x,
          by_w,
          tower::jvp(of_w, w, at::ones_like(w)).second,
          tower::hvp(of_w, w, at::ones_like(w)).second,
          tower::hessian(of_w)(w),
          per_example([](auto f) { return tower::grad(f); }),
          per_example([](auto f) { return tower::hessian(f); }),
          per_example([](auto f) { return tower::jacfwd(f); })};
}

TEST(Compaction, ChangesNoBitOfValuesAndDerivatives) {
  for (const Checkpoints few : {Checkpoints::all(), Checkpoints(2)}) {
    const Tensors expected = all_of(0, few);
    for (const double compact : {1.0, 0.5, 0.2}) {
      const Tensors found = all_of(compact, few);
      for (size_t k = 0; k < expected.size(); ++k)
        EXPECT_TRUE(at::equal(found[k], expected[k])) << k << " with " << compact;
    }
  }
}

TEST(Compaction, ABatchOfBatchesIsAsItWas) {
  const Tensor xs = waves({3, 8, 2}), w = waves({2}, 0.7), ns = numbers_of_rounds();
  const auto run = [&](double compact) {
    return tower::vmap([&](const Tensor& xs) {
      return tower::vmap([&](const Tensor& x, const Tensor& n) {
        return tower::grad([&](const Tensor& w) { return rounds(x, w, n, compact); })(w);
      })(xs, (ns * xs[0][0].gt(0)).to(at::kLong));
    })(xs);
  };
  EXPECT_TRUE(same(run(true), run(0)));
}

// An integer divided by zero would be an error for the whole batch. Without .compact they are left out where it is one.
TEST(Compaction, ExamplesThatHaveEndedAreLeftOutOfTheStep) {
  const auto run = [](double compact) {
    return tower::vmap([compact](const Tensor& n) {
      return tower::while_loop([](const auto& s) { return s.first > 0; },
                               [](const auto& s) {
                                 return std::pair(
                                     Tensor(s.first - 1),
                                     Tensor(s.second + at::floor_divide(at::scalar_tensor(12, at::kLong), s.first)));
                               },
                               std::pair(n, at::zeros_like(n)), {.compact = compact})
          .second;
    })(at::tensor({3, 0, 2, 1}, at::kLong));
  };
  EXPECT_TRUE(at::equal(run(true), at::tensor({22, 0, 18, 12}, at::kLong)));
  EXPECT_TRUE(at::equal(run(0), run(true)));
}

TEST(Compaction, APartIsBetweenNothingAndAll) {
  const auto run = [] {
    tower::while_loop([](const Tensor& s) { return s > 0; }, [](const Tensor& s) { return s - 1; }, number(1),
                      {.compact = 2});
  };
  EXPECT_TRUE(says(refusal<tower::ArgumentError>(run), {"while_loop", "compact", "0 to 1"}));
}

}  // namespace
