// Loops in compiled functions: inside a kernel where the steps fit into one, step by step elsewhere. Oracles: the loops
// written by hand, one example at a time, and the same loops operator by operator.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/dynamic.h>
#include <tower/loops.h>
#include <tower/tower.h>

#include <cmath>

#include "loops/programs.h"
#include "support/nestings.h"
#include "support/oracles.h"
#include "support/prelude.h"

namespace {

using loops::by_hand;
using loops::by_tower;
using loops::Program;
using support::transformed;

constexpr support::Tolerance kRounding{1e-9, 1e-9};

Function tower_program(const Program& program) {
  return [&program](const Tensors& in) { return program.run(by_tower(), in); };
}

// The first call traces, the second compiles, the third runs what there is.
void expect_thrice(const Function& f, const Tensors& inputs, const Tensors& expected, const std::string& what) {
  try {
    for (int call = 0; call < 3; ++call)
      EXPECT_EQ(support::difference(f(inputs), expected, kRounding), "") << what << ", call " << call;
  } catch (const std::exception& error) {
    ADD_FAILURE() << what << ": " << error.what();
  }
}

TEST(CompiledLoops, EveryProgramAndItsDerivativesAreAsByHand) {
  for (const Program& program : loops::programs()) {
    if (program.name == "checkpointed") continue;  // there is no loop in it, and checkpoints of checkpoints are refused
    for (const std::string kinds : {"", "v", "j", "r", "vj", "vr", "jv", "rv", "vv", "jvr", "rvj"}) {
      const Tensors inputs = support::inputs_of(program.shapes, kinds);
      const Function hand = [&](const Tensors& in) { return program.run(by_hand(), in); };
      const Tensors expected = transformed(kinds, hand, /*by_loop=*/true)(inputs);
      expect_thrice(td::compile(transformed(kinds, tower_program(program), false)), inputs, expected,
                    program.name + ", compiled, " + kinds);
      expect_thrice(transformed(kinds, td::compile(tower_program(program)), false), inputs, expected,
                    program.name + ", of compiled, " + kinds);
    }
  }
}

// Newton's method until each point has converged.
Tensor root_of(const Tensor& a) {
  const auto residual = [a](const Tensor& y) { return y.exp() + y - a; };
  return tower::while_loop([residual](const Tensor& y) { return residual(y).abs() > 1e-10; },
                           [residual](const Tensor& y) { return y - residual(y) / (y.exp() + 1); }, at::zeros_like(a));
}

int64_t kernels_of(const std::string& report) {
  int64_t found = 0;
  for (size_t at = 0; (at = report.find("kernel ", at)) != std::string::npos; ++at) ++found;
  return found;
}

TEST(CompiledLoops, AreOneKernelForAnyNumberOfExamples) {
  int traced = 0;
  const auto f = tower::compile(tower::vmap([&](const Tensor& a) {
    ++traced;
    return root_of(a).sin() * 2;
  }));
  for (const int64_t points : {100, 1000, 1001, 17, 1, 0}) {
    const Tensor a = at::linspace(-3, 40, points, at::kDouble);
    for (int call = 0; call < 2; ++call) EXPECT_TRUE(at::allclose(f(a), tower::vmap(root_of)(a).sin() * 2));
  }
  EXPECT_EQ(traced, 2);
  EXPECT_GE(kernels_of(f.report()), 1);
  EXPECT_EQ(kernels_of(tower::compile(tower::vmap(root_of)).report()), 0);
}

// Newton's method for x + tanh(M x) = b. The rows of M are such that examples need pivots of their own.
Tensor solution(const Tensor& m, const Tensor& b) {
  const auto residual = [=](const Tensor& x) { return 0.1 * x + at::mv(m, x) + at::mv(m, x).tanh() - b; };
  return tower::while_loop(
      [=](const Tensor& x) { return residual(x).norm() > 1e-9; },
      [=](const Tensor& x) { return x - at::linalg_solve(tower::jacfwd(residual)(x), residual(x)); }, at::zeros_like(b),
      {.max_steps = 50});
}

Tensor turned(int64_t examples, int64_t size) {
  const Tensor identity = at::eye(size, at::kDouble), noise = at::arange(examples * size * size, at::kDouble).sin();
  std::vector<Tensor> rows;
  for (int64_t k = 0; k < examples; ++k) rows.push_back(identity.roll(k < 8 ? 3 : k, 0));
  return at::stack(rows) * 2 + 0.3 * noise.view({examples, size, size});
}

TEST(CompiledLoops, OfNewtonAreOneKernelWhateverTheNumberOfUnknowns) {
  for (const int64_t size : {1, 3, 11, 12, 16}) {
    const Tensor m = turned(21, size), b = at::arange(21 * size, at::kDouble).cos().view({21, size});
    const auto compiled = tower::compile(tower::vmap(solution));
    const Tensor expected = tower::vmap(solution)(m, b);
    for (int call = 0; call < 3; ++call) EXPECT_TRUE(at::allclose(compiled(m, b), expected, 1e-9, 1e-9)) << size;
    EXPECT_EQ(kernels_of(compiled.report()), 1) << size;
  }
}

TEST(CompiledLoops, LeaveWhatHasEndedAsItWas) {
  // A further step of an example that has ended divides by zero.
  const auto f = [](const Tensor& x, const Tensor& n) {
    using State = std::pair<Tensor, Tensor>;
    return tower::while_loop([](const State& s) { return s.second > 0; },
                             [](const State& s) { return State(s.first + 1 / s.second, s.second - 1); }, State(x, n))
        .first;
  };
  const Tensor x = at::arange(20, at::kDouble), n = at::arange(20, at::kDouble).remainder(7);
  const auto compiled = tower::compile(tower::vmap(f));
  std::vector<Tensor> expected;
  for (int64_t i = 0; i < 20; ++i) expected.push_back(f(x[i], n[i]));
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(at::allclose(compiled(x, n), at::stack(expected)));
  EXPECT_GE(kernels_of(compiled.report()), 1);
}

TEST(CompiledLoops, OfOnePointAloneAreAKernel) {
  const auto compiled = tower::compile(root_of);
  const Tensor a = at::scalar_tensor(5, at::kDouble);
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(at::allclose(compiled(a), root_of(a)));
  EXPECT_EQ(kernels_of(compiled.report()), 1);
}

TEST(CompiledLoops, SayWhenMaxStepsWasReached) {
  const auto loop = [](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s < 100; }, [](const Tensor& s) { return s * s; }, x,
                             {.max_steps = 4});
  };
  const auto compiled = tower::compile(tower::vmap(loop));
  const Tensor ends = at::tensor({2.0, 500.0}), goes_on = at::tensor({2.0, 1.1});
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(at::equal(compiled(ends), tower::vmap(loop)(ends)));
  EXPECT_THROW(compiled(goes_on), tower::MaxStepsError);

  const auto attempt = [](const Tensor& x) {
    return tower::try_while_loop([](const Tensor& s) { return s < 100; }, [](const Tensor& s) { return s * s; }, x,
                                 {.max_steps = 4});
  };
  const auto attempts = tower::compile(tower::vmap(attempt));
  for (int call = 0; call < 3; ++call) {
    const auto [state, finished, steps] = attempts(at::tensor({2.0, 1.1, 500.0}));
    EXPECT_TRUE(at::equal(finished, at::tensor({1, 0, 1}).to(at::kBool)));
    EXPECT_TRUE(at::equal(steps, at::tensor({3, 4, 0})));
  }
}

