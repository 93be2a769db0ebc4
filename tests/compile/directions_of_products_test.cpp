// Derivatives along many directions at once: what their products of matrices have in common, vmaps over one row that
// are around pullbacks, and what kernels compute again rather than read.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "compile/kernels.h"
#include "fuse/scaled_products.h"
#include "fuse/vmaps_of_one.h"
#include "fuse/weighted_sums.h"
#include "graph/operand_dims.h"
#include "graph/plan.h"
#include "kernels/llvm.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using compiler::Graph;
using td::Function;
using td::Tensors;

constexpr int64_t kMolecules = 6, kPairs = 20, kWidth = 8;

Tensor weight(int64_t n, int64_t m) { return at::linspace(-1, 1, n * m, at::kDouble).mul(7).sin().view({n, m}); }

enum class Layer : uint8_t { softplus, tanh, elu, silu };
Tensor through(const Tensor& x, Layer layer) {
  switch (layer) {
    case Layer::softplus:
      return at::softplus(x);
    case Layer::tanh:
      return at::tanh(x);
    case Layer::elu:
      return at::elu(x);
    case Layer::silu:
      return at::silu(x);
  }
  return x;
}

// An energy of distances between points, by a network of each: [points, 3] to a number.
Function energy(Layer layer) {
  return [=](const Tensors& in) {
    const Tensor points = in[0], i = at::arange(kPairs).remainder(5), j = at::arange(kPairs).remainder(4) + 5;
    const Tensor distance = (points.index_select(0, i) - points.index_select(0, j)).square().sum(-1).sqrt();
    const Tensor waves = at::exp(-(distance.unsqueeze(-1) - at::linspace(0, 3, kWidth, at::kDouble)).square());
    const Tensor hidden = through(at::mm(waves, weight(kWidth, kWidth)) + 0.1, layer);
    return Tensors{(at::mm(hidden, weight(kWidth, kWidth)) * distance.unsqueeze(-1)).square().sum()};
  };
}
Tensors points() { return {at::rand({kMolecules, 9, 3}, at::kDouble) + at::arange(27).view({9, 3}).remainder(7)}; }

Function jacobian_of_rows(Layer layer) {
  return td::vmap(td::jacfwd(
                      [=](const Tensors& in) {
                        const Tensor r = in[0].square().sum(-1).sqrt();
                        const Tensor waves =
                            at::exp(-(r.unsqueeze(-1) - at::linspace(0, 3, kWidth, at::kDouble)).square());
                        const Tensor hidden = through(at::mm(waves, weight(kWidth, kWidth)), layer);
                        return Tensors{at::mm(hidden, weight(kWidth, kWidth))};
                      },
                      {0}),
                  {0}, {0});
}
Tensors rows() { return {at::rand({kMolecules, kPairs, 3}, at::kDouble) + 0.5}; }

size_t count_products(const Graph& graph, bool of_all_directions) {
  size_t n = 0;
  for (const compiler::Call& call : graph.calls)
    n += call.op->contraction && call.vmaps.size() == 2 && (call.vmaps[1].batch_size > 1) == of_all_directions;
  return n;
}

TEST(DirectionsOfProducts, AScaleOfEachRowComesOutOfAllProductsThatFollow) {
  for (const Layer layer : {Layer::softplus, Layer::tanh, Layer::elu, Layer::silu}) {
    Graph graph = kernels::graph_of(jacobian_of_rows(layer), rows());
    EXPECT_EQ(count_products(graph, true), 2u);
    compiler::take_scales_out_of_products(graph);
    graph.simplify();
    EXPECT_EQ(count_products(graph, true), 0u);
    EXPECT_EQ(count_products(graph, false), 2u);
    kernels::expect_as_operators(std::move(graph), jacobian_of_rows(layer), rows(), 1e-12);
  }
}

