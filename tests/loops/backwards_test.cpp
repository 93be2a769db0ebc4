// The way back through a loop in a kernel. Oracles: LibTorch's autograd through the same loop, one example at a time,
// and finite differences.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/dynamic.h>
#include <tower/loops.h>
#include <tower/tower.h>

#include <cmath>
#include <random>

#include "compile/kernels.h"
#include "support/oracles.h"
#include "support/seeds.h"
#include "support/stacked.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using support::Tensors;
using td::Function;
using Body = std::function<Tensors(const Tensors& state, const Tensors& fixed)>;

// A loop over numbers, vectors and counters that a seed decides: how many steps an example makes depends on its state.
// Operands: a vector of three, a number, and two tensors that every step reads.
struct Program {
  Body step;
  double until;
  bool counts;  // an integer, and a boolean, are in the state
};

Program random_program(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&random](uint64_t n) { return random() % n; };
  std::vector<uint64_t> choices;
  for (int k = 0; k < 12; ++k) choices.push_back(pick(8));
  const bool counts = pick(2) == 0;
  const Body step = [choices, counts](const Tensors& s, const Tensors& fixed) {
    const Tensor a = fixed[0], m = fixed[1];
    const auto changed = [&](const Tensor& x, uint64_t how) -> Tensor {
      switch (how) {
        case 0:
          return x.sin() * a.mean();
        case 1:
          return m.mv(x).tanh();
        case 2:
          return x * 0.9 + 0.1 * a;
        case 3:
          return (x * x + 1).log();
        case 4:
          return at::where(x > 0, x * 0.5, x * a);
        case 5:
          return x.flip(0) * 0.8 + m.diagonal();
        case 6:
          return at::linalg_solve(at::eye(3, x.options()) * 4 + m, x);
        default:
          return x / (1 + x.square().sum());
      }
    };
    Tensor x = s[0];
    for (size_t k = 0; k < 3; ++k) x = changed(x, choices[k]);
    // Grows by a third at least.
    const Tensor t = s[1] + 0.35 + 0.3 * (x * a).sum().sigmoid();
    Tensors next{x, t};
    if (counts) {
      next.push_back(s[2] + 1);
      next.push_back(s[3].logical_xor(x[0] > 0));
      next[0] = at::where(s[3], x, x * (1 + 0.1 / (next[2].to(x.scalar_type()))));
    }
    return next;
  };
  return {step, 1.0 + static_cast<double>(pick(4)), counts};
}

Tensors start_of(const Program& p, const Tensors& in) {
  Tensors start{in[0], in[1]};
  if (p.counts) {
    start.push_back(at::zeros({}, at::kLong));
    start.push_back(at::zeros({}, at::kBool));
  }
  return start;
}

Tensor summed(const Tensors& last) { return (last[0] * last[0]).sum() + last[1].square(); }

Function by_tower(const Program& p) {
  return [&p](const Tensors& in) {
    const Tensors fixed{in[2], in[3]};
    return Tensors{summed(td::while_loop([&p](const Tensors& s) { return s[1] < p.until; },
                                         [&p, fixed](const Tensors& s) { return p.step(s, fixed); }, start_of(p, in)))};
  };
}
Function by_hand(const Program& p) {
  return [&p](const Tensors& in) {
    Tensors s = start_of(p, in);
    while ((s[1] < p.until).item<bool>()) s = p.step(s, {in[2], in[3]});
    return Tensors{summed(s)};
  };
}

Tensors inputs(int64_t examples, at::ScalarType dtype, uint64_t seed) {
  at::manual_seed(static_cast<int64_t>(seed));
  const auto some = [&](std::vector<int64_t> sizes) {
    sizes.insert(sizes.begin(), examples);
    return at::rand(sizes, dtype) * 2 - 1;
  };
  // Some begin behind the end: no step of them.
  return {some({3}), some({}) * 4, some({3}), some({3, 3}) * 0.5};
}

