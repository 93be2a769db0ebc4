// Products that are made only to be summed, weighted or not, and sums of their squares.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include "compile/kernels.h"
#include "fuse/sums_as_products.h"
#include "graph/plan.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using td::Function;
using td::Tensors;

compiler::Graph contracted(const Function& f, const Tensors& args) {
  compiler::Graph graph = kernels::graph_of(f, args);
  compiler::contract_summed_products(graph);
  graph.simplify();
  return graph;
}

size_t calls_of(const compiler::Graph& graph, const std::string& name) {
  size_t n = 0;
  for (const compiler::Call& call : graph.calls) n += call.op->name() == name;
  return n;
}

// How many sums were contracted; the results are those of the operators.
size_t contractions(const Function& f, const Tensors& args, double tolerance = 1e-5) {
  compiler::Graph graph = contracted(f, args);
  const size_t n = calls_of(graph, "tower::contraction");
  kernels::expect_as_operators(std::move(graph), f, args, tolerance);
  return n;
}

// A bare {0, 2} is a pointer and a length, too, which before LibTorch 2.13 may be names.
using Dims = at::IntArrayRef;

Tensor outer(const Tensors& in) { return in[0].unsqueeze(2) * in[1].unsqueeze(1); }
Tensors pair(int64_t n, at::ScalarType dtype = at::kFloat) {
  return {at::randn({n, 20}, at::kDouble).to(dtype), at::randn({n, 30}, at::kDouble).to(dtype)};
}

// Each example's gradient by a weight, clipped by the norm of all of it, and averaged: as DP-SGD has it.
Tensors clipped_mean(const Tensors& in) {
  const Tensor g = outer(in), flat = g.flatten(1);
  const Tensor factor = flat.square().sum(1).sqrt().reciprocal().clamp_max(1) / g.size(0);
  return {at::mv(flat.t(), factor).view({20, 30})};
}

TEST(Contraction, ExamplesGradientsAreClippedAndSummedWithoutBeingThere) {
  for (const int64_t n : {7, 64, 65}) {
    EXPECT_EQ(contractions(clipped_mean, pair(n)), 2u);
    const compiler::Graph graph = contracted(clipped_mean, pair(n));
    for (const compiler::Call& call : graph.calls)
      for (const compiler::ValueId id : call.results)
        EXPECT_LT(c10::multiply_integers(graph.values[id].sizes), n * 20 * 30) << graph.print();
  }
}

TEST(Contraction, FewExamplesAndNoneAreRight) {
  for (const int64_t n : {0, 1, 2}) contractions(clipped_mean, pair(n));
}

TEST(Contraction, SumsOfSquaresAndNormsOverAnyDimensions) {
  const auto sums = [](auto f) { return [f](const Tensors& in) { return Tensors{f(outer(in))}; }; };
  EXPECT_EQ(contractions(sums([](const Tensor& g) { return g.square().sum(); }), pair(64)), 1u);
  EXPECT_EQ(contractions(sums([](const Tensor& g) { return g.pow(2).sum(Dims{0, 2}, true); }), pair(64)), 1u);
  EXPECT_EQ(contractions(sums([](const Tensor& g) { return (g * g).sum(1); }), pair(64)), 1u);
  EXPECT_EQ(contractions(sums([](const Tensor& g) { return at::linalg_vector_norm(g, 2, {{1, 2}}); }), pair(64)), 1u);
  EXPECT_EQ(contractions(sums([](const Tensor& g) { return g.transpose(1, 2).norm(2, {1, 2}); }), pair(64)), 1u);
}

TEST(Contraction, BatchesOfMatrixProductsAreSummedAsThoseOfElements) {
  const auto product = [](const Tensors& in) { return in[0].unsqueeze(2).bmm(in[1].unsqueeze(1)); };
  EXPECT_EQ(contractions([&](const Tensors& in) { return Tensors{product(in).sum(0)}; }, pair(64)), 1u);
  EXPECT_EQ(contractions(
                [&](const Tensors& in) {
                  return Tensors{product(in).mul(0.5).permute({2, 0, 1}).sum({1})};
                },
                pair(64)),
            0u);  // half of each is no product of two tensors
  EXPECT_EQ(contractions(
                [&](const Tensors& in) {
                  return Tensors{product(in).permute({2, 0, 1}).sum({1})};
                },
                pair(64)),
            1u);
  const Tensor of_columns = at::randn({64, 30, 1});
  EXPECT_EQ(contractions([&](const Tensors& in) { return Tensors{product(in).bmm(of_columns).sum(0)}; }, pair(64)), 1u);
}

