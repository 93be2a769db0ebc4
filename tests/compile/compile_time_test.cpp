// How long compiling takes: no more than in proportion to the number of operators, whatever they are. Measured in
// processor time of graphs of n and of 4 n operators, each compiled anew, the fastest of several times: a pass, or
// kernels, that look at all pairs take 16 times as long.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "compile/kernels.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using td::Function;
using td::Tensors;

constexpr int kTimes = 3;         // that each is compiled
constexpr int kCalls = 3;         // until everything is compiled
constexpr double kMostRatio = 7;  // of four times as many operators
constexpr double kClose = 1e-10;

// What another process has left in a cache takes no time.
class CompileTime : public testing::Test {
 protected:
  CompileTime() {
    if (const char* named = std::getenv(kCache)) cache_ = named;
    ::unsetenv(kCache);
  }
  ~CompileTime() override {
    if (cache_) ::setenv(kCache, cache_->c_str(), 1);
  }

 private:
  static constexpr const char* kCache = "TOWER_CACHE";
  std::optional<std::string> cache_;
};

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

using Step = std::function<Tensor(const Tensor&)>;

Function repeated(int times, const Step& step) {
  return [=](const Tensors& in) {
    Tensor x = in[0];
    for (int i = 0; i < times; ++i) x = step(x);
    return Tensors{x.sum()};
  };
}

using Transformed = std::function<Function(const Function&)>;

double seconds_to_compile(const Function& plain, const Transformed& compiled, const Tensors& args) {
  double least = std::numeric_limits<double>::infinity();
  for (int time = 0; time < kTimes; ++time) {
    const Function f = compiled(plain);
    const double start = processor_seconds();
    for (int call = 0; call < kCalls; ++call) f(args);
    least = std::min(least, processor_seconds() - start);
  }
  return least;
}

void expect_in_proportion(int times, const Step& step, const Transformed& compiled, const Tensors& args) {
  const double few = seconds_to_compile(repeated(times, step), compiled, args);
  const double many = seconds_to_compile(repeated(4 * times, step), compiled, args);
  EXPECT_LT(many, kMostRatio * few) << "seconds; " << times << " steps took " << few;
}

Tensor numbers(at::IntArrayRef sizes) {
  return at::linspace(0.1, 0.9, c10::multiply_integers(sizes), at::kDouble).view(sizes);
}

Function gradient(const Function& f) { return td::grad(f, {0}); }

TEST_F(CompileTime, OfAChainWhoseValuesAreKeptForTheWayBackIsInProportion) {
  TOWER_NEEDS_LLVM();
  expect_in_proportion(
      150, [](const Tensor& x) { return (x * 1.001).sin(); },
      [](const Function& f) { return gradient(td::compile(f)); }, {numbers({100})});
}

TEST_F(CompileTime, OfTheGradientOfAChainIsInProportion) {
  TOWER_NEEDS_LLVM();
  expect_in_proportion(
      150, [](const Tensor& x) { return (x * 1.001).sin(); },
      [](const Function& f) { return td::compile(td::vmap(gradient(f), {0}, {0})); }, {numbers({8, 4})});
}

TEST_F(CompileTime, OfSumsThatWaitForEachOtherIsInProportion) {
  TOWER_NEEDS_LLVM();
  expect_in_proportion(
      40, [](const Tensor& x) { return x * (x.sum() * 0.02); }, [](const Function& f) { return td::compile(f); },
      {numbers({100})});
}

TEST_F(CompileTime, OfTheGradientOfRepeatedSoftmaxIsInProportion) {
  TOWER_NEEDS_LLVM();
  expect_in_proportion(
      20, [](const Tensor& x) { return x.softmax(0) * 3; }, [](const Function& f) { return td::compile(gradient(f)); },
      {numbers({100})});
}

// ---- what is done for that ----

TEST_F(CompileTime, ARowThatGivesManyResultsHasOneKernelThatKeepsWhatItReadsAgain) {
  TOWER_NEEDS_LLVM();
  constexpr int kMany = 80;
  const Function f = [](const Tensors& in) {
    Tensors made;
    for (int i = 0; i < kMany; ++i) made.push_back((in[0] * (1 + 0.1 * i)).sin());
    const Tensor sum = made.back().sum(1, true);
    for (int i = 0; i < kMany; ++i) made.push_back(made[static_cast<size_t>(i)] * sum);
    made.push_back(made[0] > sum);
    made.push_back(sum.squeeze(1) * 2);
    return made;
  };
  for (const int64_t length : {7, 64, 101}) EXPECT_LE(kernels::calls_left(f, {numbers({3, length})}, kClose), 2u);
}

// A lane that has all of it would be 40 operations for each of 1,000 elements, for which LLVM needs seconds.
TEST_F(CompileTime, ALoopOverALargeStateIsNoKernelOfNumbers) {
  TOWER_NEEDS_LLVM();
  const Function loop = [](const Tensors& in) {
    const auto step = [&](int64_t, const Tensors& x) -> Tensors {
      return {x[0] + 0.1 * (at::cat({in[1].slice(0, 0, 1), x[0].slice(0, 0, -1)}) * in[1] - x[0].square())};
    };
    return td::fori_loop(0, 8, step, {in[0]});
  };
  const Function plain = td::grad([=](const Tensors& in) -> Tensors { return {loop(in)[0].sum()}; }, {0, 1});
  const Function f = td::compile(plain);
  const Tensors args{numbers({1000}), numbers({1000})}, expected = plain(args);
  const double start = processor_seconds();
  for (int call = 0; call < kCalls; ++call) f(args);
  EXPECT_LT(processor_seconds() - start, 3);
  for (size_t k = 0; k < expected.size(); ++k) EXPECT_TRUE(at::allclose(f(args)[k], expected[k], 1e-10, 0)) << k;
}

// NOTE [Short blocks] in kernels/print_loops.cpp.
TEST_F(CompileTime, AKernelOfManyOperationsIsInShortBlocks) {
  using namespace kernels;
  using tower::compiler::Op;
  const auto longest_block = [](int operations) {
    const Region region = region_of({at::kDouble, at::kDouble}, [&](Expressions& g, const std::vector<Id>& in) {
      std::vector<Id> x = in;
      for (int k = 0; k < operations; ++k) x = {g.make(Op::mul, x[0], x[1]), x[0]};
      return x;
    });
    std::istringstream text(tower::compiler::print_kernel(region, "k", 32, tower::Math::strict).module.text);
    size_t lines = 0, most = 0;
    for (std::string line; std::getline(text, line);) {
      if (line.rfind("  ", 0) != 0) lines = 0;  // a label
      most = std::max(most, ++lines);
    }
    return most;
  };
  EXPECT_GT(longest_block(100), 100u);
  EXPECT_GT(longest_block(2000), 100u);
  EXPECT_LT(longest_block(2000), 500u);
}

TEST_F(CompileTime, SumsThatWaitForEachOtherAreTheSameInSeveralKernels) {
  TOWER_NEEDS_LLVM();
  const Step step = [](const Tensor& x) { return x * (x.sum() * 0.02) + x.softmax(0); };
  for (const int64_t length : {7, 100})
    EXPECT_GT(kernels::calls_left(repeated(40, step), {numbers({length})}, kClose), 2u);
}

}  // namespace
