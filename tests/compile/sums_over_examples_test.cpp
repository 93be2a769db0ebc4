// Sums over examples that end in the kernel that makes their terms. Oracles: LibTorch's operators and autograd, and
// sums of long doubles.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <random>

#include "compile/kernels.h"
#include "support/oracles.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using support::Tensors;
using td::Function;

// The loss of one example: a small network whose weights all examples share.
Tensor loss(const Tensor& w, const Tensor& b, const Tensor& x, const Tensor& y) {
  return (at::tanh(at::mv(w, x) + b).sum() - y).square();
}

Tensors problem(int64_t examples, at::ScalarType dtype) {
  at::manual_seed(examples);
  return {at::randn({3, 4}, dtype), at::randn({3}, dtype), at::randn({examples, 4}, dtype),
          at::randn({examples}, dtype)};
}

Tensors gradients_by_autograd(const Tensors& in) {
  const auto all = [&](const Tensors& weights) {
    const Tensor h = at::tanh(at::mm(in[2], weights[0].t()) + weights[1]).sum(1) - in[3];
    return Tensors{h.square().sum()};
  };
  return support::autograd_vjp(all, {in[0], in[1]}, {at::ones({}, in[0].options())});
}

TEST(SumsOverExamples, OfGradientsBySharedWeightsAreInTheirKernel) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
    for (const int64_t examples : {256, 257, 1000, 4096, 40961}) {
      const Tensors in = problem(examples, dtype);
      const auto total = [](const Tensor& w, const Tensor& b, const Tensor& x, const Tensor& y) {
        return tower::vmap([&](const Tensor& x, const Tensor& y) { return loss(w, b, x, y); })(x, y).sum();
      };
      const auto gradient = tower::compile(tower::grad<0, 1>(total));
      const support::Tolerance near{dtype == at::kFloat ? 3e-5 : 1e-12, 0};
      for (int call = 0; call < 3; ++call) {
        const auto [dw, db] = gradient(in[0], in[1], in[2], in[3]);
        EXPECT_EQ(support::difference({dw, db}, gradients_by_autograd(in), near), "") << dtype << ", " << examples;
      }
    }
}

// Random shapes of what is summed, kept dimensions, several sums of one kernel, and values that somebody else reads,
// too.
TEST(SumsOverExamples, OfRandomProgramsAreTheOperators) {
  TOWER_NEEDS_LLVM();
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
    const int64_t examples = 256 + pick(900), rows = 1 + pick(4), columns = 1 + pick(4);
    const at::ScalarType dtype = pick(2) ? at::kDouble : at::kFloat;
    const bool keep = pick(2), reads_terms = pick(2), apart = pick(2), last = pick(2);
    const int64_t how = pick(4);
    const Function each = [how](const Tensors& in) -> Tensors {
      const Tensor &a = in[0], &x = in[1];
      const Tensor y = how == 0   ? at::mv(a, x).tanh()
                       : how == 1 ? a * x
                       : how == 2 ? (a + x).exp().sum(1)
                                  : a.t().sin();
      return {y, (x * x).sum(), a.mean() + y};
    };
    const Function f = [=](const Tensors& in) -> Tensors {
      const Tensors of_each = td::vmap(each, {0, 0}, {last ? -1 : 0, 0, 0})(in);
      Tensors results{of_each[0].sum({last ? -1 : 0}, keep), of_each[1].sum(), of_each[2].sum({0}, keep) * 2};
      if (reads_terms) results.push_back(of_each[0] + 1);
      return results;
    };
    at::manual_seed(static_cast<int64_t>(seed));
    Tensors in{at::randn({examples, rows, columns}, dtype), at::randn({examples, columns}, dtype)};
    if (apart) in[0] = in[0].transpose(0, 2).contiguous().transpose(0, 2);
    const Function fast = td::compile(f);
    const Tensors expected = f(in);
    for (int call = 0; call < 3; ++call) {
      const Tensors found = fast(in);
      EXPECT_EQ(support::difference(found, expected, {dtype == at::kFloat ? 1e-4 : 1e-11, 1e-5}), "")
          << "seed " << seed;
      for (size_t k = 0; k < 3; ++k) EXPECT_EQ(found[k].strides(), expected[k].strides()) << seed << ' ' << k;
    }
  }
}

Tensor shifted_sum(const Tensor& x) {
  return tower::vmap([](const Tensor& v) { return v + v.square().sum() * 0; })(x).sum(0);
}

TEST(SumsOverExamples, AreNoLessAccurateThanLibTorchs) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    at::manual_seed(5);
    const Tensor x = at::rand({300000, 3}, dtype) + 1e6;
    const auto fast = tower::compile(shifted_sum);
    fast(x);
    const Tensor found = fast(x).to(at::kDouble), libtorchs = x.sum(0).to(at::kDouble);
    const Tensor exact = x.to(at::kDouble);
    for (int64_t column = 0; column < 3; ++column) {
      long double sum = 0;
      for (int64_t i = 0; i < x.size(0); ++i)
        sum += static_cast<long double>(exact.const_data_ptr<double>()[3 * i + column]);
      const auto error = [&](const Tensor& t) {
        return std::abs(static_cast<double>(static_cast<long double>(t[column].item<double>()) - sum));
      };
      // A unit in the last place of the sum is nobody's error.
      const double rounding = static_cast<double>(sum) * (dtype == at::kFloat ? 1.2e-7 : 2.3e-16);
      EXPECT_LE(error(found), std::max(error(libtorchs), rounding)) << dtype << ' ' << column;
    }
  }
}

TEST(SumsOverExamples, HaveTheSameBitsOnAnyNumberOfThreads) {
  TOWER_NEEDS_LLVM();
  const int before = at::get_num_threads();
  at::manual_seed(7);
  const Tensor x = at::randn({200003, 3});
  const auto fast = tower::compile(shifted_sum);
  fast(x);
  Tensor expected;
  for (const int threads : {1, 2, 3, 5}) {
    at::set_num_threads(threads);
    const Tensor found = fast(x);
    if (expected.defined()) {
      EXPECT_TRUE(at::equal(found, expected)) << threads;
    }
    expected = found;
  }
  at::set_num_threads(before);
}

}  // namespace
