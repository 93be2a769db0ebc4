// Which calls of a graph become kernels, and that what they compute is what the calls compute.
#include "fuse/fuse.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <cstdlib>

#include "compile/kernels.h"
#include "graph/plan.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using td::Tensors;

struct Result {
  std::vector<size_t> kernels;  // the number of operators of each
  size_t calls;                 // in all
};

// Fuses, runs, compares: arithmetic is to be equal.
Result fused(const td::Function& f, const Tensors& args) {
  compiler::FusedGraph fused = kernels::fused(f, args);
  Result result{{}, fused.graph.calls.size()};
  for (const compiler::Fused& k : fused.kernels) result.kernels.push_back(k.operators.size());
  const Tensors expected = f(args), actual = compiler::Plan(std::move(fused.graph)).run(args);
  for (size_t k = 0; k < expected.size(); ++k) {
    EXPECT_EQ(actual[k].scalar_type(), expected[k].scalar_type());
    EXPECT_TRUE(actual[k].equal(expected[k])) << k;
    EXPECT_EQ(actual[k].strides(), expected[k].strides()) << k;
  }
  return result;
}

using Sizes = std::vector<size_t>;

TEST(Fusion, AChainIsOneKernel) {
  TOWER_NEEDS_LLVM();
  const auto r = fused([](const Tensors& in) { return Tensors{((in[0] * 2 + in[1]).abs() - 1).neg()}; },
                       {at::randn({100, 3}), at::randn({100, 3})});
  EXPECT_EQ(r.kernels, Sizes{5});
  EXPECT_EQ(r.calls, 1u);
}

TEST(Fusion, OneOperatorAloneIsLeftToLibTorch) {
  TOWER_NEEDS_LLVM();
  const auto r = fused([](const Tensors& in) { return Tensors{in[0].neg()}; }, {at::randn({5})});
  EXPECT_EQ(r.kernels, Sizes{});
}

TEST(Fusion, EveryValueThatIsReadOutsideLeavesTheKernel) {
  TOWER_NEEDS_LLVM();
  const auto r = fused(
      [](const Tensors& in) {
        const Tensor a = in[0] + 1, b = a * a, c = b - in[0];
        return Tensors{b, c, a.cumsum(0)};
      },
      {at::randn({70, 4})});
  EXPECT_EQ(r.kernels, Sizes{3});
}

TEST(Fusion, WhatWaitsForACallBetweenStaysApart) {
  TOWER_NEEDS_LLVM();
  const auto r = fused(
      [](const Tensors& in) {
        const Tensor a = (in[0] + 1) * 2;                 // before
        const Tensor total = a.cumsum(0).select(0, 499);  // between, reads before
        return Tensors{(a - total).abs()};                // after, reads both
      },
      {at::randn({500})});
  EXPECT_EQ(r.kernels, (Sizes{2, 2}));
}

TEST(Fusion, CallsThatOnlyReadTheSameAreTogether) {
  TOWER_NEEDS_LLVM();
  const auto r = fused([](const Tensors& in) { return Tensors{in[0] * 2, in[0] + 3}; }, {at::randn({50})});
  EXPECT_EQ(r.kernels, Sizes{2});
}

TEST(Fusion, OperandsBroadcastAndLieAsTheyLie) {
  TOWER_NEEDS_LLVM();
  const Tensor row = at::randn({6}), column = at::randn({9, 1}), one = at::randn({}), whole = at::randn({9, 6});
  for (const Tensor& x : {at::randn({6, 9}).t(), at::randn({9, 12}).slice(1, 1, 12, 2),
                          at::randn({9, 1}).expand({9, 6}), at::randn({20, 6}).narrow(0, 3, 9)}) {
    const auto r = fused([&](const Tensors& in) { return Tensors{((in[0] + in[1]) * in[2] - in[3]) * in[4]}; },
                         {whole, x, row, column, one});
    EXPECT_EQ(r.kernels, Sizes{4});
  }
}

TEST(Fusion, ResultsLieInMemoryAsTheyWould) {
  TOWER_NEEDS_LLVM();
  const Tensor across = at::randn({6, 9}).t(), along = at::randn({9, 6});
  const auto r = fused(
      [&](const Tensors& in) {
        const Tensor a = in[0] * 2 + 1, b = in[1] * 3, c = b - a;
        return Tensors{a, b, c, a * 5};
      },
      {across, along});
  EXPECT_EQ(r.kernels, Sizes{5});
  fused([](const Tensors& in) { return Tensors{(in[0] * 2 + 1).abs()}; },
        {at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)});
}

