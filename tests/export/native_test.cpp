// Compiled functions by pointers in the process: the compiled function's bits, without tensors and allocations.
#include <gtest/gtest.h>
#include <tower/tower.h>

#include <thread>

#include "compile/kernels.h"
#include "export/allocations.h"
#include "support/prelude.h"

namespace {

std::pair<Tensor, Tensor> corrected(const Tensor& x, const Tensor& load, const Tensor& matrix) {
  const Tensor residual = matrix.mv(x) + x * x * x - load;
  return {x - at::linalg_solve(matrix + at::diag(3 * x * x), residual), residual.norm()};
}

struct Points {
  explicit Points(int64_t n)
      : x(waves({n, 3})),
        load(waves({n, 3}, 1)),
        matrix(waves({n, 3, 3}, 2) + 4 * at::eye(3, at::kDouble)),
        next(at::full_like(x, 7)),
        norms(at::full({n}, 7.0, at::kDouble)) {}
  Tensor x, load, matrix, next, norms;
};

double* of(const Tensor& t) { return static_cast<double*>(t.mutable_data_ptr()); }

TEST(Native, GivesTheCompiledFunctionsBitsForAnyNumberOfExamples) {
  TOWER_NEEDS_LLVM();
  const auto step = tower::compile(tower::vmap(corrected));
  for (const int64_t n : {12, 17}) step(Points(n).x, Points(n).load, Points(n).matrix);
  const auto raw = step.native<double, 3>();
  for (const int64_t n : {0, 1, 7, 64, 1000, 100000}) {
    const Points p(n);
    raw(n, {of(p.x), of(p.load), of(p.matrix)}, {of(p.next), of(p.norms)});
    const auto [next, norms] = step(p.x, p.load, p.matrix);
    EXPECT_TRUE(at::equal(p.next, next) && at::equal(p.norms, norms)) << n;
  }
  const Points p(7);
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] {
                     raw(-1, {of(p.x), of(p.load), of(p.matrix)}, {of(p.next), of(p.norms)});
                   }),
                   {"native", "-1 examples"}));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] {
                     raw(kMost, {of(p.x), of(p.load), of(p.matrix)}, {of(p.next), of(p.norms)});
                   }),
                   {"native", "there cannot be 9223372036854775807 examples"}));
  EXPECT_GE(raw.work_bytes(kMost), raw.work_bytes(1000));
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] {
                     raw(7, {of(p.x), of(p.load), of(p.matrix)}, {of(p.next)});
                   }),
                   {"native", "2 results, not 1"}));
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { step.native<double, 2>(); }), {"native", "3 arguments, not 2"}));
  EXPECT_TRUE(says(refusal<tower::ArgumentError>([&] { step.native<float, 3>(); }),
                   {"native", "argument 0 is of Double, not of Float", "native<void"}));
}

TEST(Native, OfAWarmThreadAllocatesNothing) {
  TOWER_NEEDS_LLVM();
  if (support::allocations_of_thread() < 0) GTEST_SKIP() << "a sanitizer has the allocator";
  const auto step = tower::compile(tower::vmap(corrected));
  for (const int64_t n : {12, 17}) step(Points(n).x, Points(n).load, Points(n).matrix);
  const auto raw = step.native<double, 3>();
  const Points p(300);
  const auto call = [&](int64_t n) { raw(n, {of(p.x), of(p.load), of(p.matrix)}, {of(p.next), of(p.norms)}); };
  call(300);
  int64_t before = support::allocations_of_thread();
  for (const int64_t n : {0, 1, 100, 300}) call(n);
  EXPECT_EQ(support::allocations_of_thread(), before);
  before = support::allocations_of_thread();
  step(p.x, p.load, p.matrix);
  EXPECT_GT(support::allocations_of_thread(), before) << "tensors are seen";
}

TEST(Native, ThrowsWhatTheCompiledFunctionThrows) {
  TOWER_NEEDS_LLVM();
  const auto step = tower::compile(tower::vmap(corrected));
  for (const int64_t n : {12, 17}) step(Points(n).x, Points(n).load, Points(n).matrix);
  const auto raw = step.native<double, 3>();
  const Points p(9);
  p.x[5].zero_();
  p.matrix[5].zero_();
  EXPECT_THROW(raw(9, {of(p.x), of(p.load), of(p.matrix)}, {of(p.next), of(p.norms)}), c10::LinAlgError);
  EXPECT_THROW(step(p.x, p.load, p.matrix), c10::LinAlgError);
}

TEST(Native, HasTypesThatDifferAndOneExample) {
  TOWER_NEEDS_LLVM();
  const auto f = tower::compile(
      [](const Tensor& x, const Tensor& places) { return std::pair(x.index({places}) * 2.5f, places.sum() * 3 + 1); });
  const Tensor x = waves({5}).to(at::kFloat), places = at::tensor({4, 0, 4}, at::kLong);
  f(x, places);
  const auto raw = f.native<void, 2>();
  const Tensor picked = at::zeros({3}, at::kFloat), sum = at::zeros({}, at::kLong);
  raw(1, {x.const_data_ptr(), places.const_data_ptr()}, {picked.mutable_data_ptr(), sum.mutable_data_ptr()});
  const auto [expected_picked, expected_sum] = f(x, places);
  EXPECT_TRUE(at::equal(picked, expected_picked) && at::equal(sum, expected_sum));
  EXPECT_TRUE(
      says(refusal<tower::ArgumentError>([&] {
             raw(2, {x.const_data_ptr(), places.const_data_ptr()}, {picked.mutable_data_ptr(), sum.mutable_data_ptr()});
           }),
           {"native", "2 examples", "one number of examples"}));
}

TEST(Native, ReadsCapturedTensorsAsTheyAreAtTheCall) {
  TOWER_NEEDS_LLVM();
  const Tensor weight = waves({3, 3});
  const auto f = tower::compile(tower::vmap([=](const Tensor& x) { return weight.mv(x) + 1; }));
  for (const int64_t n : {12, 17}) f(waves({n, 3}));
  const auto raw = f.native<double, 1>();
  weight.mul_(-3);
  const Tensor x = waves({9, 3}), y = at::zeros_like(x);
  raw(9, {of(x)}, {of(y)});
  EXPECT_TRUE(at::equal(y, f(x)));
}

TEST(Native, IsForAnyNumberOfThreads) {
  TOWER_NEEDS_LLVM();
  const auto step = tower::compile(tower::vmap(corrected));
  for (const int64_t n : {12, 17}) step(Points(n).x, Points(n).load, Points(n).matrix);
  const auto raw = step.native<double, 3>();
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        const Points p(50 + 3 * t);
        raw(50 + 3 * t, {of(p.x), of(p.load), of(p.matrix)}, {of(p.next), of(p.norms)});
        EXPECT_TRUE(at::equal(p.next, step(p.x, p.load, p.matrix).first));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