Tensors each_by_autograd(const Program& p, const Tensors& in, int64_t examples) {
  std::vector<Tensors> gradients;
  for (int64_t e = 0; e < examples; ++e) {
    Tensors one;
    for (const Tensor& t : in) one.push_back(t[e]);
    gradients.push_back(support::autograd_vjp(by_hand(p), one, {at::ones({}, in[0].options())}));
  }
  return support::stacked(gradients);
}

bool is_in_a_kernel(const std::string& report) { return report.find("while_loop_backward") == std::string::npos; }

TEST(LoopsBackwards, OfRandomProgramsAreLibTorchsGradients) {
  TOWER_NEEDS_LLVM();
  int inside = 0, all = 0;
  for (const uint64_t seed : support::seeds("TOWER_LOOPS_BACKWARDS", 40)) {
    const Program p = random_program(seed);
    const at::ScalarType dtype = seed % 3 == 0 ? at::kFloat : at::kDouble;
    const auto one = [f = by_tower(p)](const Tensor& x, const Tensor& t, const Tensor& a, const Tensor& m) {
      return f({x, t, a, m})[0];
    };
    const auto gradient = tower::compile(tower::vmap(tower::grad<0, 1, 2, 3>(one)));
    for (const int64_t examples : {5, 5, 8, 17, 1}) {
      const Tensors in = inputs(examples, dtype, seed + static_cast<uint64_t>(examples));
      const support::Tolerance near{dtype == at::kFloat ? 2e-4 : 1e-10, dtype == at::kFloat ? 1e-5 : 1e-11};
      const auto [x, t, a, m] = gradient(in[0], in[1], in[2], in[3]);
      EXPECT_EQ(support::difference({x, t, a, m}, each_by_autograd(p, in, examples), near), "")
          << "seed " << seed << ", " << examples << " examples";
    }
    inside += is_in_a_kernel(gradient.report());
    ++all;
  }
  EXPECT_GE(inside, all * 9 / 10) << "of " << all << " in kernels";
}

TEST(LoopsBackwards, OfWhatExamplesShareAreSumsOverThem) {
  TOWER_NEEDS_LLVM();
  for (const uint64_t seed : {1, 2, 3}) {
    const Program p = random_program(seed);
    const Tensors in = inputs(9, at::kDouble, seed);
    const Tensors shared{in[0], in[1], in[2][0].contiguous(), in[3][0].contiguous()};
    const Function sum = [&p](const Tensors& args) {
      return Tensors{td::vmap(by_tower(p), {0, 0, std::nullopt, std::nullopt}, {0})(args)[0].sum()};
    };
    const Function hand = [&p](const Tensors& args) {
      Tensor total = at::zeros({}, at::kDouble);
      for (int64_t e = 0; e < 9; ++e) total = total + by_hand(p)({args[0][e], args[1][e], args[2], args[3]})[0];
      return Tensors{total};
    };
    const Tensors expected = support::autograd_vjp(hand, shared, {at::ones({}, at::kDouble)});
    const auto gradient = td::compile(td::grad(sum, {0, 1, 2, 3}));
    for (int call = 0; call < 3; ++call)
      EXPECT_EQ(support::difference(gradient(shared), expected, {1e-10, 1e-11}), "") << "seed " << seed;
  }
}

TEST(LoopsBackwards, OfStepsThatAreLinearNeedNoStates) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensor& x, const Tensor& until) {
    return tower::while_loop([until](const Tensor& s) { return s < until; }, [](const Tensor& s) { return s * 3; }, x);
  };
  const auto gradient = tower::compile(tower::vmap(tower::grad(f)));
  const Tensor x = at::full({6}, 1.5, at::kDouble), until = at::tensor({1.0, 2.0, 5.0, 14.0, 41.0, 1.0});
  for (int call = 0; call < 3; ++call)
    EXPECT_TRUE(at::equal(gradient(x, until), at::tensor({1.0, 3.0, 9.0, 27.0, 81.0, 1.0}, at::kDouble)));
}

