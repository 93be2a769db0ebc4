// Regions over all elements: sums of few elements on the way, operands that repeat.
#include "fuse/rows.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <random>

#include "compile/kernels.h"
#include "support/seeds.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using kernels::calls_left;
using td::Function;
using td::Tensors;

constexpr double kClose = 1e-6;
Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::randn(sizes, at::kDouble).to(dtype);
}

TEST(Rows, SumsOverFewElementsAreAddedUpOnTheWay) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    const Tensor x = (in[0] * in[1] + 1).abs();
    return Tensors{x.sum(1), x};
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const int64_t n : {1, 7, 64, 65})
      EXPECT_EQ(calls_left(f, {numbers({n, 3, 65}, dtype), numbers({n, 1, 65}, dtype)}, kClose), 1u) << n;
}

TEST(Rows, AMeanIsItsSumDividedWhateverItIsOf) {
  TOWER_NEEDS_LLVM();
  const std::pair<const char*, Tensor (*)(const Tensor&, at::IntArrayRef)> folds[] = {
      {"sum", [](const Tensor& x, at::IntArrayRef dims) { return x.sum(dims); }},
      {"mean", [](const Tensor& x, at::IntArrayRef dims) { return x.mean(dims); }},
      {"var", [](const Tensor& x, at::IntArrayRef dims) { return x.var(dims); }},
      {"norm", [](const Tensor& x, at::IntArrayRef dims) { return x.norm(2, dims); }},
      {"amax", [](const Tensor& x, at::IntArrayRef dims) { return x.amax(dims); }},
  };
  for (const auto& [name, fold] : folds)
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}})
      for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 4, 50}, {8, 40, 5}, {2, 3, 200}})
        for (const bool turned : {false, true}) {
          SCOPED_TRACE(testing::Message() << name << " over " << at::IntArrayRef(dims) << " of "
                                          << at::IntArrayRef(sizes) << (turned ? ", turned" : ""));
          const Function f = [fold = fold, dims](const Tensors& in) {
            const Tensor x = in[0] * in[0];
            return Tensors{fold(x, dims) + 1, x};
          };
          const Tensor x = numbers(sizes, at::kDouble);
          calls_left(f, {turned ? x.transpose(0, 2) : x}, kClose);
          calls_left(td::vmap(f, {0}, {0}), {at::stack({x, 2 * x}).transpose(1, turned ? 3 : 1)}, kClose);
        }
}

TEST(Rows, OfNoElementsThereIsNothingToAdd) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) { return Tensors{(in[0] * 2 + 1).sum(1)}; };
  calls_left(f, {at::ones({0, 3, 64})});
  calls_left(f, {at::ones({4, 0, 64})});
  calls_left(f, {at::ones({4, 3, 0})});
}

TEST(Rows, SumsOfSumsAreSumsOfTheTerms) {
  TOWER_NEEDS_LLVM();
  EXPECT_EQ(calls_left([](const Tensors& in) { return Tensors{(in[0] * in[0]).sum(2).sum({1})}; },
                       {numbers({9, 3, 2, 70})}, kClose),
            1u);
  // The sum between is read, too.
  EXPECT_EQ(calls_left(
                [](const Tensors& in) {
                  const Tensor sum = (in[0] * in[0]).sum(2);
                  return Tensors{sum, sum.sum({1}, true)};
                },
                {numbers({9, 3, 2, 70})}, kClose),
            1u);
}

TEST(Rows, DimensionsOfOneElementAndThoseThatAreKept) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    const Tensor x = in[0].exp() + 1;
    return Tensors{x.sum(at::IntArrayRef{0, 2}, true), x.sum({2}), x.sum(at::IntArrayRef{0, 2})};
  };
  EXPECT_EQ(calls_left(f, {numbers({5, 40, 1, 3, 33})}, 1e-5), 1u);
}

TEST(Rows, UnderVmapsTheSumIsOverTheirExamplesDimensions) {
  TOWER_NEEDS_LLVM();
  const Function inner = [](const Tensors& in) { return Tensors{((in[0] + in[1]) * in[1]).sum(0)}; };
  const Function f = [&](const Tensors& in) {
    return td::vmap(td::vmap(inner, {0, std::nullopt}, {0}), {1, 0}, {0})(in);
  };
  EXPECT_EQ(calls_left(f, {numbers({2, 30, 3, 200}), numbers({30, 3, 200})}, kClose), 1u);
}

