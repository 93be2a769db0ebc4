// Kernels as functions of memory: any number of lanes, inputs that repeat, several types at once, threads.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <thread>

#include "compile/kernels.h"

namespace {

using kernels::region_of;
using kernels::run;
using tower::compiler::Expressions;
using tower::compiler::Id;
using tower::compiler::Kernel;
using tower::compiler::Op;
using tower::compiler::Region;
using tower::compiler::Type;

std::vector<Id> multiply_and_add(Expressions& g, const std::vector<Id>& in) {
  return {g.make(Op::add, g.make(Op::mul, in[0], in[1]), in[2])};
}

TEST(Kernel, TakesAnyNumberOfLanes) {
  TOWER_NEEDS_LLVM();
  const Region region = region_of({at::kFloat, at::kFloat, at::kFloat}, multiply_and_add);
  for (const int64_t n : {0, 1, 7, 16, 64, 65, 1001, 200003}) {
    const at::Tensor a = at::randn({n}), b = at::randn({n}), c = at::randn({n});
    EXPECT_TRUE(run(region, {a, b, c}, n)[0].equal(a * b + c)) << n;
  }
}

TEST(Kernel, CallsFunctionsForAnyNumberOfLanes) {
  TOWER_NEEDS_LLVM();
  const Region region = region_of({at::kFloat}, [](Expressions& g, const std::vector<Id>& in) {
    return std::vector{g.make(Op::lgamma, g.make(Op::erfc, in[0]))};
  });
  // All lanes alone, to compare with: each is the first of its vector.
  const at::Tensor x = at::randn({300});
  at::Tensor alone = at::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) alone[i] = run(region, {x[i]}, 1)[0][0];
  for (const int64_t n : {1, 15, 64, 79, 128, 300})
    EXPECT_TRUE(run(region, {x.narrow(0, 0, n)}, n)[0].equal(alone.narrow(0, 0, n))) << n;
}

TEST(Kernel, ReadsOneElementOfInputsThatRepeat) {
  TOWER_NEEDS_LLVM();
  const Region region = region_of({at::kDouble, at::kDouble, at::kBool},
                                  [](Expressions& g, const std::vector<Id>& in) {
                                    return std::vector{g.make(Op::select, in[2], g.make(Op::mul, in[0], in[1]), in[0])};
                                  },
                                  {false, true, true});
  for (const int64_t n : {1, 7, 64, 1001}) {
    const at::Tensor a = at::randn({n}, at::kDouble), b = at::randn({1}, at::kDouble);
    EXPECT_TRUE(run(region, {a, b, at::ones({1}, at::kBool)}, n)[0].equal(a * b));
    EXPECT_TRUE(run(region, {a, b, at::zeros({1}, at::kBool)}, n)[0].equal(a));
  }
}

TEST(Kernel, WritesNothingBeyondItsLanes) {
  TOWER_NEEDS_LLVM();
  const Kernel kernel(region_of(
      {at::kFloat}, [](Expressions& g, const std::vector<Id>& in) { return std::vector{g.make(Op::neg, in[0])}; }));
  for (const int64_t n : {0, 1, 7, 64, 70}) {
    const at::Tensor x = at::ones({n}), memory = at::full({n + 200}, 5.0f);
    kernel.run(n, {x.const_data_ptr()}, {memory.mutable_data_ptr<float>() + 100});
    EXPECT_TRUE(memory.narrow(0, 0, 100).eq(5).all().item<bool>());
    EXPECT_TRUE(memory.narrow(0, 100, n).eq(-1).all().item<bool>());
    EXPECT_TRUE(memory.narrow(0, 100 + n, 100).eq(5).all().item<bool>());
  }
}

TEST(Kernel, MayWriteToTheMemoryThatItReads) {
  TOWER_NEEDS_LLVM();
  const Kernel kernel(region_of({at::kFloat, at::kFloat}, [](Expressions& g, const std::vector<Id>& in) {
    return std::vector{g.make(Op::sub, in[0], in[1]), g.make(Op::mul, in[0], in[1])};
  }));
  const at::Tensor a = at::randn({1001}), b = at::randn({1001}), difference = a - b, product = a * b;
  kernel.run(1001, {a.const_data_ptr(), b.const_data_ptr()}, {a.mutable_data_ptr(), b.mutable_data_ptr()});
  EXPECT_TRUE(a.equal(difference));
  EXPECT_TRUE(b.equal(product));
}

