// Regions over all elements: sums of few elements on the way, operands that repeat.
#include "fuse/rows.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include "compile/kernels.h"

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

}  // namespace