// What is not a scale of rows: products stay as they are, and so does the graph.
TEST(DirectionsOfProducts, WhatDiffersAlongWhatIsSummedOverStaysInTheProduct) {
  const Tensor directions = at::rand({30, kPairs, kWidth}, at::kDouble), scales = directions.slice(2, 0, 1);
  const Tensor weights = at::rand({30, kWidth, kWidth}, at::kDouble);
  const auto mapped = [](const Function& f, const td::Dims& dims) {
    return td::vmap(td::vmap(f, dims, {0}), {0, std::nullopt, std::nullopt}, {0});
  };
  const Function of_columns = [](const Tensors& in) { return Tensors{at::mm(in[0] * in[1], in[2])}; };
  const Function of_sums = [](const Tensors& in) { return Tensors{at::mm(in[0] * in[1] + in[1], in[2])}; };
  const Function of_functions = [](const Tensors& in) { return Tensors{at::mm((in[0] * in[1]).tanh(), in[2])}; };
  const Tensor x = at::rand({kMolecules, kPairs, kWidth}, at::kDouble), w = weight(kWidth, kWidth);
  const auto products = [&](const Function& f, const Tensors& args, const td::Dims& dims) {
    Graph graph = kernels::graph_of(mapped(f, dims), args);
    compiler::take_scales_out_of_products(graph);
    graph.simplify();
    const size_t n = count_products(graph, true);
    kernels::expect_as_operators(std::move(graph), mapped(f, dims), args, 1e-12);
    return n;
  };
  const td::Dims by_direction{std::nullopt, 0, std::nullopt}, all_by_direction{std::nullopt, 0, 0};
  EXPECT_EQ(products(of_columns, {x, scales, w}, by_direction), 0u);
  EXPECT_EQ(products(of_columns, {x, directions, w}, by_direction), 1u);
  EXPECT_EQ(products(of_columns, {x, scales, weights}, all_by_direction), 1u);
  EXPECT_EQ(products(of_sums, {x, scales, w}, by_direction), 1u);
  EXPECT_EQ(products(of_functions, {x, scales, w}, by_direction), 1u);
}

TEST(DirectionsOfProducts, ScalesThatAreZeroInfiniteOrNoNumbersGiveWhatTheOperatorsDo) {
  Tensor scales = at::rand({30, kPairs, 1}, at::kDouble);
  scales[0].fill_(0);
  scales[1].fill_(std::numeric_limits<double>::infinity());
  scales[2].fill_(std::numeric_limits<double>::quiet_NaN());
  Tensor x = at::rand({kMolecules, kPairs, kWidth}, at::kDouble);
  x[1].fill_(std::numeric_limits<double>::infinity());
  const Function f =
      td::vmap(td::vmap([](const Tensors& in) { return Tensors{at::mm(in[0] * in[1], in[2].abs() + 1)}; },
                        {std::nullopt, 0, std::nullopt}, {0}),
               {0, std::nullopt, std::nullopt}, {0});
  const Tensors args{x, scales, weight(kWidth, kWidth)};
  Graph graph = kernels::graph_of(f, args);
  compiler::take_scales_out_of_products(graph);
  graph.simplify();
  EXPECT_EQ(count_products(graph, true), 0u);
  kernels::expect_as_operators(std::move(graph), f, args, 1e-12);
}