// dy/dt = -k y, in many steps of an example's own number.
Tensor decay(const Tensor& y0, const Tensor& k, const Tensor& steps) {
  return tower::while_loop(
             [steps](const std::pair<Tensor, Tensor>& s) { return s.second < steps; },
             [k](const std::pair<Tensor, Tensor>& s) { return std::pair(s.first * (1 - 1e-5 * k), s.second + 1); },
             std::pair(y0, at::zeros_like(steps)))
      .first;
}

TEST(LoopsBackwards, MemoryGrowsWithTheStepsAndIsFreed) {
  TOWER_NEEDS_LLVM();
  const auto gradient = tower::compile(tower::vmap(tower::grad<0, 1>(decay)));
  const Tensor y0 = at::linspace(1, 2, 19, at::kDouble), k = at::linspace(0.5, 1.5, 19, at::kDouble);
  const Tensor few = at::arange(19), many = few * 10000;
  for (const Tensor& steps : {few, few, many, few, many}) {
    const auto [dy, dk] = gradient(y0, k, steps);
    const Tensor factor = at::pow(1 - 1e-5 * k, steps.to(at::kDouble));
    EXPECT_TRUE(at::allclose(dy, factor, 1e-9, 0));
    EXPECT_TRUE(at::allclose(dk, y0 * factor * steps / (1 - 1e-5 * k) * -1e-5, 1e-9, 0));
  }
  EXPECT_TRUE(is_in_a_kernel(gradient.report())) << gradient.report();
}

TEST(LoopsBackwards, OfALoopInALoopGoThroughBoth) {
  TOWER_NEEDS_LLVM();
  // Each step solves y = cos(a y) by iteration.
  const auto f = [](const Tensor& a, const Tensor& n) {
    const auto inner = [a](const Tensor& x) {
      return tower::while_loop(
                 [](const std::pair<Tensor, Tensor>& s) { return s.second < 4; },
                 [a](const std::pair<Tensor, Tensor>& s) { return std::pair((a * s.first).cos(), s.second + 1); },
                 std::pair(x, at::zeros_like(a)))
          .first;
    };
    return tower::while_loop(
               [n](const std::pair<Tensor, Tensor>& s) { return s.second < n; },
               [inner](const std::pair<Tensor, Tensor>& s) { return std::pair(inner(s.first) * 1.1, s.second + 1); },
               std::pair(a * 0.5, at::zeros_like(n)))
        .first;
  };
  const auto hand = [](int64_t steps) -> Function {
    return [steps](const Tensors& in) {
      Tensor y = in[0] * 0.5;
      for (int64_t i = 0; i < steps; ++i) {
        for (int k = 0; k < 4; ++k) y = (in[0] * y).cos();
        y = y * 1.1;
      }
      return Tensors{y};
    };
  };
  const Tensor a = at::linspace(0.2, 0.9, 11, at::kDouble), n = at::arange(11) % 4;
  const auto gradient = tower::compile(tower::vmap(tower::grad(f)));
  for (int call = 0; call < 3; ++call) {
    const Tensor found = gradient(a, n);
    for (int64_t e = 0; e < 11; ++e) {
      const Tensors expected = support::autograd_vjp(hand(e % 4), {a[e]}, {at::ones({}, at::kDouble)});
      EXPECT_NEAR(found[e].item<double>(), expected[0].item<double>(), 1e-12) << e;
    }
  }
}

TEST(LoopsBackwards, SecondDerivativesAreThoseOfTheSteps) {
  TOWER_NEEDS_LLVM();
  const Program p = random_program(4);
  const Tensors in = inputs(3, at::kDouble, 4);
  const Function gradient = td::grad(by_tower(p), {0});
  const Function hessian = td::compile(td::vmap(td::jacfwd(gradient, {0}), td::Dims(4, 0), {0}));
  const Tensor found = hessian(in)[0];
  for (int64_t e = 0; e < 3; ++e)
    for (int64_t i = 0; i < 3; ++i) {
      Tensors one, along;
      for (const Tensor& t : in) {
        one.push_back(t[e]);
        along.push_back(at::zeros_like(t[e]));
      }
      along[0][i] = 1;
      const Tensor expected = support::directional_derivative(gradient, one, along)[0];
      EXPECT_TRUE(at::allclose(found[e].select(1, i), expected, 1e-6, 1e-7)) << found[e] << expected;
    }
}

