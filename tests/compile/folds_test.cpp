// Regions over rows: what all elements of a row come to, with what is computed before and after, against LibTorch.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <limits>

#include "compile/kernels.h"
#include "graph/plan.h"
#include "numbers/fold.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using kernels::calls_left;
using td::Function;
using td::Tensors;

Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::randn(sizes, at::kDouble).mul(3).to(dtype);
}
double tolerance_of(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-13 : dtype == at::kFloat ? 1e-5 : 0; }

struct Named {
  const char* name;
  std::function<Tensors(const Tensor&)> f;
};

// Of a tensor with two dimensions.
const std::vector<Named>& of_floats() {
  static const std::vector<Named> all{
      {"sum", [](const Tensor& x) { return Tensors{x.sum(1)}; }},
      {"sum, kept", [](const Tensor& x) { return Tensors{x.sum(1, true)}; }},
      {"sum of all", [](const Tensor& x) { return Tensors{x.sum()}; }},
      {"sum over both",
       [](const Tensor& x) {
         return Tensors{x.sum(at::IntArrayRef{0, 1}, true)};
       }},
      {"mean",
       [](const Tensor& x) {
         return Tensors{x.mean(1), x.mean()};
       }},
      {"prod", [](const Tensor& x) { return Tensors{(x * 0.1 + 1).prod(1)}; }},
      {"amax, amin",
       [](const Tensor& x) {
         return Tensors{x.amax(1), x.amin({1}, true), x.max(), x.min()};
       }},
      {"max.dim",
       [](const Tensor& x) {
         const auto [m, i] = x.max(1);
         const auto [n, j] = x.min(1, true);
         return Tensors{m, i, n, j};
       }},
      {"aminmax",
       [](const Tensor& x) {
         const auto [low, high] = at::aminmax(x, 1);
         return Tensors{low, high};
       }},
      {"dot", [](const Tensor& x) { return Tensors{at::dot(x.view({-1}) + 1, x.view({-1}))}; }},
      {"_safe_softmax", [](const Tensor& x) { return Tensors{at::_safe_softmax(x, 1)}; }},
      {"argmax",
       [](const Tensor& x) {
         return Tensors{x.argmax(1), x.argmin(1, true), x.argmax(), x.argmin()};
       }},
      {"var, std",
       [](const Tensor& x) {
         return Tensors{x.var(1), x.std(1, false), x.var({1}, 2), x.std()};
       }},
      {"norms",
       [](const Tensor& x) {
         constexpr double inf = std::numeric_limits<double>::infinity();
         return Tensors{at::linalg_vector_norm(x, 2, at::IntArrayRef({1})),
                        at::linalg_vector_norm(x, 1, at::IntArrayRef({1}), true),
                        at::linalg_vector_norm(x, inf, at::IntArrayRef({1})),
                        at::linalg_vector_norm(x, -inf, at::IntArrayRef({1})),
                        at::linalg_vector_norm(x, 0, at::IntArrayRef({1})),
                        x.norm()};
       }},
      {"logsumexp",
       [](const Tensor& x) {
         return Tensors{at::logsumexp(x, {1}), at::logsumexp(x, at::IntArrayRef{0, 1})};
       }},
      {"softmax", [](const Tensor& x) { return Tensors{at::softmax(x, 1)}; }},
      {"log_softmax", [](const Tensor& x) { return Tensors{at::log_softmax(x, 1)}; }},
      {"layer_norm",
       [](const Tensor& x) {
         return Tensors{at::layer_norm(x, {x.size(1)}, at::ones_like(x[0]) * 2, at::ones_like(x[0])),
                        at::layer_norm(x, {x.size(1)})};
       }},
      {"any, all",
       [](const Tensor& x) {
         return Tensors{(x > 8).any(1), (x > -8).all(1), (x > 0).any(), (x < 20).all()};
       }},
      {"counts",
       [](const Tensor& x) {
         return Tensors{(x > 0).sum(1), at::count_nonzero(x.clamp_min(0), at::IntArrayRef{1})};
       }},
  };
  return all;
}

TEST(Folds, OfRowsOfAnyLength) {
  TOWER_NEEDS_LLVM();
  for (const Named& each : of_floats())
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
      for (const int64_t n : {1, 7, 64, 65, 1000}) {
        SCOPED_TRACE(std::string(each.name) + " of " + std::to_string(n) + " " + toString(dtype));
        const Function f = [&](const Tensors& in) { return each.f(in[0] * in[1] + in[1]); };
        const Tensors args{numbers({5, n}, dtype), numbers({5, n}, dtype)};
        // Rows and all elements are two kernels.
        EXPECT_LE(calls_left(f, args, tolerance_of(dtype) * 10), 3u);
      }
}

TEST(Folds, OfNoElementsThereIsNoKernel) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    const Tensor x = in[0] * 2 + 1;
    return Tensors{x.sum(1), at::softmax(x, 1), x.any(1)};
  };
  calls_left(f, {at::ones({0, 64})}, 0);
  calls_left(f, {at::ones({4, 0})}, 0);
}

