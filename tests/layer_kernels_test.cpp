// Layers of networks whose rules choose another kernel than LibTorch would, or call LibTorch's where they could be
// opened up: what the kernels give at the edges, and that they are the ones that run.
#include <limits>
#include <set>

#include "support/prelude.h"
#include "tower/explain.h"

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

std::set<std::string> operators_of(const std::function<void()>& call) {
  tower::Explainer explainer;
  call();
  std::set<std::string> names;
  for (const auto& c : explainer.calls()) names.insert(c.op);
  return names;
}

// ---- layer normalization ----

const Function layer_norm = [](const Tensors& in) -> Tensors {
  return {at::layer_norm(in[0], {4}, in[1], in[2]).sin().sum()};
};

TEST(LayerNorm, KeepsItsKernelsUnderGradAndInABatch) {
  const Tensor x = waves({3, 5, 4}), weight = waves({4}), bias = waves({4}, 0.7);
  const auto names = operators_of([&] {
    td::vmap(td::grad(layer_norm, {0, 1, 2}), {0, std::nullopt, std::nullopt}, {0})({x, weight, bias});
  });
  EXPECT_TRUE(names.contains("aten::native_layer_norm"));
  EXPECT_TRUE(names.contains("aten::native_layer_norm_backward"));
  EXPECT_FALSE(names.contains("aten::var_mean.correction"));
}

TEST(LayerNorm, HasEachExamplesGradientsWhicheverParametersAreMapped) {
  const Tensor x = waves({3, 5, 4}), weights = waves({3, 4}), biases = waves({3, 4}, 0.7);
  for (const bool own_weight : {false, true}) {
    for (const bool own_bias : {false, true}) {
      const Tensor weight = own_weight ? weights : weights[0], bias = own_bias ? biases : biases[0];
      const auto dim = [](bool own) { return own ? std::optional<int64_t>(0) : std::nullopt; };
      const Tensors batch =
          td::vmap(td::grad(layer_norm, {0, 1, 2}), {0, dim(own_weight), dim(own_bias)}, {0})({x, weight, bias});
      for (int64_t i = 0; i < 3; ++i) {
        Tensors leaves{x[i].clone(), (own_weight ? weight[i] : weight).clone(), (own_bias ? bias[i] : bias).clone()};
        for (Tensor& t : leaves) t.requires_grad_();
        layer_norm(leaves)[0].backward();
        for (size_t k = 0; k < 3; ++k)
          EXPECT_TRUE(same(batch[k][i], leaves[k].grad())) << own_weight << own_bias << i << k;
      }
    }
  }
}

TEST(LayerNorm, DerivativesOfItsStatisticsAreThoseOfTheirFormulas) {
  const Tensor x = waves({5, 4}), direction = waves({5, 4}, 0.9);
  const auto by_kernel = [](const Tensors& in) -> Tensors {
    const auto [y, mean, rstd] = at::native_layer_norm(in[0], {4}, std::nullopt, std::nullopt, 1e-3);
    return {(mean.sin() + rstd.square()).sum() + y.cos().sum()};
  };
  const auto by_formula = [](const Tensors& in) -> Tensors {
    const Tensor mean = in[0].mean(1, true), centered = in[0] - mean;
    const Tensor rstd = (centered.square().mean(1, true) + 1e-3).rsqrt();
    return {(mean.sin() + rstd.square()).sum() + (centered * rstd).cos().sum()};
  };
  Tensor leaf = x.clone().requires_grad_();
  by_formula({leaf})[0].backward();
  EXPECT_TRUE(same(td::grad(by_kernel, {0})({x})[0], leaf.grad()));
  EXPECT_TRUE(same(td::jvp(by_kernel, {x}, {direction}).second[0], (leaf.grad() * direction).sum()));
}

// ---- batch normalization ----

const Function batch_norm = [](const Tensors& in) -> Tensors {
  return {std::get<0>(at::native_batch_norm(in[0], in[1], in[2], {}, {}, true, 0.1, 1e-5)).sin().sum()};
};

TEST(BatchNorm, IsALayerNormOfItsChannelsInABatch) {
  const Tensor x = waves({3, 5, 4, 2, 3}), weight = waves({4}), bias = waves({4}, 0.7);
  const auto f = td::vmap(td::grad(batch_norm, {0, 1, 2}), {0, std::nullopt, std::nullopt}, {0});
  const auto names = operators_of([&] { f({x, weight, bias}); });
  EXPECT_TRUE(names.contains("aten::native_layer_norm"));
  EXPECT_FALSE(names.contains("aten::var_mean.correction"));
  const Tensors batch = f({x, weight, bias});
  for (int64_t i = 0; i < 3; ++i) {
    Tensors leaves{x[i].clone(), weight.clone(), bias.clone()};
    for (Tensor& t : leaves) t.requires_grad_();
    batch_norm(leaves)[0].backward();
    for (size_t k = 0; k < 3; ++k) EXPECT_TRUE(same(batch[k][i], leaves[k].grad())) << i << k;
  }
}

TEST(BatchNorm, RunningVarianceKeepsItsDigitsWhereEpsilonIsTheLarger) {
  const Tensor x = (waves({3, 6, 2}) * 1e-5 + 1).to(at::kFloat), zeros = at::zeros({2}), ones = at::ones({2});
  const auto f = of_one([&](const Tensor& t) {
    return std::get<4>(at::_native_batch_norm_legit_functional(t, {}, {}, zeros, ones, true, 1, 1e-2));
  });
  EXPECT_TRUE(at::allclose(td::vmap(f, {0}, {0})({x})[0], x.var(1), 1e-3, 0));
}

