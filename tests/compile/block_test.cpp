// What kernels leave for kernels: places in a block of memory, by lifetimes. Oracles: the operators, one by one, and
// for memory what LibTorch's allocator is asked for.
#include <c10/util/ThreadLocalDebugInfo.h>
#include <tower/compile.h>
#include <tower/function.h>
#include <tower/transforms.h>

#include <random>

#include "compile/kernels.h"
#include "graph/lifetimes.h"
#include "graph/plan.h"
#include "support/in_time.h"
#include "support/prelude.h"

namespace {

using tower::compiler::Layout;
using tower::compiler::Lifetime;
using tower::compiler::Plan;

constexpr double kClose = 1e-12;

// ---- layouts ----

bool at_one_time(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

// The least memory there can be: of a step, all that is there.
size_t most_at_once(const std::vector<Lifetime>& values, size_t steps) {
  size_t most = 0;
  for (size_t n = 0; n < steps; ++n) {
    size_t bytes = 0;
    for (const Lifetime& v : values)
      if (at_one_time(v, {n, n, 0})) bytes += v.bytes;
    most = std::max(most, bytes);
  }
  return most;
}

void expect_apart(const std::vector<Lifetime>& values, const Layout& layout) {
  ASSERT_EQ(layout.places.size(), values.size());
  for (size_t a = 0; a < values.size(); ++a) {
    ASSERT_LE(layout.places[a] + values[a].bytes, layout.bytes);
    ASSERT_EQ(layout.places[a] % (values[a].bytes < 64 ? 16 : 64), 0);
    for (size_t b = 0; b < a; ++b) {
      if (!at_one_time(values[a], values[b]) || values[a].bytes == 0 || values[b].bytes == 0) continue;
      ASSERT_TRUE(layout.places[a] + values[a].bytes <= layout.places[b] ||
                  layout.places[b] + values[b].bytes <= layout.places[a])
          << a << " and " << b;
    }
  }
}

TEST(LifetimeLayout, OfRandomValuesLetsNoTwoMeet) {
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  for (int round = 0; round < 300; ++round) {
    const size_t steps = 1 + below(40), largest = size_t{1} << below(16);
    std::vector<Lifetime> values(below(60));
    for (Lifetime& v : values) {
      v.first = below(steps);
      v.last = v.first + below(steps - v.first);
      v.bytes = below(largest + 1);
    }
    const Layout layout = tower::compiler::lay_out(values);
    expect_apart(values, layout);
    EXPECT_GE(layout.bytes, most_at_once(values, steps));
  }
}

TEST(LifetimeLayout, HasWhatEndedUsedAgain) {
  const auto bytes = [](const std::vector<Lifetime>& values) { return tower::compiler::lay_out(values).bytes; };
  EXPECT_EQ(bytes({}), 0);
  EXPECT_EQ(bytes({{0, 0, 0}, {0, 3, 0}}), 0);
  EXPECT_EQ(bytes({{0, 1, 256}, {2, 3, 256}, {4, 4, 192}}), 256);
  EXPECT_EQ(bytes({{0, 1, 256}, {1, 2, 256}, {2, 3, 256}, {3, 4, 256}}), 512) << "a chain";
  EXPECT_EQ(bytes({{0, 9, 8}, {0, 9, 8}, {0, 9, 4}}), 36) << "numbers are close";
}

// ---- plans ----

// Six kernels and products, which leave five values for each other.
Tensors layers(const Tensors& in) {
  Tensor x = in[0];
  for (int layer = 0; layer < 3; ++layer) x = (x.mm(in[1]) * 0.5).tanh() + 0.1;
  return {x};
}
// 40 × 16 numbers are too many for a kernel of one lane.
Tensors of_layers(int64_t rows = 40, at::ScalarType dtype = at::kDouble) {
  return {waves({rows, 16}).to(dtype), waves({16, 16}, 1).to(dtype)};
}

// Counts what LibTorch's allocator is asked for.
class Allocations : public c10::MemoryReportingInfoBase {
 public:
  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override { count += bytes > 0; }
  int count = 0;
};
int allocations_of(const std::function<void()>& body) {
  const auto counted = std::make_shared<Allocations>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counted);
  body();
  return counted->count;
}

TEST(PlanBlock, AWarmCallMakesItsResultsAndNoTensorOnTheWay) {
  TOWER_NEEDS_LLVM();
  const Tensors small = of_layers(), smaller = of_layers(9);
  const Plan plan(kernels::fused(layers, small).graph);
  ASSERT_EQ(plan.graph().calls.size(), 6u);
  Tensors results;
  EXPECT_EQ(allocations_of([&] { results = plan.run(small); }), 2) << "the result, and the block";
  EXPECT_TRUE(same(results[0], layers(small)[0]));
  // Two values of 9 × 16 float64 numbers at a time are little enough for the stack.
  const Plan on_stack(kernels::fused(layers, smaller).graph);
  ASSERT_EQ(on_stack.graph().calls.size(), 6u);
  EXPECT_EQ(allocations_of([&] { results = on_stack.run(smaller); }), 1);
  EXPECT_TRUE(same(results[0], layers(smaller)[0]));
}

TEST(PlanBlock, WhatIsLargeIsFreedWhenNobodyReadsItAnyMore) {
  TOWER_NEEDS_LLVM();
  const Tensors large = of_layers(5000);
  const Plan plan(kernels::fused(layers, large).graph);
  EXPECT_EQ(allocations_of([&] { plan.run(large); }), 6);
  EXPECT_TRUE(same(plan.run(large)[0], layers(large)[0]));
}

TEST(PlanBlock, HoldsAllTypesAndSizes) {
  TOWER_NEEDS_LLVM();
  const Function mixed = [](const Tensors& in) {
    const Tensor product = in[0].mm(in[1]), above = product > 0.25;
    const Tensor counted = at::where(above, product.sign().to(at::kLong), 3) * 7;
    return Tensors{(product + above.to(product.scalar_type()).mm(in[1].t() * 2)) * counted, counted.sum(1), above};
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const int64_t rows : {0, 1, 2, 3, 7, 41, 64, 500, 3000}) {
      const Tensors args{waves({rows, 24}).to(dtype), waves({24, 24}, 1).to(dtype)};
      kernels::calls_left(mixed, args, dtype == at::kFloat ? 1e-5 : kClose);
      kernels::calls_left(layers, of_layers(rows, dtype), dtype == at::kFloat ? 1e-5 : kClose);
    }
}

TEST(PlanBlock, PassesOnWhatIsNoOrdinaryNumber) {
  TOWER_NEEDS_LLVM();
  // What has the sizes of a row, and what has those of seven: two kernels.
  const Function f = [](const Tensors& in) {
    const Tensor y = -(in[0] * 0.5);
    return Tensors{(y * in[1]).abs() + in[1], y > in[1]};
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const Tensor special = kernels::special(dtype);
    const Tensors args{special.repeat({1023 / special.numel() + 1}), special.slice(0, 0, 7).unsqueeze(1)};
    const Tensors whole{args[0], args[1].expand({7, args[0].numel()}).contiguous()};
    const tower::compiler::FusedGraph fused = kernels::fused(f, whole);
    EXPECT_EQ(fused.graph.calls.size(), 2u);
    const Tensors expected = f(whole), actual = Plan(fused.graph).run(whole);
    for (size_t k = 0; k < expected.size(); ++k)
      EXPECT_EQ(kernels::bit_difference(actual[k], expected[k], {}), "") << k;
  }
}

TEST(PlanBlock, IsAsLargeAsTheCallIsWhichMayBeSmallerOrLargerThanTheLast) {
  const auto f = td::compile(layers);
  const Function of_one_row = [](const Tensors& in) {
    Tensor y = in[0];
    for (int layer = 0; layer < 3; ++layer) y = (in[1].mv(y) * 0.5).tanh() + 0.1;
    return Tensors{y.cumsum(0) * y};
  };
  const auto mapped = td::compile(td::vmap(of_one_row, {0, std::nullopt}, {0}));
  for (int round = 0; round < 2; ++round)
    for (const int64_t rows : {40, 41, 3, 4000, 1, 997, 0, 40, 5}) {
      const Tensors args = of_layers(rows);
      for (int call = 0; call < 2; ++call) {
        EXPECT_TRUE(same(f(args)[0], layers(args)[0])) << rows;
        Tensor y = args[0];
        for (int layer = 0; layer < 3; ++layer) y = (y.mm(args[1].t()) * 0.5).tanh() + 0.1;
        EXPECT_TRUE(same(mapped(args)[0], y.cumsum(1) * y)) << rows;
      }
    }
}

TEST(PlanBlock, ResultsOfCallsBeforeStayWhatTheyAre) {
  const auto f = td::compile(layers);
  std::vector<Tensor> kept, expected;
  for (int call = 0; call < 8; ++call) {
    Tensors args = of_layers();
    args[0] = args[0] + call;
    kept.push_back(f(args)[0]);
    expected.push_back(layers(args)[0]);
  }
  for (size_t k = 0; k < kept.size(); ++k) EXPECT_TRUE(same(kept[k], expected[k])) << k;
}

TEST(PlanBlock, ACallThatThrowsInTheMiddleLeavesNothingBehind) {
  const Function f = [](const Tensors& in) {
    const Tensor y = (in[0].mm(in[1]) * 0.5).tanh();
    return Tensors{(y.index_select(0, in[2]) + 1).mm(in[1]).exp()};
  };
  const auto compiled = td::compile(f);
  Tensors args = of_layers(), wrong = args;
  args.push_back(at::tensor({0, 39, 7, 7}));
  wrong.push_back(at::tensor({0, 40, 7, 7}));
  for (int call = 0; call < 4; ++call) {
    EXPECT_TRUE(same(compiled(args)[0], f(args)[0]));
    EXPECT_THROW(compiled(wrong), c10::IndexError);
    EXPECT_TRUE(same(compiled(args)[0], f(args)[0]));
  }
}

// An operator of the user's, which calls another compiled function, and the one that calls it again.
struct Nested : tower::Function<Nested> {
  static inline std::function<Tensor(const Tensor&)> inside;
  static Tensor forward(const Tensor& x) { return inside(x); }
  static void setup_context(tower::Context&, const std::tuple<Tensor>&, const Tensor&) {}
  static Tensor backward(tower::Context&, const Tensor& grad) { return grad; }
};

TEST(PlanBlock, ACallWithinACallHasOneOfItsOwn) {
  constexpr int kDepth = 2;
  const Tensors args = of_layers();
  const auto around = [&](const Tensor& x, const auto& inside) {
    const Tensor y = (x.mm(args[1]) * 0.5).tanh(), z = (y.mm(args[1]) + 2).sin();
    return y.mm(args[1]) + inside(y * 3) * z.mm(args[1]);
  };
  const std::function<Tensor(const Tensor&, int)> plain = [&](const Tensor& x, int depth) {
    return around(x, [&](const Tensor& y) -> Tensor {
      return depth == kDepth ? y * 2 : plain(y, depth + 1) + layers({y, args[1]})[0];
    });
  };
  const auto other = tower::compile([&](const Tensor& x) { return layers({x, args[1]})[0]; });
  const auto compiled =
      tower::compile([&](const Tensor& x) { return around(x, [](const Tensor& y) { return Nested::apply(y); }); });
  int depth = 0;
  Nested::inside = [&](const Tensor& y) -> Tensor {
    if (depth == kDepth) return y * 2;
    ++depth;
    const Tensor inner = compiled(y) + other(y);
    --depth;
    return inner;
  };
  for (int call = 0; call < 4; ++call) EXPECT_TRUE(same(compiled(args[0]), plain(args[0], 0))) << call;
  Nested::inside = nullptr;
}

TEST(PlanBlock, EveryThreadHasItsOwn) {
  const auto f = td::compile(layers);
  f(of_layers());
  support::on_threads(4, [&](int thread) {
    for (int call = 0; call < 50; ++call) {
      Tensors args = of_layers(40 + (call + thread) % 3);
      args[0] = args[0] * (thread + 1);
      EXPECT_TRUE(same(f(args)[0], layers(args)[0]));
    }
  });
}

}  // namespace