TEST(Folds, OfIntegersAndBooleansAreExact) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType dtype : {at::kLong, at::kInt})
    for (const int64_t n : {1, 7, 64, 65, 1000}) {
      const Tensor x = at::randint(-1000, 1000, {6, n}, at::kLong).to(dtype);
      calls_left(
          [](const Tensors& in) {
            const Tensor x = in[0] * 3 - 1;
            const auto [m, i] = x.max(1);
            return Tensors{x.sum(1), x.prod(1), x.amax(1),     x.amin(1),
                           m,        i,         x.argmin(),    x.any(1),
                           x.all(1), x.sum(),   (x > 5).sum(), x.to(at::kDouble).mean(1)};
          },
          {x}, 1e-13);
    }
  calls_left(
      [](const Tensors& in) {
        return Tensors{(in[0] | in[1]).any(1), (in[0] & in[1]).all(1), (in[0] ^ in[1]).sum(1)};
      },
      {numbers({4, 77}) > 0, numbers({4, 77}) > 2}, 0);
}

TEST(Folds, SpecialNumbers) {
  TOWER_NEEDS_LLVM();
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const int64_t place : {0, 3, 64, 98, 99})
      for (const double number : {inf, -inf, nan}) {
        Tensor x = numbers({3, 100}, dtype);
        x[1][place] = number;
        x[2].fill_(number);
        for (const Named& each : of_floats()) {
          SCOPED_TRACE(std::string(each.name) + " with " + std::to_string(number));
          calls_left([&](const Tensors& in) { return each.f(-(-in[0] * 2)); }, {x}, tolerance_of(dtype) * 10);
        }
      }
}

TEST(Folds, TheFirstOfEqualElementsIsTheGreatest) {
  TOWER_NEEDS_LLVM();
  const Tensor x = at::randint(0, 3, {40, 100}, at::kLong).to(at::kFloat);
  const Function f = [](const Tensors& in) {
    const Tensor x = in[0] * 2;
    const auto [m, i] = x.max(1);
    return Tensors{x.argmax(1), x.argmin(1), i};
  };
  EXPECT_EQ(calls_left(f, {x}, 0), 1u);
  // Counted in the order of dimensions, wherever the elements lie.
  calls_left([](const Tensors& in) { return Tensors{(in[0] * 2).argmax(), (in[0] * 2).sum()}; }, {x.t()}, 1e-6);
  calls_left(
      [](const Tensors& in) {
        return Tensors{(in[0] * 2).argmax(), (in[0] * 2).sum()};
      },
      {at::tensor({1., 3., 3., 2.}).view({2, 2}).t()}, 1e-6);
}

TEST(Folds, WhatIsComputedOfARowIsReadByItsLanes) {
  TOWER_NEEDS_LLVM();
  const Function by_hand = [](const Tensors& in) {
    const Tensor apart = in[0] - in[0].mean(1, true);
    const Tensor variance = (apart * apart).mean(1, true);
    return Tensors{apart * (variance + 1e-5).rsqrt() * in[1] + in[2], variance};
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const int64_t n : {7, 64, 65, 1000})
      EXPECT_EQ(calls_left(by_hand, {numbers({9, n}, dtype), numbers({n}, dtype), numbers({n}, dtype)},
                           tolerance_of(dtype) * 20),
                1u)
          << n;
  const Function loss = [](const Tensors& in) {
    const Tensor error = ((in[0] - in[1]) * (in[0] - in[1])).mean();
    return Tensors{error, (in[0] - in[1]) * (2 * error + 1)};
  };
  EXPECT_EQ(calls_left(loss, {numbers({30, 40}), numbers({30, 40})}, 1e-4), 1u);
}

TEST(Folds, ViewsOfWhatThereIsOneOfForEachRow) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    const Tensor mean = in[0].mean(1), apart = in[0] - mean.unsqueeze(1);
    const Tensor scale = (apart * apart).sum(1).view({-1, 1}).expand_as(apart);
    return Tensors{apart / (scale + in[0].square()), mean};
  };
  EXPECT_EQ(calls_left(f, {numbers({30, 100})}, 1e-5), 1u);
  // Whoever sees a view sees what it is a view of.
  const Function seen = [](const Tensors& in) {
    const Tensor sum = (in[0] * 2).sum(1);
    return Tensors{sum, sum.unsqueeze(1)};
  };
  compiler::FusedGraph graph = kernels::fused(seen, {numbers({30, 100})});
  const Tensors results = compiler::Plan(std::move(graph.graph)).run({numbers({30, 100})});
  EXPECT_TRUE(results[0].is_alias_of(results[1]));
  // As derivatives have it.
  const Function norm = [](const Tensors& in) {
    const Tensor apart = in[0] - in[0].mean(1, true);
    return Tensors{(apart * ((apart * apart).mean(1, true) + 1e-5).rsqrt() * in[1]).square().sum()};
  };
  EXPECT_LE(calls_left(td::grad(norm, {0}), {numbers({30, 100}, at::kDouble), numbers({30, 100}, at::kDouble)}, 1e-11),
            2u);
}

