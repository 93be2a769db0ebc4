// What lies between kernels of examples: states, not what the steps between them were made of.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <algorithm>

#include "compile/kernels.h"
#include "fuse/recompute.h"
#include "graph/plan.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using kernels::fused;
using td::Function;
using td::Tensors;

// Many steps of a small system, too many for one kernel.
Tensor last_state(Tensor y, const Tensor& stiffness, int steps) {
  for (int i = 0; i < steps; ++i) {
    const Tensor q = y.slice(0, 0, 3), v = y.slice(0, 3, 6);
    const Tensor middle = q + 0.01 * v;
    const Tensor force = -stiffness * middle - 0.1 * middle * middle * middle + 0.2 * middle.roll(1);
    y = at::cat({q + 0.02 * (v + 0.01 * force), v + 0.02 * force});
  }
  return y;
}
Function energy_gradient(int steps) {
  const Function energy = [=](const Tensors& a) -> Tensors { return {last_state(a[0], a[1], steps).square().sum()}; };
  return td::vmap(td::grad(energy, {0, 1}), {0, 0}, {0, 0});
}

// Elements of one example that kernels write and others read.
int64_t between(const compiler::FusedGraph& fused, int64_t examples) {
  int64_t elements = 0;
  for (const compiler::Call& call : fused.graph.calls)
    for (const compiler::ValueId id : call.results) {
      const auto& sizes = fused.graph.values[id].sizes;
      elements += c10::multiply_integers(sizes.begin(), sizes.end()) / examples;
    }
  return elements;
}

TEST(ComputedAgain, TheWayBackThroughManyStepsHasNothingButStatesBetweenItsKernels) {
  TOWER_NEEDS_LLVM();
  constexpr int kSteps = 80;
  const auto f = fused(energy_gradient(kSteps), {at::randn({64, 6}), at::rand({64, 3})});
  EXPECT_EQ(f.graph.calls.size(), f.kernels.size());
  EXPECT_GE(f.kernels.size(), 3u);
  // What a step leaves for its derivative is more than its state alone; here there is less than one state a step.
  EXPECT_LT(between(f, 64), 6 * kSteps) << f.graph.print();
}

TEST(ComputedAgain, ResultsAreThoseOfTheOperators) {
  TOWER_NEEDS_LLVM();
  const Function gradient = energy_gradient(40);
  compiler::Kernels kernels;
  std::vector<compiler::FusedGraph> kept;  // with their kernels, which the next ones use, too
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
    for (const int64_t n : {0, 1, 7, 64, 65}) {
      const at::TensorOptions options = at::dtype(dtype);
      // Examples next to each other, and every second row of other memory.
      for (const Tensors& args :
           {Tensors{at::randn({n, 6}, options), at::rand({n, 3}, options)},
            Tensors{at::randn({6, n}, options).t(), at::rand({2 * n, 3}, options).slice(0, 0, 2 * n, 2)}}) {
        const Tensors expected = gradient(args);
        kept.push_back(fused(gradient, args, kernels));
        const Tensors actual = compiler::Plan(kept.back().graph).run(args);
        ASSERT_EQ(actual.size(), expected.size());
        for (size_t k = 0; k < expected.size(); ++k) {
          EXPECT_EQ(actual[k].strides(), expected[k].strides());
          // The energy's sum is in another order.
          EXPECT_TRUE(actual[k].allclose(expected[k], dtype == at::kDouble ? 1e-12 : 1e-4, 1e-5)) << n;
        }
      }
    }
}

TEST(ComputedAgain, FunctionsAreNotCalledTwice) {
  TOWER_NEEDS_LLVM();
  // What is read far behind has cost more than its way through memory.
  const Function f = td::vmap(
      [](const Tensors& a) -> Tensors {
        const Tensor first = a[0].sin().exp().tanh();
        return {last_state(first, a[1], 60) + first};
      },
      {0, 0}, {0});
  const auto graph = fused(f, {at::randn({16, 6}), at::rand({16, 3})});
  int64_t functions = 0;
  for (const auto& kernel : graph.kernels)
    functions += std::count(kernel.operators.begin(), kernel.operators.end(), "aten::tanh");
  EXPECT_GE(graph.kernels.size(), 2u);
  EXPECT_EQ(functions, 1);
}

TEST(ComputedAgain, WhatIsWrittenToIsNotReadLater) {
  TOWER_NEEDS_LLVM();
  Tensor counter = at::zeros({16, 3});
  const Function f = [&](const Tensors& a) -> Tensors {
    const Tensors first = td::vmap([](const Tensors& in) -> Tensors { return {last_state(in[0], in[1], 5)}; }, {0, 0},
                                   {0})({a[0], counter});
    counter.add_(1);
    return td::vmap([](const Tensors& in) -> Tensors { return {last_state(in[0], in[1], 5)}; }, {0, 0},
                    {0})({first[0], counter});
  };
  const Tensors args{at::randn({16, 6}, at::kDouble).to(at::kFloat)};
  const Tensors expected = f(args);
  counter.zero_();
  auto graph = fused(f, args);
  counter.zero_();
  EXPECT_TRUE(compiler::Plan(std::move(graph.graph)).run(args)[0].allclose(expected[0], 1e-4, 1e-5));
}

}  // namespace