TEST(Fusion, MappedExamplesAreLanesWhereverTheyLie) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensors& in) { return Tensors{(in[0] * in[1] + in[2]).abs() * in[1]}; };
  const auto mapped = td::vmap(f, {1, 0, std::nullopt}, {0});
  EXPECT_EQ(fused(mapped, {at::randn({4, 9}), at::randn({9}), at::randn({4})}).kernels, Sizes{4});
  const auto twice = td::vmap(mapped, {0, std::nullopt, 1}, {0});
  EXPECT_EQ(fused(twice, {at::randn({5, 4, 9}), at::randn({9}), at::randn({4, 5})}).kernels, Sizes{4});
  // What is small for one example is unrolled, whatever its size; of rows, a product with a third of the sum's elements
  // is no part of its region, but a kernel beside it.
  EXPECT_EQ(fused(mapped, {at::randn({4, 9}), at::randn({9}), at::randn({3, 4})}).kernels, Sizes{4});
  EXPECT_EQ(fused(f, {at::randn({40, 90}), at::randn({90}), at::randn({3, 40, 90})}).kernels, (Sizes{3, 1}));
}

TEST(Fusion, GradientsAreOneKernelWithTheirFunction) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensors& in) { return Tensors{(in[0] * in[0] * in[1]).sum()}; };
  const auto r = fused(td::vmap(td::grad(f, {0}), {0, 0}, {0}), {at::randn({30, 4}), at::randn({30, 4})});
  EXPECT_GE(r.kernels.size(), 1u);
}

TEST(Fusion, EmptyTensorsAndSingleNumbersGoThrough) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensors& in) { return Tensors{(in[0] * 2 + 1).neg()}; };
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{0}, {}, {1}, {3, 0}})
    EXPECT_EQ(fused(f, {at::randn(sizes)}).kernels, Sizes{3});
}

TEST(Fusion, OtherDtypesAreLeftToLibTorch) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensors& in) { return Tensors{(in[0] * 2 + 1).neg()}; };
  for (const auto dtype : {at::kByte, at::kShort, at::kComplexFloat})
    EXPECT_EQ(fused(f, {at::ones({5}, dtype)}).kernels, Sizes{});
}

TEST(Fusion, RandomNumbersAreDrawnInTheSameOrder) {
  TOWER_NEEDS_LLVM();
  const td::Function f = [](const Tensors& in) {
    const Tensor a = at::rand_like(in[0]), b = (at::rand_like(in[0]) * 2 + a).abs();
    return Tensors{b - at::rand_like(b) * in[0]};
  };
  const Tensors args{at::randn({40})};
  compiler::Kernels kernels;
  const compiler::Plan plan(kernels::fused(f, args, kernels).graph);
  at::manual_seed(5);
  const Tensors expected = f(args);
  at::manual_seed(5);
  EXPECT_TRUE(plan.run(args)[0].equal(expected[0]));
}

TEST(Fusion, GraphsOfOtherSizesShareTheirKernels) {
  TOWER_NEEDS_LLVM();
  const td::Function f = [](const Tensors& in) { return Tensors{(in[0] * 2 + in[1]).neg()}; };
  compiler::Kernels kernels;
  const auto kernel = [&](const Tensors& args) { return kernels::fused(f, args, kernels).kernels.at(0).kernel; };
  const auto first = kernel({at::ones({10}), at::ones({10})});
  EXPECT_EQ(kernel({at::ones({10001}), at::ones({10001})}), first);
  EXPECT_EQ(kernel({at::ones({3, 7}), at::ones({3, 7})}), first);
  EXPECT_NE(kernel({at::ones({3, 7}), at::ones({})}), first);
}

// ---- through tower::compile ----

Tensor polynomial(const Tensor& x, const Tensor& y) { return ((x * y + 1) * x - y).abs() * 0.5; }

TEST(CompiledKernels, RunFromTheSecondCallOnAndGiveTheSame) {
  TOWER_NEEDS_LLVM();
  const auto f = tower::compile(polynomial);
  for (int i = 0; i < 3; ++i) {
    const Tensor x = at::randn({1000}), y = at::randn({1000});
    EXPECT_TRUE(f(x, y).equal(polynomial(x, y)));
  }
  EXPECT_NE(f.report().find("6 operators, 1000 lanes"), std::string::npos) << f.report();
}