TEST(CompiledLoops, WhoseStepsNoKernelTakesRunStepByStep) {
  // An eigenvalue is LibTorch's; what is around it is compiled.
  const auto f = [](const Tensor& a) {
    return tower::while_loop(
        [](const Tensor& m) { return at::linalg_eigvalsh(m).amax() > 1; },
        [](const Tensor& m) { return m * 0.7 + (m * 0.1).sin() * 0.1 - m.square() * 0.001 + m * m * 0.001; },
        a + a.t());
  };
  const Tensor a = at::sin(at::arange(5 * 9, at::kDouble)).view({5, 3, 3}) * 4;
  const auto compiled = tower::compile(tower::vmap(f));
  for (int call = 0; call < 4; ++call) EXPECT_TRUE(at::allclose(compiled(a), tower::vmap(f)(a)));
}

TEST(CompiledLoops, ReadCapturedTensorsAtEachCall) {
  Tensor factor = at::scalar_tensor(0.5, at::kDouble);
  const auto f = [&](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s > 0.01; }, [&](const Tensor& s) { return s * factor; }, x);
  };
  const auto compiled = tower::compile(tower::vmap(f));
  const Tensor x = at::linspace(0, 1, 20, at::kDouble);
  for (const double value : {0.5, 0.5, 0.3, 0.9}) {
    factor.fill_(value);
    EXPECT_TRUE(at::equal(compiled(x), tower::vmap(f)(x)));
  }
}

TEST(CompiledLoops, DrawAnewInEachStep) {
  const auto f = [](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s < 3; },
                             [](const Tensor& s) { return s + at::rand_like(s); }, x);
  };
  const auto compiled = tower::compile(tower::vmap(f, {.randomness = tower::Randomness::different}));
  const Tensor x = at::zeros({50}, at::kDouble);
  Tensor last;
  for (int call = 0; call < 3; ++call) {
    const Tensor now = compiled(x);
    EXPECT_TRUE((now >= 3).all().item<bool>() && (now < 4).all().item<bool>());
    if (last.defined()) {
      EXPECT_FALSE(at::equal(now, last));
    }
    EXPECT_GT(now.std().item<double>(), 0.05);
    last = now;
  }
}

TEST(CompiledLoops, RefuseToReadValues) {
  const auto f = [](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s.item<double>() > 1; },
                             [](const Tensor& s) { return s / 2; }, x);
  };
  EXPECT_THROW(tower::compile(f)(at::scalar_tensor(5, at::kDouble)), tower::UnsupportedError);
}

TEST(CompiledLoops, RefuseStepsThatWrite) {
  const Tensor log = at::zeros({}, at::kDouble);
  const auto f = [&](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s > 1; },
                             [&](const Tensor& s) {
                               log.add_(1);
                               return s / 2;
                             },
                             x);
  };
  EXPECT_THROW(tower::compile(f)(at::scalar_tensor(5, at::kDouble)), tower::Error);
}

}  // namespace
