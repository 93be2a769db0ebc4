// What compiled functions keep, and that they let it go.
#include <tower/compile.h>
#include <tower/loops.h>
#include <tower/transforms.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "compile/kernels.h"
#include "support/prelude.h"

namespace {

Tensor chain(const Tensor& x, double shift) {
  return (((x * x + shift).log().sin() * x + x.exp()).square() + 1).sqrt();
}

double resident_mebibytes() {
  std::ifstream file("/proc/self/statm");
  long total = 0, resident = 0;
  file >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// What the process has in memory, which the sanitizer's own is a part of: it keeps what was freed.
#ifdef __SANITIZE_ADDRESS__
#define TOWER_MEASURES_MEMORY() GTEST_SKIP() << "AddressSanitizer keeps what was freed"
#else
#define TOWER_MEASURES_MEMORY() static_cast<void>(0)
#endif

template <class F>
double growth(int before, int measured, F&& f) {
  for (int i = 0; i < before; ++i) f(i);
  const double start = resident_mebibytes();
  for (int i = 0; i < measured; ++i) f(before + i);
  return resident_mebibytes() - start;
}

TEST(CompiledLifetime, ManyCallsTakeNoMemory) {
  TOWER_MEASURES_MEMORY();
  const auto f = tower::compile([](const Tensor& x) { return chain(x, 0.3); });
  const auto gradient = tower::grad([&](const Tensor& x) { return f(x).sum(); });
  const Tensor x = waves({64});
  Tensor y = waves({64}).requires_grad_();
  EXPECT_LT(growth(2000, 20000,
                   [&](int) {
                     f(x);
                     gradient(x);
                     tower::vmap(f)(x);
                     tower::jvp(f, x, x);
                     f(y).sum().backward();
                   }),
            8);
}

// Memory of a captured tensor is known to the trace by wrappers of the trace.
TEST(CompiledLifetime, TracesLetGoOfViewsOfWhatWasCaptured) {
  const Tensor captured = waves({4, 3});
  const auto users = captured.use_count();
  const auto shifted = [&](const Tensor& x, bool throws) {
    const Tensor part = captured.select(0, 1).view({3, 1}).view({3});
    if (throws) throw std::invalid_argument("the function's own");
    return x + 1 + part.square();
  };
  for (const bool throws : {false, true})
    for (const bool in_loop : {false, true}) {
      {
        const auto f = tower::compile([&](const Tensor& x) {
          if (!in_loop) return shifted(x, throws);
          return tower::while_loop([](const Tensor& s) { return s.sum() < 9; },
                                   [&](const Tensor& s) { return shifted(s, throws); }, x);
        });
        if (throws) EXPECT_THROW(f(waves({3})), std::invalid_argument);
        else f(waves({3}));
      }
      EXPECT_EQ(captured.use_count(), users) << "throws " << throws << ", in a loop " << in_loop;
    }
}

TEST(CompiledLifetime, OtherNumbersOfExamplesTakeNoMemory) {
  TOWER_MEASURES_MEMORY();
  const auto f = tower::compile(tower::vmap([](const Tensor& x) { return chain(x, 0.3); }));
  EXPECT_LT(growth(200, 1000, [&](int i) { f(waves({2 + i % 400})); }), 8);
  EXPECT_EQ(f.graphs(), 2u);
}

TEST(CompiledLifetime, FunctionsGoWithTheirKernels) {
  TOWER_MEASURES_MEMORY();
  EXPECT_LT(growth(20, 60,
                   [](int i) {
                     const auto f = tower::compile([i](const Tensor& x) { return chain(x, 0.3 + i); });
                     const auto gradient = tower::grad([&](const Tensor& x) { return f(x).sum(); });
                     for (int k = 0; k < 3; ++k) {
                       f(waves({64}));
                       gradient(waves({64}));
                     }
                   }),
            16);
}

// Memory of nobody's file that can be executed.
size_t executable_maps() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += contains(line, " r-xp ") && contains(line, " 00:00 0") && !contains(line, "[");
  return count;
}

TEST(CompiledLifetime, AThousandCompilationsLeaveNothing) {
  TOWER_NEEDS_LLVM();
  const auto once = [](int i) {
    const auto f = tower::compile([i](const Tensor& x) { return (x + i) * x; });
    for (int k = 0; k < 2; ++k) f(waves({16}));
  };
  once(-1);
  const size_t before = executable_maps();
  EXPECT_LT(growth(50, 1000, once), 16);
  EXPECT_EQ(executable_maps(), before);
}

TEST(CompiledLifetime, EightThreadsCompileAndCall) {
  const auto shared = tower::compile(tower::vmap([](const Tensor& x) { return chain(x, 0.3).sum(); }));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 12; ++i) {
        const double shift = 0.3 + t + 0.01 * i;
        const auto own = tower::compile([=](const Tensor& x) { return chain(x, shift); });
        const Tensor x = waves({8}, t), many = waves({3 + (t + i) % 5, 4}, t);
        for (int k = 0; k < 2; ++k) {
          if (!same(own(x), chain(x, shift))) ++wrong;
          if (!same(shared(many), chain(many, 0.3).sum(1))) ++wrong;
          if (!same(tower::grad([&](const Tensor& x) { return own(x).sum(); })(x),
                    tower::grad([&](const Tensor& x) { return chain(x, shift).sum(); })(x)))
            ++wrong;
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CompiledLifetime, ATapeKeepsWhatItsPullbackNeeds) {
  const Tensor x = waves({64}), ct = waves({64}, 0.5);
  const auto plain = [](const Tensor& x) { return chain(x, 0.3); };
  const Tensor expected = tower::vjp(plain, x).second(ct);
  for (int calls = 0; calls < 3; ++calls) {
    const auto make = [&] {
      const auto f = tower::compile(plain);
      for (int i = 0; i <= calls; ++i) tower::vjp(f, x).second(ct);
      return tower::vjp(f, x).second;
    };
    const auto pullback = make();  // whose function is gone
    EXPECT_TRUE(same(pullback(ct), expected));
  }
}

}  // namespace
