// Calls over many examples, block by block: the same as operator by operator, whatever the number of examples, and
// whatever needs all of them.
#include "fuse/example_blocks.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include "compile/kernels.h"
#include "graph/plan.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using td::Function;
using td::Tensors;
using tower::compiler::BlockThresholds;
using tower::compiler::OtherBlockThresholds;

// All that can be in blocks is.
BlockThresholds always() { return {1, 1, 1, 0, 0}; }

Tensor some(at::IntArrayRef sizes) {
  const int64_t n = c10::multiply_integers(sizes);
  return at::sin(at::arange(n, at::kDouble) * 0.7 + 0.1).view(sizes);
}

void expect_as_operators(const Function& f, const Tensors& in, bool in_blocks) {
  const OtherBlockThresholds numbers(always());
  const tower::compiler::Graph graph = kernels::graph_of(f, in);
  tower::compiler::Kernels made;
  const tower::compiler::FusedGraph whole = tower::compiler::fuse(graph, made);
  const auto blocks = tower::compiler::fuse_in_blocks(graph, whole, made);
  EXPECT_EQ(blocks.has_value(), in_blocks);
  if (!blocks) return;
  EXPECT_NE(blocks->report().lines.find("in blocks of"), std::string::npos);
  const Tensors expected = f(in), results = tower::compiler::Plan(blocks->graph).run(in),
                without = tower::compiler::Plan(whole.graph).run(in);
  ASSERT_EQ(results.size(), expected.size());
  for (size_t k = 0; k < results.size(); ++k) {
    EXPECT_EQ(results[k].sizes(), expected[k].sizes()) << k;
    EXPECT_TRUE(results[k].allclose(expected[k], 1e-9, 1e-11)) << k;
    EXPECT_EQ(results[k].strides(), without[k].strides()) << k;
  }
}

// The mean of squared Laplacians of a network, by its weights.
Function gradient_of_network() {
  return td::grad(
      [](const Tensors& p) -> Tensors {
        const Function u = [&](const Tensors& x) -> Tensors {
          return {at::tanh(at::linear(at::tanh(at::linear(x[0], p[0], p[1])), p[2])).sum()};
        };
        const Function laplacian = [&](const Tensors& x) -> Tensors {
          const Tensor h = td::jacfwd(td::jacrev(u, {0}), {0})(x)[0];
          return {h.select(0, 0).select(0, 0) + h.select(0, 1).select(0, 1)};
        };
        return {td::vmap(laplacian, {0}, {0})({p[3]})[0].square().mean()};
      },
      {0, 1, 2});
}
Tensors of_network(int64_t examples) { return {some({20, 2}), some({20}), some({7, 20}), some({examples, 2})}; }

TEST(ExampleBlocks, AreSummedToTheGradientOfANetwork) {
  TOWER_NEEDS_LLVM();
  for (const int64_t examples : {31, 211}) {
    SCOPED_TRACE(examples);
    expect_as_operators(gradient_of_network(), of_network(examples), examples > 32);
  }
}

TEST(ExampleBlocks, GiveTheSameBitsOnAnyNumberOfThreads) {
  TOWER_NEEDS_LLVM();
  const OtherBlockThresholds numbers(always());
  Tensors in = of_network(211);
  for (Tensor& t : in) t.requires_grad_();
  const at::NoGradGuard no_grad;
  const auto f = td::compile(gradient_of_network());
  f(in);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Tensors expected = f(in);
  for (const int n : {2, 3}) {
    at::set_num_threads(n);
    const Tensors results = f(in);
    for (size_t k = 0; k < results.size(); ++k) {
      EXPECT_TRUE(results[k].equal(expected[k])) << n;
      EXPECT_FALSE(results[k].requires_grad());
    }
  }
  at::set_num_threads(threads);
}

TEST(ExampleBlocks, LeaveToLaterCallsWhatNeedsAllExamples) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) -> Tensors {
    const Function network = [&](const Tensors& x) -> Tensors {
      Tensor h = x[0];
      for (int layer = 0; layer < 6; ++layer) h = at::tanh(at::mv(in[1], h));
      return {h, h.select(0, 0)};
    };
    const Tensors y = td::vmap(network, {0}, {0, 0})({in[0]});
    const Tensor apart = y[0] - y[0].mean(0), order = at::softmax(y[1], 0);
    const Tensor again = td::vmap([](const Tensors& a) -> Tensors { return {a[0].square().sum() * a[1]}; }, {0, 0},
                                  {0})({apart, order})[0];
    return {again, again.sum(), y[0].t(), y[1].flip(0), y[0].sum(0) * 3, at::cat({y[1], order})};
  };
  for (const int64_t examples : {160, 163}) {
    SCOPED_TRACE(examples);
    expect_as_operators(f, {some({examples, 200}), some({200, 200}) / 9}, true);
  }
}

