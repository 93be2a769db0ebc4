// Sums of short rows as loops over memory: beside LibTorch's, to the bit where sums are exact.
#include "fuse/short_sums.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/tower.h>

#include <limits>
#include <string>

#include "compile/kernels.h"
#include "graph/plan.h"
#include "kernels/llvm.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using kernels::quarters;
using td::Function;
using td::Tensors;

size_t calls_of_sums(const tower::compiler::FusedGraph& fused) {
  size_t n = 0;
  for (const auto& call : fused.graph.calls)
    n += dynamic_cast<const tower::compiler::ShortSums*>(call.op) != nullptr ? 1 : 0;
  return n;
}

/// `traced`: what the plan is made for; it runs on `x`.
void expect_sums(const Function& f, const Tensor& traced, const Tensor& x, const std::string& what, size_t sums = 1) {
  SCOPED_TRACE(what);
  auto fused = kernels::fused(f, {traced});
  EXPECT_EQ(calls_of_sums(fused), sums);
  const Tensor found = tower::compiler::Plan(std::move(fused.graph)).run({x})[0];
  EXPECT_EQ(found.strides(), f({traced})[0].strides());
  EXPECT_EQ(kernels::bit_difference(found, f({x})[0], {}), "");
}
void expect_sums(const Function& f, const Tensor& x, const std::string& what, size_t sums = 1) {
  expect_sums(f, x, x, what, sums);
}

const Function kOfLast = [](const Tensors& in) { return Tensors{in[0].sum(-1)}; };

TEST(ShortSums, AreLibTorchsForAnyRows) {
  TOWER_NEEDS_LLVM();
  const Function keeps = [](const Tensors& in) { return Tensors{in[0].sum(at::IntArrayRef{-1}, true)}; };
  const Function of_two = [](const Tensors& in) { return Tensors{in[0].sum(at::IntArrayRef{-1, -2})}; };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const int64_t length : {2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 63})
      for (const int64_t rows : {1, 2, 301}) {
        const std::string what =
            std::to_string(rows) + " rows of " + std::to_string(length) + " " + std::string(toString(dtype));
        expect_sums(kOfLast, quarters({rows, 3, length}, dtype), what);
        expect_sums(keeps, quarters({rows, length}, dtype), what + ", kept");
        if (length < 32) expect_sums(of_two, quarters({rows, 2, length}, dtype), what + ", twice");
      }
}

TEST(ShortSums, OfExamplesAreThoseOfEach) {
  TOWER_NEEDS_LLVM();
  const auto mapped = [](int64_t in) { return td::vmap(kOfLast, {in}, {0}); };
  expect_sums(mapped(0), quarters({7, 60, 3}), "examples first");
  expect_sums(td::vmap(mapped(0), {0}, {0}), quarters({4, 7, 60, 3}), "examples of examples");
  expect_sums(td::vmap(mapped(0), {1}, {1}), quarters({7, 4, 60, 3}), "the other way round, which LibTorch's sum keeps",
              0);
}

TEST(ShortSums, OfTensorsThatLieOtherwiseThanTraced) {
  TOWER_NEEDS_LLVM();
  const Tensor x = quarters({40, 9, 12});
  expect_sums(kOfLast, quarters({9, 40, 12}), x.transpose(0, 1), "rows in another order");
  expect_sums(kOfLast, quarters({12, 9, 40}), x.transpose(0, 2), "terms apart");
  expect_sums(kOfLast, quarters({40, 9, 5}), x.slice(2, 3, 8), "parts of rows");
  expect_sums(kOfLast, quarters({40, 9, 12}), quarters({1, 9, 12}).expand({40, 9, 12}), "one for all");
  expect_sums(kOfLast, x.transpose(0, 1), x.transpose(0, 1), "traced in an order that LibTorch's sum keeps", 0);
}

TEST(ShortSums, OfNumbersThatAreNotFiniteOrZero) {
  TOWER_NEEDS_LLVM();
  const auto infinity = std::numeric_limits<float>::infinity();
  for (const int64_t length : {3, 8, 11}) {
    Tensor x = at::full({5, length}, -0.0);
    x[1][length - 1] = infinity;
    x[2][0] = infinity;
    x[2][length - 1] = -infinity;
    x[3][1] = std::numeric_limits<float>::quiet_NaN();
    expect_sums(kOfLast, x, std::to_string(length));
  }
}

TEST(ShortSums, AreAsExactAsTheirLengthAllows) {
  TOWER_NEEDS_LLVM();
  for (const int64_t length : {3, 10, 63}) {
    const Tensor x = at::rand({1000, length});
    auto fused = kernels::fused(kOfLast, {x});
    ASSERT_EQ(calls_of_sums(fused), 1u);
    const Tensor found = tower::compiler::Plan(std::move(fused.graph)).run({x})[0];
    const Tensor exact = x.to(at::kDouble).sum(-1), error = ((found.to(at::kDouble) - exact) / exact).abs().max();
    EXPECT_LE(error.item<double>(), std::numeric_limits<float>::epsilon() / 2 * static_cast<double>(length));
  }
}

TEST(ShortSums, OfManyRowsAreSharedByThreads) {
  TOWER_NEEDS_LLVM();
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  expect_sums(kOfLast, quarters({100003, 3}), "of three threads");
  at::set_num_threads(threads);
}

TEST(ShortSums, OfOtherRowsAreNotTaken) {
  TOWER_NEEDS_LLVM();
  const Function of_first = [](const Tensors& in) { return Tensors{in[0].sum(0)}; };
  expect_sums(of_first, quarters({3, 500}), "terms that lie apart", 0);
  expect_sums(kOfLast, quarters({500, 3}, at::kHalf), "a half type", 0);
  expect_sums(kOfLast, quarters({500, 3}, at::kLong), "integers", 0);
  expect_sums(kOfLast, quarters({500, 1}), "one term", 0);
  expect_sums(kOfLast, quarters({500, 80}), "long rows", 0);
}

// Between kernels nothing is left to LibTorch.
TEST(ShortSums, LeaveNoCallsBetweenKernels) {
  TOWER_NEEDS_LLVM();
  const auto distance = tower::compile(tower::vmap(
      [](const Tensor& x, const Tensor& y) { return ((x - y) * (x + y)).sum(-1).sqrt().exp().unsqueeze(-1); }));
  const Tensor x = at::rand({64, 45, 3}) + 1, y = at::rand({64, 45, 3});
  for (int call = 0; call < 2; ++call)
    EXPECT_TRUE(at::allclose(distance(x, y), ((x - y) * (x + y)).sum(-1).sqrt().exp().unsqueeze(-1)));
  EXPECT_NE(distance.report().find("calls left to LibTorch: 0"), std::string::npos) << distance.report();
  EXPECT_NE(distance.report().find("sums of short rows, as loops: 1"), std::string::npos) << distance.report();
}

}  // namespace
