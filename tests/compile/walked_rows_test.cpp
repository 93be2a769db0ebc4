// Short rows that a kernel walks by itself: bit by bit what LibTorch's operators give, whatever rows there are, and
// whoever calls the kernel.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/tower.h>

#include "compile/kernels.h"
#include "fuse/rows_by_index.h"
#include "graph/plan.h"
#include "kernels/llvm.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using kernels::quarters;
using td::Function;
using td::Tensors;

Tensor numbers(at::IntArrayRef sizes, int64_t n) { return at::randint(0, n, sizes, at::kLong); }

/// As one kernel. What is added up is of numbers whose sums are exact.
void expect_one_kernel(const Function& f, const Tensors& args, const std::string& what) {
  SCOPED_TRACE(what);
  auto fused = kernels::fused(f, args);
  EXPECT_EQ(fused.graph.calls.size(), 1u);
  const Tensors found = tower::compiler::Plan(std::move(fused.graph)).run(args), expected = f(args);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t k = 0; k < found.size(); ++k) {
    EXPECT_EQ(found[k].strides(), expected[k].strides());
    EXPECT_EQ(kernels::bit_difference(found[k], expected[k], {}), "");
  }
}

TEST(WalkedRows, HaveOneElementOfAnotherTensorEach) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) { return Tensors{in[0] * in[1] + in[2]}; };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kInt, at::kLong})
    for (const int64_t length : {4, 12, 16, 20, 32, 48, 512, 516})
      for (const int64_t rows : {1, 2, 7})
        expect_one_kernel(
            f, {quarters({3, rows, length}, dtype), quarters({3, rows, 1}, dtype), quarters({rows, length}, dtype)},
            std::to_string(rows) + " rows of " + std::to_string(length) + " " + toString(dtype));
}

// Otherwise it would be given copies in which what is one for a row has all its lanes.
TEST(WalkedRows, MayBeShortWhereOneElementIsForAll) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) { return Tensors{(in[0] - in[1]).square()}; };
  for (const int64_t length : {16, 20, 28, 32}) {
    const auto fused = kernels::fused(f, {quarters({9, 45, 1}), quarters({length})});
    ASSERT_EQ(fused.kernels.size(), 1u);
    EXPECT_EQ(fused.kernels[0].kernel->lane_code().walked, length);
  }
}

TEST(WalkedRows, LieAnywhere) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) { return Tensors{in[0] * in[1] - 1, (in[0] * in[1]).abs()}; };
  const Tensor x = quarters({5, 9, 64});
  expect_one_kernel(f, {x.slice(2, 8, 40), quarters({5, 9, 1})}, "parts of rows");
  expect_one_kernel(f, {x.transpose(0, 1), quarters({9, 5, 1})}, "the other way round");
  expect_one_kernel(f, {x.slice(0, 0, 5, 2), quarters({9, 1})}, "every second");
}

TEST(WalkedRows, AreAddedUp) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong})
    for (const int64_t length : {16, 20, 32, 60, 100}) {
      const std::string what = std::to_string(length) + " " + toString(dtype);
      const Tensors args{quarters({11, 40, length}, dtype), quarters({11, 40, length}, dtype)};
      expect_one_kernel([](const Tensors& in) { return Tensors{(in[0] * in[1]).sum(-1)}; }, args, "sums of " + what);
      expect_one_kernel(
          [](const Tensors& in) {
            const Tensor y = in[0] * in[1];
            return Tensors{y - y.amax({-1}, true)};
          },
          args, "greatest of " + what);
    }
}

// A row of a table for each number, and what is computed with it.
const Function kLookedUp = [](const Tensors& in) { return Tensors{in[0].index_select(0, in[1]) * in[2]}; };

TEST(WalkedRows, AreThoseThatAnIndexPointsTo) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kInt})
    for (const at::ScalarType of_index : {at::kLong, at::kInt})
      for (const int64_t length : {16, 20, 32, 100})
        expect_one_kernel(
            kLookedUp, {quarters({7, length}, dtype), numbers({300}, 7).to(of_index), quarters({300, length}, dtype)},
            std::to_string(length) + " " + toString(dtype) + " by " + toString(of_index));
  // Each example has a table, or an index, or both.
  const Tensor tables = quarters({4, 7, 32}), index = numbers({4, 50}, 7), factor = quarters({4, 50, 32});
  const auto mapped = [](const td::Dims& dims) { return td::vmap(kLookedUp, dims, {0}); };
  expect_one_kernel(mapped({0, std::nullopt, 0}), {tables, index[0], factor}, "tables of examples");
  expect_one_kernel(mapped({std::nullopt, 0, 0}), {tables[0], index, factor}, "indices of examples");
  expect_one_kernel(mapped({0, 0, 0}), {tables, index, factor}, "both");
  // From the end, and what the index points to computed by another kernel's call.
  expect_one_kernel([](const Tensors& in) { return Tensors{in[0].index({in[1]}) + in[2]}; },
                    {quarters({7, 32}), numbers({300}, 7) - 7, quarters({300, 32})}, "from the end");
}

TEST(WalkedRows, ThatAreNotThereAreAnError) {
  TOWER_NEEDS_LLVM();
  const auto f =
      tower::compile([](const Tensor& table, const Tensor& index) { return table.index_select(0, index) * 2; });
  const Tensor table = quarters({7, 32}), index = numbers({300}, 7);
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(f(table, index).equal(table.index_select(0, index) * 2));
  EXPECT_NE(f.report().find("kernels: 1, of 2 operators"), std::string::npos) << f.report();
  for (const int64_t wrong : {int64_t{7}, int64_t{-1}, int64_t{1} << 40, -(int64_t{1} << 40)}) {
    Tensor indices = index.clone();
    indices[299] = wrong;
    EXPECT_THROW(f(table, indices), c10::IndexError) << wrong;
  }
  EXPECT_TRUE(f(table, index).equal(table.index_select(0, index) * 2));
}

TEST(WalkedRows, AreSharedByThreadsAndByPointers) {
  TOWER_NEEDS_LLVM();
  const auto f = tower::compile(tower::vmap([](const Tensor& table, const Tensor& index, const Tensor& factor) {
    const Tensor rows = table.index_select(0, index) * factor;
    return std::pair((rows * rows).sum(-1), rows);
  }));
  const int threads = at::get_num_threads();
  for (const int64_t n : {3, 3, 200, 64}) {
    at::set_num_threads(n == 200 ? 2 : threads);
    const Tensor table = quarters({n, 40, 32}), index = numbers({n, 90}, 40), factor = quarters({n, 90, 1});
    const Tensor rows = table.gather(1, index.unsqueeze(-1).expand({n, 90, 32})) * factor;
    const auto [sums, found] = f(table, index, factor);
    EXPECT_TRUE(found.equal(rows) && sums.equal((rows * rows).sum(-1)));
  }
  at::set_num_threads(threads);
  // Called by pointers, they are walked by the same text that C libraries have.
  const auto raw = f.native<void, 3>();
  for (const int64_t n : {1, 5, 70}) {
    const Tensor table = quarters({n, 40, 32}), index = numbers({n, 90}, 40), factor = quarters({n, 90, 1});
    const Tensor sums = at::empty({n, 90}), rows = at::empty({n, 90, 32});
    raw(n, {table.data_ptr(), index.data_ptr(), factor.data_ptr()}, {sums.data_ptr(), rows.data_ptr()});
    const auto [expected_sums, expected_rows] = f(table, index, factor);
    EXPECT_TRUE(sums.equal(expected_sums) && rows.equal(expected_rows)) << n;
  }
}

}  // namespace