// Elements of an example that follow each other are copied in squares (NOTE [Examples row by row]): of any number of
// examples and elements, with what is beside them, and columns of several types.
TEST(Kernel, ReadsAndWritesExamplesThatLieRowByRow) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kInt, at::kLong, at::kBool})
    for (const int64_t width : {1, 2, 3, 4, 7, 9}) {
      const auto elements = static_cast<size_t>(width);
      std::vector<at::ScalarType> types(elements, dtype);
      types.push_back(at::kDouble);  // of rows of its own
      const Kernel kernel(region_of(
          types, [](Expressions&, const std::vector<Id>& in) { return std::vector<Id>(in.rbegin(), in.rend()); }));
      const auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
      for (const int64_t n : {1, 3, 16, 37}) {
        const at::Tensor x = at::randint(0, 2, {n, width + 2}, dtype), other = at::randn({n, 2}, at::kDouble),
                         y = at::zeros({n, width + 3}, dtype), copied = at::zeros({n}, at::kDouble);
        std::vector<Kernel::Source> from;
        std::vector<Kernel::Target> to{{copied.mutable_data_ptr(), 1}};
        for (int64_t k = 0; k < width; ++k) {
          from.push_back({static_cast<const char*>(x.const_data_ptr()) + (1 + k) * bytes, width + 2});
          to.push_back({static_cast<char*>(y.mutable_data_ptr()) + (2 + k) * bytes, width + 3});
        }
        from.push_back({other.const_data_ptr<double>() + 1, 2});
        kernel.run(n, from, to);
        at::Tensor expected = at::zeros_like(y);
        expected.narrow(1, 2, width).copy_(x.narrow(1, 1, width).flip(1));
        EXPECT_TRUE(y.equal(expected)) << dtype << " " << width << " " << n;
        EXPECT_TRUE(copied.equal(other.select(1, 1))) << dtype << " " << width << " " << n;
      }
    }
}

TEST(Kernel, ComputesInSeveralTypesAtOnce) {
  TOWER_NEEDS_LLVM();
  const Region region = region_of(
      {at::kFloat, at::kLong, at::kBool, at::kDouble, at::kInt}, [](Expressions& g, const std::vector<Id>& in) {
        const Id sine = g.make(Op::sin, in[0]);
        const Id sum = g.make(Op::add, g.cast(sine, Type::f64), in[3]);
        const Id whole = g.make(Op::mul, in[1], g.cast(in[4], Type::i64));
        return std::vector{sine, g.make(Op::select, in[2], sum, g.cast(whole, Type::f64)), whole, in[2]};
      });
  for (const int64_t n : {1, 7, 64, 1001}) {
    const at::Tensor x = at::randn({n}), k = at::randint(-9, 9, {n}, at::kLong), m = at::rand({n}) < 0.5,
                     d = at::randn({n}, at::kDouble), i = at::randint(-9, 9, {n}, at::kInt);
    const auto y = run(region, {x, k, m, d, i}, n);
    EXPECT_TRUE(y[0].allclose(x.sin(), 1e-6, 0));
    EXPECT_TRUE(y[2].equal(k * i));
    EXPECT_TRUE(y[1].equal(at::where(m, y[0].to(at::kDouble) + d, y[2].to(at::kDouble))));
    EXPECT_TRUE(y[3].equal(m));
  }
}

TEST(Kernel, GivesTheSameOnAnyNumberOfThreads) {
  TOWER_NEEDS_LLVM();
  const Region region = region_of({at::kFloat, at::kFloat, at::kFloat}, multiply_and_add);
  const at::Tensor a = at::randn({1000003}), b = at::randn({1000003}), c = at::randn({1000003});
  const int threads = at::get_num_threads();
  for (const int n : {1, 2, 3}) {
    at::set_num_threads(n);
    EXPECT_TRUE(run(region, {a, b, c}, a.numel())[0].equal(a * b + c)) << n;
  }
  at::set_num_threads(threads);
}

TEST(Kernel, IsCompiledAndRunByManyThreadsAtOnce) {
  TOWER_NEEDS_LLVM();
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t, &right] {
      const at::Tensor x = at::ones({100});
      const auto y = run(
          region_of({at::kFloat},
                    [t](Expressions& g, const std::vector<Id>& in) {
                      return std::vector{g.make(Op::add, g.make(Op::cos, in[0]), g.constant(Type::f32, int64_t{t}))};
                    }),
          {x}, 100);
      right += y[0].allclose(x.cos() + t);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(right, 8);
}

TEST(Kernel, SaysWhatItIs) {
  TOWER_NEEDS_LLVM();
  const Kernel kernel(region_of({at::kFloat, at::kFloat, at::kFloat}, multiply_and_add, {false, true, false}));
  EXPECT_EQ(kernel.facts().instructions, 6);  // three loads, two operations, a store
  EXPECT_EQ(kernel.facts().bytes_a_lane, 12);
  EXPECT_EQ(kernel.facts().vector_lanes, tower::compiler::Cpu::get().vector_bytes() / 4);
  EXPECT_GT(kernel.facts().code_bytes, 0u);
  EXPECT_GT(kernel.facts().milliseconds, 0);
}

}  // namespace