TEST(Contiguous, BringsEachExampleIntoChannelsLast) {
  const auto f = of_one([](const Tensor& t) { return t.contiguous(at::MemoryFormat::ChannelsLast) * 1; });
  const Tensor x = waves({3, 2, 4, 5, 6});
  const Tensor y = td::vmap(f, {0}, {0})({x})[0];
  EXPECT_TRUE(y[0].is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(at::equal(y, x));
}

// ---- softmax that leaves out what is masked ----

TEST(SafeSoftmax, IsLibTorchsAtInfinitiesAndNan) {
  const Tensor rows = vec({-kInfinity, -kInfinity, -kInfinity, 1, -kInfinity, 2, kNan, -kInfinity, -kInfinity,
                           kInfinity, -kInfinity, 0, -1e308, -1e308, -1e308, kNan, kInfinity, 1})
                          .view({6, 3});
  const Tensor x = at::stack({rows, rows.flip({0})});
  for (const int64_t dim : {1, -1, 0}) {
    const auto f = of_one([&](const Tensor& t) { return at::_safe_softmax(t, dim); });
    EXPECT_TRUE(same(td::vmap(f, {0}, {0})({x})[0], looped(f, x))) << dim;
  }
}

TEST(SafeSoftmax, HasZeroDerivativesWhereAllIsMasked) {
  const Tensor x = vec({-kInfinity, -kInfinity, 1, -kInfinity, 1, 2}).view({3, 2});
  const auto f = of_one([](const Tensor& t) { return (at::_safe_softmax(t, 1) * vec({1, 3})).sum(); });
  const double p = 1 / (1 + std::exp(1.0)), slope = 2 * p * (1 - p);
  EXPECT_TRUE(same(td::grad(f, {0})({x})[0], vec({0, 0, 0, 0, -slope, slope}).view({3, 2})));
  EXPECT_TRUE(same(td::jvp(f, {x}, {at::ones_like(x)}).second[0], number(0)));
}

TEST(Attention, IsComputedWithoutLookingAtEachScoreForInfinity) {
  const Tensor q = waves({2, 3, 5, 4});
  const auto f = of_one([](const Tensor& t) { return at::scaled_dot_product_attention(t, t, t).sum(); });
  const auto names = operators_of([&] { td::vmap(td::grad(f, {0}), {0}, {0})({q}); });
  EXPECT_TRUE(names.contains("aten::_safe_softmax"));
  EXPECT_FALSE(names.contains("aten::where.self"));
  EXPECT_FALSE(names.contains("aten::eq.Scalar"));
}

// ---- pooling ----

// Both results, in one dtype.
Tensors pooled(const Tensor& x) {
  auto [y, indices] = at::max_pool2d_with_indices(x, {2, 2}, {1, 1}, {1, 0});
  return {y, indices};
}

TEST(MaximumPooling, OfManyChannelsGivesLibTorchsValuesIndicesAndStrides) {
  Tensor x = waves({2, 3, 9, 4, 5});
  x[0][0].narrow(2, 1, 2).fill_(0.5);  // ties
  x[0][1][3][1][2] = kNan;
  x[1][2][8].fill_(-kInfinity);
  const auto f = [](const Tensors& in) { return pooled(in[0]); };
  for (const auto type : {at::kDouble, at::kFloat}) {
    const Tensor inputs = x.to(type);
    const Tensors batch = td::vmap(f, {0}, {0, 0})({inputs}), one = td::jvp(f, {inputs[0]}, {inputs[0]}).first;
    for (int64_t i = 0; i < 2; ++i) {
      const Tensors plain = pooled(inputs[i]);
      for (size_t k = 0; k < 2; ++k) {
        EXPECT_TRUE(at::allclose(batch[k][i], plain[k], 0, 0, true)) << i << k;
        EXPECT_EQ(batch[k][i].strides(), plain[k].strides());
        if (i > 0) continue;
        EXPECT_TRUE(at::allclose(one[k], plain[k], 0, 0, true)) << k;
        EXPECT_EQ(one[k].strides(), plain[k].strides());
      }
    }
  }
}

TEST(MaximumPooling, KeepsChannelsLast) {
  const Tensor x = waves({2, 9, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto f = of_one([](const Tensor& t) { return std::get<0>(at::max_pool2d_with_indices(t, {2, 2})); });
  EXPECT_TRUE(td::jvp(f, {x}, {x}).first[0].is_contiguous(at::MemoryFormat::ChannelsLast));
}

// ---- convolution ----

TEST(Convolution, OfSinglePixelsHasWeightGradientsByOneProduct) {
  const Tensor x = waves({3, 2, 4, 5, 6}), w = waves({3, 4, 1, 1});
  const Function loss = [](const Tensors& in) -> Tensors { return {at::conv2d(in[0], in[1]).sin().sum()}; };
  const Tensor batch = td::vmap(td::grad(loss, {1}), {0, std::nullopt}, {0})({x, w})[0];
  for (int64_t i = 0; i < 3; ++i) {
    Tensor leaf = w.clone().requires_grad_();
    loss({x[i], leaf})[0].backward();
    EXPECT_TRUE(same(batch[i], leaf.grad()));
  }
}

}  // namespace