// Of points in one place, a distance's tangent is no number: masks leave it out, before the product as behind it.
TEST(DirectionsOfProducts, WhatAMaskLeavesOutIsNotScaledAfterwards) {
  Tensor scales = at::rand({30, kPairs, 1}, at::kDouble);
  scales.select(1, 0).fill_(std::numeric_limits<double>::infinity());
  scales.select(1, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  const Tensor x = at::rand({kMolecules, kPairs, kWidth}, at::kDouble), w = weight(kWidth, kWidth);
  const Tensor mask = at::arange(kPairs).gt(1).unsqueeze(1);
  for (const bool by_relu : {false, true}) {
    const Function f = td::vmap(
        td::vmap(
            [=](const Tensors& in) {
              const Tensor y = in[0] * in[1], below = at::where(mask, 1., -1.);
              return Tensors{at::mm(
                  by_relu ? at::threshold_backward(y, below, 0.) : at::where(mask, y, at::zeros({}, at::kDouble)), w)};
            },
            {std::nullopt, 0}, {0}),
        {0, std::nullopt}, {0});
    EXPECT_TRUE(at::isfinite(f({x, scales})[0]).all().item<bool>());
    Graph graph = kernels::graph_of(f, {x, scales});
    compiler::take_scales_out_of_products(graph);
    compiler::take_products_out_of_sums(graph);
    graph.simplify();
    kernels::expect_as_operators(std::move(graph), f, {x, scales}, 1e-12);
  }
}

size_t vmaps_of_one(const Graph& graph) {
  size_t n = 0;
  for (const compiler::Call& call : graph.calls)
    for (size_t v = 1; v < call.vmaps.size(); ++v) n += call.vmaps[v].batch_size == 1;
  return n;
}

// Strides of dimensions of one element are open.
void expect_without_vmaps_of_one(const Function& f, const Tensors& args) {
  Graph graph = kernels::graph_of(f, args);
  EXPECT_GT(vmaps_of_one(graph), 0u);
  compiler::drop_vmaps_of_one(graph);
  EXPECT_EQ(vmaps_of_one(graph), 0u);
  graph.simplify();
  const Tensors expected = f(args), found = compiler::Plan(std::move(graph)).run(args);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t k = 0; k < found.size(); ++k) {
    EXPECT_EQ(found[k].sizes(), expected[k].sizes());
    EXPECT_TRUE(at::allclose(found[k], expected[k], 1e-12, 1e-12));
  }
}

TEST(DirectionsOfProducts, VmapsOverOneRowAreLeftOutOfHessians) {
  expect_without_vmaps_of_one(td::vmap(td::jacfwd(td::jacrev(energy(Layer::softplus), {0}), {0}), {0}, {0}), points());
}

TEST(DirectionsOfProducts, VmapsOfOneAreLeftOutWhicheverDimensionTheyMapAndWhatLeavesHasThem) {
  const Function f = [](const Tensors& in) {
    return Tensors{at::mm(in[0], in[1]).tanh() * in[2], in[0].sum(0), in[1].t(), in[0].unsqueeze(0).squeeze(0)};
  };
  const Tensor c = at::rand({2, 4}, at::kDouble);
  // Inside of four examples; and between three, and two inside of it.
  const Function of_one = td::vmap(f, {1, 1, std::nullopt}, {0, 1, 0, 2});
  expect_without_vmaps_of_one(td::vmap(of_one, {0, 3, std::nullopt}, {0, 0, 0, 0}),
                              {at::rand({4, 5, 1, 6}, at::kDouble), at::rand({6, 1, 4, 4}, at::kDouble), c[0]});
  const Function two = td::vmap(f, {0, std::nullopt, 0}, {1, 1, 1, 1});
  const Function around_two = td::vmap(two, {2, 1, std::nullopt}, {0, 0, 0, 0});
  expect_without_vmaps_of_one(td::vmap(around_two, {0, std::nullopt, std::nullopt}, {0, 0, 0, 0}),
                              {at::rand({3, 2, 5, 1, 6}, at::kDouble), at::rand({6, 1, 4}, at::kDouble), c});
}

