// What compiled functions keep, and that they let it go.
#include <tower/compile.h>
#include <tower/transforms.h>
#include <unistd.h>

#include <fstream>

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

template <class F>
double growth(int before, int measured, F&& f) {
  for (int i = 0; i < before; ++i) f(i);
  const double start = resident_mebibytes();
  for (int i = 0; i < measured; ++i) f(before + i);
  return resident_mebibytes() - start;
}

TEST(CompiledLifetime, ManyCallsTakeNoMemory) {
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

TEST(CompiledLifetime, OtherNumbersOfExamplesTakeNoMemory) {
  const auto f = tower::compile(tower::vmap([](const Tensor& x) { return chain(x, 0.3); }));
  EXPECT_LT(growth(200, 1000, [&](int i) { f(waves({2 + i % 400})); }), 8);
  EXPECT_EQ(f.graphs(), 2u);
}

TEST(CompiledLifetime, FunctionsGoWithTheirKernels) {
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