TEST(ExampleBlocks, AreOfOneDimensionWhereTwoHaveAsManyExamples) {
  TOWER_NEEDS_LLVM();
  const Function pairs = [](const Tensors& in) -> Tensors {
    const Function row = [&](const Tensors& a) -> Tensors {
      const Function of_pair = [&](const Tensors& b) -> Tensors {
        return {(a[0] - b[0]).square().sum().exp() + b[0].select(0, 0)};
      };
      const Tensor all = td::vmap(of_pair, {0}, {0})({in[0]})[0];
      return {all / all.sum(), all};
    };
    const Tensors y = td::vmap(row, {0}, {0, 1})({in[0]});
    return {y[0], y[1] + y[1].t(), y[0].sum(0), y[1].sum(0), y[0] * in[1], (y[0] * in[1].unsqueeze(1)).sum(1)};
  };
  expect_as_operators(pairs, {some({96, 3}) / 4, some({96})}, true);
}

TEST(ExampleBlocks, ReadConstantsAndArgumentsAlongTheExamplesOrWhole) {
  TOWER_NEEDS_LLVM();
  const Tensor constant = some({128}), weights = some({128, 128});
  const Function f = [=](const Tensors& in) -> Tensors {
    const Tensor y = td::vmap([&](const Tensors& a) -> Tensors { return {at::tanh(at::mv(in[1], a[0])) * a[1]}; },
                              {1, 0}, {0})({in[0], constant})[0];
    // The same tensor, cut and whole.
    const Tensor z = td::vmap([&](const Tensors& a) -> Tensors { return {at::mv(weights, a[0]) + a[1]}; }, {0, 0},
                              {0})({y, weights})[0];
    return {z.tanh().sum(0), (z * constant.unsqueeze(1)).sum(0), (z * constant).sum(0)};
  };
  expect_as_operators(f, {some({6, 128}), some({128, 6})}, true);
}

// 50 = 3 · 16 + 2: a last block of two would take as long as a whole one.
TEST(ExampleBlocks, AreOfMuchTheSameSizeWhereTheLastWouldHaveFewExamples) {
  TOWER_NEEDS_LLVM();
  const Function f =
      td::vmap([](const Tensors& in) -> Tensors { return {at::tanh(at::mv(in[1], at::tanh(at::mv(in[1], in[0]))))}; },
               {0, std::nullopt}, {0});
  const Tensors in{some({50, 200}), some({200, 200})};
  expect_as_operators(f, in, true);
  const OtherBlockThresholds numbers(always());
  const tower::compiler::Graph graph = kernels::graph_of(f, in);
  tower::compiler::Kernels made;
  const auto blocks = tower::compiler::fuse_in_blocks(graph, tower::compiler::fuse(graph, made), made);
  ASSERT_TRUE(blocks && blocks->blocks);
  const int64_t last = 50 % blocks->blocks->examples;
  EXPECT_TRUE(last == 0 || 2 * last >= blocks->blocks->examples) << blocks->blocks->examples;
}

TEST(ExampleBlocks, AreNotMadeWhereTheyMostlyReadWeightsAgain) {
  TOWER_NEEDS_LLVM();
  const Function f =
      td::vmap([](const Tensors& in) -> Tensors { return {at::tanh(at::mv(in[1], at::tanh(at::mv(in[1], in[0]))))}; },
               {0, std::nullopt}, {0});
  const auto in_blocks = [&](int64_t examples, int64_t of_shared_byte) {
    const OtherBlockThresholds numbers({1, 1, 1, of_shared_byte, 0});
    const tower::compiler::Graph graph = kernels::graph_of(f, {some({examples, 200}), some({200, 200})});
    tower::compiler::Kernels made;
    return tower::compiler::fuse_in_blocks(graph, tower::compiler::fuse(graph, made), made).has_value();
  };
  EXPECT_TRUE(in_blocks(300, 0));
  EXPECT_FALSE(in_blocks(300, 4));
  EXPECT_TRUE(in_blocks(3000, 4));
}

}  // namespace