TEST(Contraction, SquaresAreSummedInARangeThatHoldsThem) {
  // Neither factor's square is a float32; those of the products are.
  const Tensors in{at::full({64, 20}, 1e-30), at::full({64, 30}, 1e30)};
  const Function f = [](const Tensors& a) { return Tensors{outer(a).square().sum({1, 2})}; };
  EXPECT_EQ(contractions(f, in), 1u);
}

TEST(Contraction, SquaresOfFloat64AreLeftAlone) {
  const Function f = [](const Tensors& a) { return Tensors{outer(a).square().sum({1, 2})}; };
  EXPECT_EQ(contractions(f, pair(64, at::kDouble), 1e-12), 0u);
}

TEST(Contraction, WeightsOfTheTermsAreFactors) {
  const Tensor weights = at::randn({64}), of_rows = at::randn({64, 20});
  EXPECT_EQ(contractions(
                [&](const Tensors& in) {
                  return Tensors{(outer(in) * weights.view({64, 1, 1})).sum(0)};
                },
                pair(64)),
            1u);
  EXPECT_EQ(
      contractions([&](const Tensors& in) { return Tensors{(of_rows.unsqueeze(2) * outer(in)).sum(0)}; }, pair(64)),
      1u);
  EXPECT_EQ(
      contractions([&](const Tensors& in) { return Tensors{weights.unsqueeze(0).mm(outer(in).flatten(1))}; }, pair(64)),
      1u);
}

TEST(Contraction, WeightedTermsAreSquaredWithTheirWeights) {
  const Tensor weights = at::randn({64}), of_rows = at::randn({64, 20});
  const auto weighted = [&](const Tensors& in) { return weights.view({64, 1, 1}) * outer(in) * of_rows.unsqueeze(2); };
  EXPECT_EQ(contractions([&](const Tensors& in) { return Tensors{weighted(in).square().sum({1, 2})}; }, pair(64)), 1u);
  EXPECT_EQ(contractions([&](const Tensors& in) { return Tensors{weighted(in).norm(2, Dims{0, 2})}; }, pair(64)), 1u);
}

TEST(Contraction, SumsOverSeveralDimensionsThatDoNotFollowEachOther) {
  for (const int64_t n : {0, 1, 7, 64}) {
    const Tensors in{at::randn({20, n, 3}).permute({1, 2, 0}), at::randn({n, 30, 3}).transpose(1, 2)};
    const Function f = [](const Tensors& a) {
      return Tensors{(a[0].unsqueeze(3) * a[1].unsqueeze(2)).sum(Dims{0, 1})};
    };
    EXPECT_EQ(contractions(f, in), n < 7 ? 0u : 1u);
  }
}

TEST(Contraction, ExpandedFactorsCountForEachTerm) {
  const Tensors in{at::randn({1, 20}).expand({64, 20}), at::randn({1, 30}).expand({64, 30})};
  EXPECT_EQ(contractions([](const Tensors& a) { return Tensors{outer(a).sum(0)}; }, in), 1u);
  EXPECT_EQ(contractions([](const Tensors& a) { return Tensors{outer(a).square().sum(Dims{0, 2})}; }, in), 1u);
}

TEST(Contraction, UnderAVmapToo) {
  const Function f = [](const Tensors& in) {
    const auto one = [](const Tensors& a) { return Tensors{(a[0].unsqueeze(1) * a[1].unsqueeze(0)).square().sum()}; };
    return td::vmap(one, {0, 1}, {0})({in[0], in[1].t()});
  };
  EXPECT_EQ(contractions(f, pair(64)), 1u);
}

TEST(Contraction, WhatIsNoProductAnyMoreIsNotContracted) {
  // A square of a sum, a root of squares that goes on, terms that somebody reads, terms of which two sums are needed
  // one after the other.
  EXPECT_EQ(contractions([](const Tensors& in) { return Tensors{outer(in).sum(0).square().sum(0)}; }, pair(64)), 1u);
  EXPECT_EQ(contractions([](const Tensors& in) { return Tensors{outer(in).exp().sum(0)}; }, pair(64)), 0u);
  EXPECT_EQ(contractions(
                [](const Tensors& in) {
                  const Tensor g = outer(in);
                  return Tensors{g, g.square().sum({1, 2})};
                },
                pair(64)),
            0u);
  EXPECT_EQ(contractions(
                [](const Tensors& in) {
                  const Tensor sum = outer(in).sum(0);
                  return Tensors{sum, sum.sum(0)};
                },
                pair(64, at::kDouble), 1e-12),
            1u);
}

}  // namespace