// The gradient by one number of a row, from cotangents of the directions.
TEST(DirectionsOfProducts, ProductsOnTheWayToSumsOfRowsAreMadeOnceForAllDirections) {
  for (const Layer layer : {Layer::softplus, Layer::tanh, Layer::elu, Layer::silu}) {
    for (const bool keepdim : {false, true}) {
      const Function of_row = [=](const Tensors& in) {
        const Tensor hidden = at::mm(in[0], weight(kWidth, 2 * kWidth)), slope = through(in[1], layer);
        const Tensor back = at::mm(hidden * slope.repeat({1, 2}) + in[0].repeat({1, 2}), weight(2 * kWidth, kWidth));
        return Tensors{((back + in[2] * in[1]) * slope / 2).sum(1, keepdim)};
      };
      const Function f = td::vmap(td::vmap(of_row, {0, std::nullopt, 0}, {0}), {0, 0, std::nullopt}, {0});
      const Tensors args{at::rand({kMolecules, 30, kPairs, kWidth}, at::kDouble),
                         at::rand({kMolecules, kPairs, kWidth}, at::kDouble), at::rand({30, kPairs, 1}, at::kDouble)};
      Graph graph = kernels::graph_of(f, args);
      EXPECT_EQ(count_products(graph, true), 2u);
      compiler::take_products_out_of_sums(graph);
      graph.simplify();
      EXPECT_EQ(count_products(graph, true), 0u);
      kernels::expect_as_operators(std::move(graph), f, args, 1e-11);
    }
  }
}

TEST(DirectionsOfProducts, ProductsThatOthersReadOrWhoseSumsHaveWeightsOfDirectionsRemain) {
  const Tensor w = weight(kWidth, kWidth);
  const auto products = [&](const Function& of_row, const td::Dims& outputs, const td::Dims& second = {0}) {
    const Function f = td::vmap(td::vmap(of_row, {0, second[0]}, outputs), {0, 0}, outputs);
    const Tensors args{at::rand({kMolecules, 30, kPairs, kWidth}, at::kDouble),
                       at::rand({kMolecules, 30, kPairs, kWidth}, at::kDouble)};
    Graph graph = kernels::graph_of(f, args);
    compiler::take_products_out_of_sums(graph);
    graph.simplify();
    const size_t n = count_products(graph, true);
    kernels::expect_as_operators(std::move(graph), f, args, 1e-11);
    return n;
  };
  EXPECT_EQ(products([=](const Tensors& in) { return Tensors{at::mm(in[0], w).sum(1)}; }, {0}), 0u);
  EXPECT_EQ(products([=](const Tensors& in) { return Tensors{(at::mm(in[0], w) * in[1]).sum(1)}; }, {0}), 1u);
  EXPECT_EQ(products([=](const Tensors& in) { return Tensors{at::mm(in[0], w).tanh().sum(1)}; }, {0}), 1u);
  EXPECT_EQ(products([=](const Tensors& in) { return Tensors{at::mm(in[0], w).sum(0)}; }, {0}), 1u);
  EXPECT_EQ(products(
                [=](const Tensors& in) {
                  const Tensor y = at::mm(in[0], w);
                  return Tensors{y.sum(1), y};
                },
                {0, 0}),
            1u);
}

// How many calls give a value of so many elements.
size_t values_of(const Graph& graph, int64_t elements) {
  size_t n = 0;
  for (const compiler::Call& call : graph.calls)
    for (const compiler::ValueId id : call.results) n += compiler::count(graph.values[id].sizes) == elements;
  return n;
}

TEST(DirectionsOfProducts, WhatIsSmallInFactorsIsComputedAgainByTheKernelThatReadsIt) {
  TOWER_NEEDS_LLVM();
  const Tensor s = at::rand({600, 1}), m = at::rand({1, 64}), w = at::rand({64, 64}) / 64;
  const Function f = [](const Tensors& in) {
    const Tensor y = in[0] * in[1];
    return Tensors{at::mm(y.tanh(), in[2]) * y};
  };
  // The hyperbolic tangent, the product, and the result.
  EXPECT_EQ(values_of(kernels::fused(f, {s, m, w}).graph, 600 * 64), 3u);
  kernels::calls_left(f, {s, m, w}, 1e-6);
}