TEST(CompiledKernels, ReadWhatWasCapturedAtEachCall) {
  TOWER_NEEDS_LLVM();
  const Tensor scale = at::ones({1}), x = at::randn({1000});
  const auto f = tower::compile([&](const Tensor& t) { return (t * scale + 1).neg(); });
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(f(x).equal((x * scale + 1).neg()));
    scale.add_(1);
  }
}

TEST(CompiledKernels, LeaveTransformsAndAutogradWhatTheyFollow) {
  TOWER_NEEDS_LLVM();
  const auto f = tower::compile(polynomial);
  const auto loss = [&](const Tensor& x, const Tensor& y) { return f(x, y).sum(); };
  const auto plain = [&](const Tensor& x, const Tensor& y) { return polynomial(x, y).sum(); };
  const Tensor y = at::randn({20});
  for (int i = 0; i < 3; ++i) {
    Tensor x = at::randn({20});
    EXPECT_TRUE(f(x, y).equal(polynomial(x, y)));
    EXPECT_TRUE(tower::grad(loss)(x, y).equal(tower::grad(plain)(x, y)));
    EXPECT_TRUE(tower::vmap(f)(x, y).equal(polynomial(x, y)));
    x.requires_grad_();
    const Tensor z = x.detach().clone().requires_grad_();
    loss(x, y).backward();
    plain(z, y).backward();
    EXPECT_TRUE(x.grad().equal(z.grad()));
  }
}

// In a process of its own: whether there is LLVM is found out once.
TEST(CompiledKernelsDeathTest, WithoutLlvmAllRunsOperatorByOperatorWithAWarning) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto without_llvm = [] {
    setenv("TOWER_LLVM", "/nowhere/libLLVM.so", 1);
    const auto f = tower::compile(polynomial);
    const Tensor x = at::ones({20}), y = at::arange(20, at::kFloat);
    bool right = true;
    for (int i = 0; i < 3; ++i) right = right && f(x, y).equal(polynomial(x, y));
    std::exit(right ? 0 : 1);
  };
  EXPECT_EXIT(without_llvm(), testing::ExitedWithCode(0),
              "operator by operator, not as machine code: no LLVM: /nowhere/libLLVM.so");
}

// What is in kernels, and what is not, with the reason.
TEST(CompiledKernels, AreReportedOnAPage) {
  TOWER_NEEDS_LLVM();
  const auto f = tower::compile([](const Tensor& x) {
    const auto left = [](const Tensor& t) { return at::igamma(t, t); };
    const Tensor a = x.sin() * 2, b = std::get<0>(at::sort(a)), c = left(b.abs() + 1);
    return (c + left(c.exp()) + at::rand_like(c)).to(at::kShort).mul(2).add(1);
  });
  EXPECT_EQ(f.report(), "graphs: 0\n");
  for (int call = 0; call < 2; ++call) f(at::rand({100}, at::kDouble));
  const std::string report = f.report();
  EXPECT_TRUE(report.starts_with("graphs: 1; in the one used last, kernels: ")) << report;
  for (const char* text :
       {"kernels: 4, of 7 operators; calls left to LibTorch: 7\n", "  no rule for kernels: aten::igamma ×2\n",
        "  a rule for small tensors alone, or not worth it: aten::sort\n",
        "  they draw random numbers: aten::rand_like\n",
        "  no kernels compute in Short: aten::_to_copy, aten::add.Scalar, aten::mul.Scalar\n",
        "\ngraph Double [100]\nkernel 0: "})
    EXPECT_NE(report.find(text), std::string::npos) << text << " in\n" << report;
  // Sixty graphs are many pages.
  for (int64_t n = 1; n < 60; ++n)
    for (int call = 0; call < 2; ++call) f(at::rand({n + 100}, at::kDouble));
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  EXPECT_LE(lines(f.report()), 51);
  EXPECT_NE(f.report().find(" lines more, in listing()\n"), std::string::npos) << f.report();
  EXPECT_GE(lines(f.listing()), 120);
}

TEST(CompiledKernels, ReportAnIntegerDividedByZeroAsLibTorchDoes) {
  TOWER_NEEDS_LLVM();
  const auto f = tower::compile([](const Tensor& a, const Tensor& b) { return at::div(a + 1, b, "floor") * 2; });
  const Tensor a = at::arange(10), b = at::ones({10}, at::kLong);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(f(a, b).equal((a + 1) * 2));
  b[9] = 0;
  EXPECT_THROW(f(a, b), c10::Error);
}

}  // namespace