TEST(Rows, LongSumsOverColumnsAreLeftToLibTorch) {
  TOWER_NEEDS_LLVM();
  EXPECT_EQ(calls_left([](const Tensors& in) { return Tensors{(in[0] * 2 + 1).sum(0)}; }, {numbers({64, 64})}, kClose),
            2u);
}

TEST(Rows, WhatReadsASumComesAfterIt) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    const Tensor x = in[0] * 2 + 1, sum = x.sum(1, true);
    return Tensors{x - sum, (sum * sum + 1).squeeze(1)};
  };
  calls_left(f, {numbers({20, 4, 64})}, kClose);
}

TEST(Rows, OtherOrdersInMemory) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    const Tensor x = in[0] * 2 + in[1];
    return Tensors{x.sum(1), x.sum(2), x};
  };
  const Tensor x = numbers({40, 3, 64}), y = numbers({64, 40, 3}).permute({1, 2, 0});
  calls_left(f, {x, x}, kClose);
  calls_left(f, {y, y}, kClose);
  calls_left(f, {x, y}, kClose);
  calls_left(f, {x.transpose(1, 2).contiguous().transpose(1, 2), y}, kClose);
}

TEST(Rows, ThreadsDoNotAddToTheSameMemory) {
  TOWER_NEEDS_LLVM();
  const int threads = at::get_num_threads();
  at::set_num_threads(4);
  const Function f = [](const Tensors& in) {
    const Tensor x = in[0] * in[0] + 1;
    return Tensors{x.sum(0), x.sum(1)};
  };
  for (int i = 0; i < 5; ++i) calls_left(f, {numbers({8, 6, 20000})}, kClose);
  at::set_num_threads(threads);
}

// Operands that have some of the dimensions, which lie in any order, and of which rows have some only. Oracle:
// LibTorch's operators.
TEST(Rows, OperandsHaveAnyOfTheDimensions) {
  TOWER_NEEDS_LLVM();
  const std::vector<std::vector<int64_t>> shapes{{5, 40, 3}, {28, 17, 2, 3}, {3, 1, 50, 4},
                                                 {40, 3},    {2, 9, 33},     {6, 1, 5, 7, 2}};
  for (const uint64_t seed : support::seeds("TOWER_ROWS", 120)) {
    std::mt19937_64 random(seed);
    const std::vector<int64_t>& lanes = shapes[random() % shapes.size()];
    const size_t count = 2 + random() % 4;
    Tensors in;
    for (size_t k = 0; k < count; ++k) {
      std::vector<int64_t> sizes, order;
      for (size_t d = 0; d < lanes.size(); ++d) {
        sizes.push_back(k == 0 || random() % 2 ? lanes[d] : 1);
        order.push_back(static_cast<int64_t>(d));
      }
      std::shuffle(order.begin(), order.end(), random);
      Tensor t = numbers(sizes, at::kDouble);
      if (random() % 2) {
        std::vector<int64_t> back(order.size());
        for (size_t d = 0; d < order.size(); ++d) back[static_cast<size_t>(order[d])] = static_cast<int64_t>(d);
        t = t.permute(order).contiguous().permute(back);
      }
      if (random() % 4 == 0) t = at::stack({t, t}, -1).select(-1, 1);  // no two elements are neighbours
      in.push_back(t);
    }
    const Function f = [sums = random() % 3 == 0](const Tensors& x) {
      Tensor y = x[0].sin();
      for (size_t k = 1; k < x.size(); ++k) y = k % 2 ? y * x[k] + 0.5 : (y - x[k]).abs();
      return sums ? Tensors{y, y.sum(0)} : Tensors{y};
    };
    const Tensors expected = f(in);
    const Function compiled = td::compile(f);
    for (int call = 0; call < 3; ++call) {
      const Tensors found = compiled(in);
      for (size_t k = 0; k < found.size(); ++k) {
        for (int64_t d = 0; d < expected[k].dim(); ++d) {
          const bool counts = expected[k].size(d) != 1;
          EXPECT_EQ(counts ? found[k].stride(d) : 0, counts ? expected[k].stride(d) : 0) << "seed " << seed;
        }
        EXPECT_TRUE(at::allclose(found[k], expected[k], 1e-12, 1e-12)) << "seed " << seed;
      }
    }
  }
}

}  // namespace