TEST(DirectionsOfProducts, RowsThatAnIndexRepeatsAreReadAgainByTheKernelThatNeedsThem) {
  TOWER_NEEDS_LLVM();
  const Tensor table = at::rand({10, 64}), index = at::arange(600).remainder(10), w = at::rand({64, 64}) / 64;
  const Function f = [](const Tensors& in) {
    const Tensor y = in[0].index_select(0, in[1]);
    return Tensors{at::mm((y * in[3]).tanh(), in[2]) * y * in[0].index_select(0, in[4])};
  };
  const Tensors args{table, index, w, at::rand({600, 64}), index.flip(0)};
  EXPECT_EQ(values_of(kernels::fused(f, args).graph, 600 * 64), 3u);
  kernels::calls_left(f, args, 1e-6);
}

// Calls get other numbers by that, also those of kernels whose lanes are examples.
TEST(DirectionsOfProducts, KernelsOfSmallExamplesStandBesideThoseThatComputeAgain) {
  TOWER_NEEDS_LLVM();
  const Function of_example = [](const Tensors& in) {
    const Tensor x = in[0].cumsum(0).view({3, 3});
    return Tensors{at::mm(x, x.t()).sum(0) * in[1].sum(), x.flip(0)};
  };
  const Function f = [=](const Tensors& in) {
    const Tensor y = in[0] * in[1];
    const Tensor large = at::mm(y.tanh(), in[2]) * y;
    const Tensors small = td::vmap(of_example, {0, 0}, {0, 0})({in[3], large.slice(0, 0, 100).slice(1, 0, 5)});
    return Tensors{large, small[0], small[1]};
  };
  const Tensors args{at::rand({600, 1}), at::rand({1, 64}), at::rand({64, 64}) / 64, at::rand({100, 9})};
  const auto fused = kernels::fused(f, args);
  EXPECT_EQ(values_of(fused.graph, 600 * 64), 3u);
  EXPECT_TRUE(std::any_of(fused.kernels.begin(), fused.kernels.end(), [](const auto& k) { return k.lanes == 100; }));
  kernels::calls_left(f, args, 1e-5);
}

TEST(DirectionsOfProducts, WhatIsDearIsReadAndNotComputedAgain) {
  TOWER_NEEDS_LLVM();
  const Tensor s = at::rand({600, 1}), m = at::rand({1, 64}), w = at::rand({64, 64}) / 64;
  const Function f = [](const Tensors& in) {
    const Tensor y = (in[0] * in[1]).exp();
    return Tensors{at::mm(y.tanh(), in[2]) * y};
  };
  EXPECT_EQ(values_of(kernels::fused(f, {s, m, w}).graph, 600 * 64), 4u);
  kernels::calls_left(f, {s, m, w}, 1e-6);
}

TEST(DirectionsOfProducts, CompiledHessiansOfBatchesAreThoseOfTheOperators) {
  TOWER_NEEDS_LLVM();
  for (const Layer layer : {Layer::softplus, Layer::silu}) {
    const Function f = td::vmap(td::jacfwd(td::jacrev(energy(layer), {0}), {0}), {0}, {0});
    const Tensors args = points();
    const Tensor expected = f(args)[0];
    compiler::Kernels kernels;
    const auto fused = kernels::fused(f, args, kernels);
    kernels::expect_as_operators(fused.graph, f, args, 1e-10);
    // Second derivatives by differences of first ones.
    const Tensor step = at::randn_like(args[0]) * 1e-5;
    const Function gradient = td::vmap(td::jacrev(energy(layer), {0}), {0}, {0});
    const Tensor change = (gradient({args[0] + step})[0] - gradient({args[0] - step})[0]) / 2;
    const Tensor by_hessian =
        (expected.reshape({kMolecules, 27, 27}).matmul(step.reshape({kMolecules, 27, 1}))).flatten(1);
    EXPECT_TRUE(at::allclose(by_hessian, change.reshape({kMolecules, 27}), 1e-5, 1e-9));
  }
}

}  // namespace
