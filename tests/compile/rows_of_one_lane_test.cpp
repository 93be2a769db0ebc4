// Rows of one element, and one row: sizes no longer say what is there once for a row, and what for each of its lanes.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>

#include "compile/kernels.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using td::Function;
using td::Tensors;

constexpr double kClose = 1e-13;

Tensor numbers(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }

// In one kernel. (Fusing throws where LLVM refuses it.)
void expect_one_kernel(const Function& f, const Tensors& args) {
  EXPECT_EQ(kernels::calls_left(f, args, kClose), 1u) << args[0].sizes();
}

TEST(RowsOfOneLane, WhatTheyComeToMeetsWhatThereIsOneOfForEach) {
  TOWER_NEEDS_LLVM();
  const Function kept = [](const Tensors& in) {
    const Tensor sum = (in[0] * 2).sum(1, true);
    return Tensors{sum * in[1], sum};
  };
  const Function gone = [](const Tensors& in) { return Tensors{(in[0] * 2).sum(1) * in[1]}; };
  const Function viewed = [](const Tensors& in) { return Tensors{(in[0] * 2).sum(1).unsqueeze(1) * in[1]}; };
  for (const int64_t n : {1, 2, 7}) {
    expect_one_kernel(kept, {numbers({5, n}), numbers({5, 1})});
    expect_one_kernel(gone, {numbers({5, n}), numbers({5})});
    expect_one_kernel(viewed, {numbers({5, n}), numbers({5, 1})});
  }
}

TEST(RowsOfOneLane, AreReadLaneByLaneAndOnceForTheRow) {
  TOWER_NEEDS_LLVM();
  const Function same_sizes = [](const Tensors& in) {
    return Tensors{(in[0] * in[0]).sum(1, true) * in[0], at::softmax(in[0], 1)};
  };
  expect_one_kernel(same_sizes, {numbers({5, 1})});
  // An operand without the row's dimension is in the same places for both.
  const Function same_places = [](const Tensors& in) { return Tensors{(in[0] * in[1]).sum(0) * in[1]}; };
  for (const int64_t n : {1, 2, 7}) expect_one_kernel(same_places, {numbers({n, 5}), numbers({5})});
  const Function of_numbers = [](const Tensors& in) { return Tensors{in[0].exp().sum() * in[0]}; };
  expect_one_kernel(of_numbers, {numbers({})});
  expect_one_kernel(td::vmap(of_numbers, {0}, {0}), {numbers({6})});
}

TEST(RowsOfOneLane, HaveTheKernelOfLongerOnes) {
  TOWER_NEEDS_LLVM();
  tower::compiler::Kernels known;
  const Function f = [](const Tensors& in) { return Tensors{(in[0] * 2).sum(1) * in[1]}; };
  const auto longer = kernels::fused(f, {numbers({5, 7}), numbers({5})}, known);
  const auto one = kernels::fused(f, {numbers({5, 1}), numbers({5})}, known);
  EXPECT_EQ(known.all().size(), 1u);
}

// What it comes to has one element, which may meet any dimension.
TEST(OneRow, SpreadOverADimensionIsNotAsManyRows) {
  TOWER_NEEDS_LLVM();
  const Function along_the_row = [](const Tensors& in) { return Tensors{in[0] + in[0].sum(1)}; };
  const Function along_another = [](const Tensors& in) { return Tensors{in[1] * in[0].sum(1, true) + in[1]}; };
  for (const int64_t n : {1, 2, 7, 80}) {
    expect_one_kernel(along_the_row, {numbers({1, n})});
    kernels::calls_left(along_another, {numbers({1, n}), numbers({3, 1})}, kClose);
    kernels::calls_left(along_another, {numbers({1, n}), numbers({3, n})}, kClose);
    kernels::calls_left(td::vmap(along_the_row, {0}, {0}), {numbers({4, 1, n})}, kClose);
  }
}

// It would show in nothing else: operators compute the same.
TEST(RefusedKernels, FailTheTestThatIsWarnedOfThem) {
  EXPECT_NONFATAL_FAILURE(
      TORCH_WARN("tower::compile: functions run operator by operator, not as machine code: LLVM: undefined value"),
      "LLVM: undefined value");
}

}  // namespace