// Reverse mode over reverse mode, and over forward mode.
TEST(LoopsBackwards, SecondDerivativesAreInKernels) {
  TOWER_NEEDS_LLVM();
  for (const uint64_t seed : {0, 2, 4, 5}) {
    const Program p = random_program(seed);
    const Tensors in = inputs(7, at::kDouble, seed);
    const auto value = [f = by_tower(p)](const Tensor& x, const Tensor& t, const Tensor& a, const Tensor& m) {
      return f({x, t, a, m})[0];
    };
    const auto reverse = [value](const Tensor& x, const Tensor& t, const Tensor& a, const Tensor& m) {
      const auto [dx, da] = tower::grad<0, 2>(value)(x, t, a, m);
      return (dx * dx).sum() + (da * x).sum();
    };
    const auto forward = [value](const Tensor& x, const Tensor& t, const Tensor& a, const Tensor& m) {
      return tower::jvp([&](const Tensor& y) { return value(y, t, a, m); }, x, a).second.square();
    };
    const auto check = [&](const auto& f) {
      const auto second = tower::compile(tower::vmap(tower::grad<0, 2>(f)));
      for (int call = 0; call < 3; ++call) {
        const auto [dx, da] = second(in[0], in[1], in[2], in[3]);
        for (int64_t e = 0; e < 7; ++e) {
          Tensors one, zeros;
          for (const Tensor& t : in) {
            one.push_back(t[e]);
            zeros.push_back(at::zeros_like(t[e]));
          }
          const Function of_one = [&](const Tensors& x) { return Tensors{f(x[0], x[1], x[2], x[3])}; };
          for (const auto& [found, which] : {std::pair(dx[e], 0), std::pair(da[e], 2)})
            for (int64_t i = 0; i < 3; ++i) {
              Tensors along = zeros;
              along[static_cast<size_t>(which)] = zeros[static_cast<size_t>(which)].clone();
              along[static_cast<size_t>(which)][i] = 1;
              const double expected = support::directional_derivative(of_one, one, along)[0].item<double>();
              const Tensor& gradient = found;
              EXPECT_NEAR(gradient[i].item().toDouble(), expected, 1e-5 * (1 + std::abs(expected)))
                  << "seed " << seed << ", example " << e << ", by " << which << ", " << i;
            }
        }
      }
      EXPECT_TRUE(is_in_a_kernel(second.report())) << second.report();
    };
    check(reverse);
    check(forward);
  }
}

TEST(LoopsBackwards, WhatFailsOnTheWayRaisesAndLeavesNothingBehind) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensor& m, const Tensor& n) {
    return tower::while_loop([n](const std::pair<Tensor, Tensor>& s) { return s.second < n; },
                             [m](const std::pair<Tensor, Tensor>& s) {
                               return std::pair(at::linalg_solve(m, s.first), s.second + 1);
                             },
                             std::pair(at::ones({2}, at::kDouble), at::zeros_like(n)))
        .first.sum();
  };
  const auto gradient = tower::compile(tower::vmap(tower::grad(f)));
  const Tensor sound = at::eye(2, at::kDouble).expand({5, 2, 2}) * 2;
  const Tensor n = at::tensor({0, 1, 2, 3, 0});
  const Tensor expected = gradient(sound, n);
  gradient(sound, n);
  Tensor singular = sound.clone();
  singular[3].zero_();
  EXPECT_THROW(gradient(singular, n), c10::LinAlgError);
  // Of one that makes no step nobody hears.
  Tensor idle = sound.clone();
  idle[4].zero_();
  EXPECT_TRUE(at::equal(gradient(idle, n), expected));
  EXPECT_TRUE(at::equal(gradient(sound, n), expected));
}

}  // namespace