TEST(Folds, GradientsOfLosses) {
  TOWER_NEEDS_LLVM();
  const Function cross_entropy = [](const Tensors& in) {
    return Tensors{-(at::log_softmax(in[0] * 2, 1) * in[1]).sum(1).mean()};
  };
  const Tensors args{numbers({40, 100}, at::kDouble), at::softmax(numbers({40, 100}, at::kDouble), 1)};
  calls_left(td::grad(cross_entropy, {0}), args, 1e-12);
  const Function attention = [](const Tensors& in) {
    return Tensors{(at::softmax(in[0] * 0.3, 1) * in[1]).square().sum()};
  };
  calls_left(td::grad(attention, {0, 1}), args, 1e-12);
}

TEST(Folds, LongSumsAreAsCloseAsLibTorchs) {
  TOWER_NEEDS_LLVM();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // a row is one thread's
  for (const int64_t n : {100000, 1000000, 3000001}) {
    const Tensor x = at::rand({n}) + 0.1;
    const Function f = [](const Tensors& in) { return Tensors{(in[0] * 1.5).sum(), (in[0] * 1.5).mean()}; };
    const Tensor exact = (x * 1.5).to(at::kDouble).sum();
    compiler::FusedGraph graph = kernels::fused(f, {x});
    EXPECT_EQ(graph.graph.calls.size(), 1u);
    const Tensor sum = compiler::Plan(std::move(graph.graph)).run({x})[0];
    EXPECT_LT((sum.to(at::kDouble) - exact).abs().item<double>() / exact.item<double>(), 1e-6) << n;
  }
  at::set_num_threads(threads);
}

TEST(Folds, OtherOrdersInMemoryAndStrides) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    const Tensor x = in[0] * in[1];
    return Tensors{x.sum(-1), at::softmax(x, -1), x.amax({-1}, true)};
  };
  const Tensor x = numbers({4, 5, 80}, at::kDouble), y = numbers({80, 5, 4}, at::kDouble).permute({2, 1, 0});
  calls_left(f, {x, x}, 1e-12);
  calls_left(f, {x, y}, 1e-12);
  calls_left(f, {y, y}, 1e-12);
  calls_left(f, {x.transpose(0, 1).contiguous().transpose(0, 1), x}, 1e-12);
  calls_left(f, {x, numbers({5, 1}, at::kDouble)}, 1e-12);
  calls_left(f, {x, numbers({80}, at::kDouble)}, 1e-12);
  calls_left(f,
             {numbers({4, 5, 160}, at::kDouble).slice(2, 0, 160, 2), numbers({4, 5, 81}, at::kDouble).narrow(2, 1, 80)},
             1e-12);
  const Function all = [](const Tensors& in) { return Tensors{(in[0] * in[1]).sum(), (in[0] * in[1]).max()}; };
  calls_left(all, {x, numbers({5, 1}, at::kDouble)}, 1e-12);
  calls_left(all, {y, y}, 1e-12);
}

TEST(Folds, OverOtherDimensionsThanTheLast) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    const Tensor x = in[0] + 1;
    return Tensors{x.sum(0), at::softmax(x, 0), x.mean(at::IntArrayRef{0, 2}), x.argmax(1)};
  };
  calls_left(f, {numbers({3, 4, 5})}, 1e-5);
  calls_left(f, {numbers({30, 40, 50})}, 1e-4);
}

TEST(Folds, UnderVmaps) {
  TOWER_NEEDS_LLVM();
  const Function inner = [](const Tensors& in) {
    const Tensor p = at::softmax(in[0] * in[1], 0);
    return Tensors{p, (p * in[0]).sum(), (p + in[1]).argmax(0)};
  };
  for (const int64_t dim : {0, 1}) {
    const Tensor x = dim == 0 ? numbers({20, 200}) : numbers({200, 20});
    calls_left(td::vmap(inner, {dim, std::nullopt}, {0, 0, 0}), {x, numbers({200})}, 1e-5);
    calls_left(td::vmap(td::vmap(inner, {dim, std::nullopt}, {0, 0, 0}), {std::nullopt, 0}, {1, 0, 0}),
               {x, numbers({3, 200})}, 1e-5);
  }
}

TEST(Folds, ThreadsShareRows) {
  TOWER_NEEDS_LLVM();
  const int threads = at::get_num_threads();
  at::set_num_threads(4);
  const Function f = [](const Tensors& in) {
    const Tensor p = at::softmax(in[0] * 2, 1);
    return Tensors{p, (p * p).sum(1)};
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(calls_left(f, {numbers({3000, 130})}, 1e-5), 1u);
  at::set_num_threads(threads);
}

TEST(Folds, WhatLiesBeyondARowDividesNothing) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& in) {
    const Tensor x = in[0].div(in[1], "trunc");
    return Tensors{x.sum(1), x};
  };
  calls_left(f, {at::full({4, 67}, 9, at::kLong), at::full({4, 67}, 2, at::kLong)}, 0);
  const Tensor zeros = at::full({4, 67}, 2, at::kLong);
  zeros[3][66] = 0;
  EXPECT_ANY_THROW(compiler::Plan(kernels::fused(f, {zeros, zeros}).graph).run({zeros, zeros}));
}

}  // namespace
