// fori_loop and scan in compiled functions: one loop in a kernel, forwards and backwards. Oracles: LibTorch's autograd
// through the same loop written by hand, one example at a time, and finite differences.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/dynamic.h>
#include <tower/loops.h>
#include <tower/tower.h>

#include <random>

#include "compile/kernels.h"
#include "loops/programs.h"
#include "support/oracles.h"
#include "support/seeds.h"
#include "support/stacked.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using loops::Loops;
using support::Tensors;
using td::Function;

// A scan that a seed decides. Operands: a state of three and a number, inputs of three and of one a step, and two
// tensors that every step reads.
struct Program {
  std::vector<uint64_t> choices;
  int64_t steps, outputs;
  bool reverse, counts, reads_inputs;

  Tensor changed(const Tensor& x, uint64_t how, const Tensor& a, const Tensor& m, const Tensor& u) const {
    switch (how) {
      case 0:
        return x.sin() * a.mean() + u;
      case 1:
        return m.mv(x).tanh() * u.cos();
      case 2:
        return x * 0.9 + 0.1 * a;
      case 3:
        return (x * x + 1).log() - u;
      case 4:
        return at::where(x > u, x * 0.5, x * a);
      case 5:
        return x.flip(0) * 0.8 + m.diagonal();
      case 6:
        return at::linalg_solve(at::eye(3, x.options()) * 4 + m, x + u);
      default:
        return x / (1 + x.square().sum());
    }
  }

  Tensors run(const Loops& loops, const Tensors& in) const {
    const Tensor a = in[4], m = in[5];
    const auto step = [this, a, m](const Tensors& s, const Tensors& own) {
      const Tensor u = reads_inputs ? own[0] : at::full_like(a, 0.3);
      Tensor x = s[0];
      for (size_t k = 0; k < 3; ++k) x = changed(x, choices[k], a, m, u);
      if (reads_inputs) x = x + 0.1 * own[1] * s[1];
      Tensors next{x, s[1] * 0.7 + (x * a).sum().sigmoid()};
      if (counts) {
        next.push_back(s[2] + 1);
        next[0] = next[0] / (next[2].to(x.scalar_type()) + 1);
      }
      Tensors given;
      if (outputs > 0) given.push_back(x * next[1]);
      if (outputs > 1) given.push_back(s[1] - x[1]);
      if (outputs > 2) given.push_back(x > 0);
      return std::pair(next, given);
    };
    Tensors start{in[0], in[1]};
    if (counts) start.push_back(at::zeros({}, at::kLong));
    const auto [last, all] = loops.scan(step, start, {in[2], in[3]}, reverse);
    Tensors results{last[0] * last[1]};
    if (counts) results[0] = results[0] + last[2];
    for (size_t k = 0; k < all.size(); ++k) results.push_back(all[k].to(in[0].scalar_type()) * 0.5);
    return results;
  }
  Tensor sum(const Loops& loops, const Tensors& in) const {
    Tensor total = at::zeros({}, in[0].options());
    for (const Tensor& t : run(loops, in)) total = total + (t * t.sin()).sum();
    return total;
  }
};

Program random_program(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&random](uint64_t n) { return random() % n; };
  Program p;
  for (int k = 0; k < 3; ++k) p.choices.push_back(pick(8));
  p.steps = std::array<int64_t, 4>{8, 9, 14, 31}[pick(4)];
  p.outputs = static_cast<int64_t>(pick(4));
  p.reverse = pick(2) == 0;
  p.counts = pick(3) == 0;
  p.reads_inputs = pick(4) != 0;
  return p;
}

Tensors inputs(const Program& p, int64_t examples, at::ScalarType dtype, uint64_t seed) {
  at::manual_seed(static_cast<int64_t>(seed));
  const auto some = [&](std::vector<int64_t> sizes) {
    sizes.insert(sizes.begin(), examples);
    return at::rand(sizes, dtype) * 2 - 1;
  };
  return {some({3}), some({}), some({p.steps, 3}), some({p.steps}), some({3}), some({3, 3}) * 0.5};
}

Tensors example(const Tensors& in, int64_t e) {
  Tensors one;
  for (const Tensor& t : in) one.push_back(t[e]);
  return one;
}

support::Tolerance near(at::ScalarType dtype) {
  return dtype == at::kFloat ? support::Tolerance{5e-4, 2e-5} : support::Tolerance{1e-10, 1e-11};
}

bool is_in_a_kernel(const std::string& report) {
  return report.find("tower::scan") == std::string::npos && report.find("tower::fori_loop") == std::string::npos;
}

TEST(KnownSteps, OfRandomScansAreLibTorchsStepsAndGradients) {
  TOWER_NEEDS_LLVM();
  for (const uint64_t seed : support::seeds("TOWER_KNOWN_STEPS", 40)) {
    const Program p = random_program(seed);
    const at::ScalarType dtype = seed % 3 == 0 ? at::kFloat : at::kDouble;
    const Function value = [&p](const Tensors& in) { return p.run(loops::by_tower(), in); };
    const Function sum = [&p](const Tensors& in) { return Tensors{p.sum(loops::by_tower(), in)}; };
    const Function by_hand = [&p](const Tensors& in) { return Tensors{p.sum(loops::by_hand(), in)}; };
    const Function values =
        td::compile(td::vmap(value, td::Dims(6, 0), td::Dims(1 + static_cast<size_t>(p.outputs), 0)));
    const Function gradients = td::compile(td::vmap(td::grad(sum, {0, 1, 2, 3, 4, 5}), td::Dims(6, 0), td::Dims(6, 0)));
    for (const int64_t examples : {5, 5, 8, 17, 1}) {
      const Tensors in = inputs(p, examples, dtype, seed + static_cast<uint64_t>(examples));
      std::vector<Tensors> expected, expected_gradients;
      for (int64_t e = 0; e < examples; ++e) {
        expected.push_back(p.run(loops::by_hand(), example(in, e)));
        expected_gradients.push_back(support::autograd_vjp(by_hand, example(in, e), {at::ones({}, in[0].options())}));
      }
      EXPECT_EQ(support::difference(values(in), support::stacked(expected), near(dtype)), "")
          << "seed " << seed << ", " << examples << " examples";
      EXPECT_EQ(support::difference(gradients(in), support::stacked(expected_gradients), near(dtype)), "")
          << "seed " << seed << ", " << examples << " examples";
    }
  }
}

// Of one example, and of inputs and a matrix that all examples share.
TEST(KnownSteps, AreLibTorchsWithoutExamplesAndWithSharedInputs) {
  TOWER_NEEDS_LLVM();
  for (const uint64_t seed : support::seeds("TOWER_KNOWN_STEPS_SHARED", 12)) {
    Program p = random_program(seed);
    if (seed % 2 == 0) p.steps = 520;  // as many as are a loop without examples, too
    const Function sum = [&p](const Tensors& in) { return Tensors{p.sum(loops::by_tower(), in)}; };
    const Function by_hand = [&p](const Tensors& in) { return Tensors{p.sum(loops::by_hand(), in)}; };
    const Tensors in = inputs(p, 6, at::kDouble, seed), one = example(in, 0);
    const Function of_one = td::compile(td::grad(sum, {0, 1, 2, 3, 4, 5}));
    const Tensors of_one_by_hand = support::autograd_vjp(by_hand, one, {at::ones({}, at::kDouble)});
    for (int call = 0; call < 3; ++call)
      EXPECT_EQ(support::difference(of_one(one), of_one_by_hand, near(at::kDouble)), "") << "seed " << seed;

    const Tensors shared{in[0], in[1], one[2], one[3], one[4], one[5]};
    const td::Dims dims{0, 0, std::nullopt, std::nullopt, std::nullopt, std::nullopt};
    const Function total = [=](const Tensors& args) { return Tensors{td::vmap(sum, dims, {0})(args)[0].sum()}; };
    const Function total_by_hand = [&](const Tensors& args) {
      Tensor all = at::zeros({}, at::kDouble);
      for (int64_t e = 0; e < 6; ++e)
        all = all + by_hand({args[0][e], args[1][e], args[2], args[3], args[4], args[5]})[0];
      return Tensors{all};
    };
    const Function of_shared = td::compile(td::grad(total, {0, 1, 2, 3, 4, 5}));
    const Tensors of_shared_by_hand = support::autograd_vjp(total_by_hand, shared, {at::ones({}, at::kDouble)});
    for (int call = 0; call < 3; ++call)
      EXPECT_EQ(support::difference(of_shared(shared), of_shared_by_hand, near(at::kDouble)), "") << "seed " << seed;
  }
}

TEST(KnownSteps, TangentsAndSecondDerivativesAreThoseOfTheSteps) {
  TOWER_NEEDS_LLVM();
  for (const uint64_t seed : support::seeds("TOWER_KNOWN_STEPS_SECOND", 6)) {
    const Program p = random_program(seed);
    const Tensors in = inputs(p, 3, at::kDouble, seed);
    const Function sum = [&p](const Tensors& args) { return Tensors{p.sum(loops::by_tower(), args)}; };
    const Function gradient = td::grad(sum, {0, 2});
    for (const Function& derivative : {gradient, sum}) {
      const Function columns = td::compile(td::vmap(td::jacfwd(derivative, {0}), td::Dims(6, 0), td::Dims(1, 0)));
      for (int call = 0; call < 2; ++call) {
        const Tensor found = columns(in)[0];
        for (int64_t e = 0; e < 3; ++e)
          for (int64_t i = 0; i < 3; ++i) {
            Tensors along;
            for (const Tensor& t : in) along.push_back(at::zeros_like(t[e]));
            along[0][i] = 1;
            const Tensor expected = support::directional_derivative(derivative, example(in, e), along)[0];
            EXPECT_TRUE(at::allclose(found[e].select(-1, i), expected, 1e-5, 1e-6))
                << "seed " << seed << found[e] << expected;
          }
      }
    }
    // Reverse over reverse mode.
    const Function twice = [gradient](const Tensors& args) {
      const Tensors g = gradient(args);
      return Tensors{(g[0] * g[0]).sum() + (g[1] * args[2]).sum()};
    };
    const Function second = td::compile(td::vmap(td::grad(twice, {0, 2, 4}), td::Dims(6, 0), td::Dims(3, 0)));
    const Tensors found = second(in);
    for (const auto& [which, by] : {std::pair<size_t, size_t>{0, 0}, {1, 2}, {2, 4}}) {
      Tensors along;
      for (const Tensor& t : in) along.push_back(at::zeros_like(t[1]));
      along[by] = at::rand_like(along[by]);
      const double expected = support::directional_derivative(twice, example(in, 1), along)[0].item<double>();
      EXPECT_NEAR((found[which][1] * along[by]).sum().item<double>(), expected, 1e-5 * (1 + std::abs(expected)))
          << "seed " << seed << ", by " << by;
    }
  }
}

TEST(KnownSteps, AreInKernels) {
  TOWER_NEEDS_LLVM();
  const auto integrated = [](const Tensor& y, const Tensor& k) {
    return tower::fori_loop(
               0, 200,
               [k](int64_t, const Tensor& s) {
                 const auto slope = [k](const Tensor& at) { return at.sin() - k * at; };
                 const Tensor a = slope(s), b = slope(s + 0.005 * a), c = slope(s + 0.005 * b), d = slope(s + 0.01 * c);
                 return s + 0.01 / 6 * (a + 2 * b + 2 * c + d);
               },
               y)
        .sum();
  };
  const auto filtered = [](const Tensor& y, const Tensor& signal) {
    return tower::scan([](const Tensor& s, const Tensor& x) { return std::pair(s * 0.9 + x, s.sin()); }, y, signal)
        .second.square()
        .sum();
  };
  at::manual_seed(0);
  const Tensor y = at::rand({16, 4}, at::kDouble), k = at::rand({16, 4}, at::kDouble),
               signal = at::rand({16, 300, 4}, at::kDouble);
  const auto by_tower = tower::vmap(tower::grad<0, 1>(integrated));
  const auto compiled = tower::compile(by_tower);
  const auto of_filter = tower::vmap(tower::grad<0, 1>(filtered));
  const auto compiled_filter = tower::compile(of_filter);
  for (int call = 0; call < 3; ++call) {
    const auto [dy, dk] = compiled(y, k);
    const auto [ey, ek] = by_tower(y, k);
    EXPECT_TRUE(at::allclose(dy, ey, 1e-10) && at::allclose(dk, ek, 1e-10));
    const auto [fy, fs] = compiled_filter(y, signal);
    const auto [gy, gs] = of_filter(y, signal);
    EXPECT_TRUE(at::allclose(fy, gy, 1e-10) && at::allclose(fs, gs, 1e-10));
  }
  EXPECT_TRUE(is_in_a_kernel(compiled.report())) << compiled.report();
  EXPECT_NE(compiled.listing().find("kernel 0: 1 operators, 16 lanes"), std::string::npos) << compiled.listing();
  EXPECT_TRUE(is_in_a_kernel(compiled_filter.report())) << compiled_filter.report();
  EXPECT_NE(compiled_filter.listing().find("kernel 0: 1 operators, 16 lanes"), std::string::npos)
      << compiled_filter.listing();
}

// Steps that are not all the same, and such as no kernel makes.
TEST(KnownSteps, OfOtherKindsAreMadeOneByOne) {
  at::manual_seed(1);
  const Tensor x = at::rand({5, 3}, at::kDouble), w = at::rand({12, 3}, at::kDouble);
  const auto by_index = [w](const Tensor& v) {
    return tower::fori_loop(
        0, 12, [w](int64_t i, const Tensor& s) { return s * w[i] + static_cast<double>(i % 5 == 4); }, v);
  };
  const auto last_differs = [](const Tensor& v) {
    return tower::fori_loop(
        3, 20, [](int64_t i, const Tensor& s) { return i < 19 ? s.sin() : s.cos(); }, v);
  };
  const auto captures = [w](const Tensor& v) {
    const std::vector<Tensor> rows = w.unbind();
    return tower::fori_loop(
        0, 12, [rows](int64_t i, const Tensor& s) { return s * rows[i] + 0.1; }, v);
  };
  const auto writes = [](const Tensor& v) {
    return tower::fori_loop(
        0, 12,
        [](int64_t, const Tensor& s) {
          Tensor next = s.clone();
          next[0] = next.sum() * 0.3;
          return next;
        },
        v);
  };
  const auto sorts = [](const Tensor& v) {
    return tower::scan([](const Tensor& s, const Tensor& a) { return std::pair((s * a).logcumsumexp(0), s); }, v,
                       at::linspace(0.1, 0.9, 9, v.options()))
        .second.sum(0);
  };
  const auto check = [&](const auto& f) {
    const auto gradient = tower::vmap(tower::jacrev(f));
    const auto compiled = tower::compile(gradient);
    for (int call = 0; call < 3; ++call) EXPECT_TRUE(at::allclose(compiled(x), gradient(x), 1e-12, 1e-14));
    for (int64_t e = 0; e < 5; ++e) {
      const Function one = [&f](const Tensors& in) { return Tensors{f(in[0])}; };
      const Tensor expected = support::directional_derivative(one, {x[e]}, {at::ones({3}, at::kDouble)})[0];
      EXPECT_TRUE(at::allclose(compiled(x)[e].sum(1), expected, 1e-6, 1e-8));
    }
  };
  check(by_index);
  check(last_differs);
  check(captures);
  check(writes);
  check(sorts);
}

// What is only tried leaves no trace: a step that writes to a captured tensor writes as often as it is made.
TEST(KnownSteps, WriteAsOftenAsTheyAreMade) {
  const Tensor count = at::zeros({}, at::kDouble);
  const auto counting = [count](const Tensor& v) {
    return tower::fori_loop(
        0, 10,
        [count](int64_t, const Tensor& s) {
          count.add_(1);
          return s + count;
        },
        v);
  };
  const auto compiled = tower::compile(counting);
  for (int call = 1; call < 4; ++call) {
    EXPECT_EQ(compiled(at::zeros({2}, at::kDouble))[0].item<double>(), 100.0 * call - 45);
    EXPECT_EQ(count.item<double>(), 10.0 * call);
  }
}

TEST(KnownSteps, DrawWhatTheyDrewBefore) {
  const auto noisy = [](const Tensor& v) {
    return tower::scan([](const Tensor& s, const Tensor& a) { return std::pair(s + at::rand_like(s) * a, s); }, v,
                       at::ones({10}, v.options()))
        .first;
  };
  const auto compiled = tower::compile(noisy);
  const Tensor x = at::zeros({3}, at::kDouble);
  for (int call = 0; call < 3; ++call) {
    at::manual_seed(7);
    const Tensor expected = noisy(x), behind = at::rand({2});
    at::manual_seed(7);
    EXPECT_TRUE(at::equal(compiled(x), expected));
    EXPECT_TRUE(at::equal(at::rand({2}), behind));
  }
}

TEST(KnownSteps, ThatFailRaiseAndLeaveNothingBehind) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensor& m, const Tensor& xs) {
    return tower::scan([m](const Tensor& s, const Tensor& x) { return std::pair(at::linalg_solve(m, s + x), s); },
                       at::ones({2}, at::kDouble), xs)
        .second.sum();
  };
  const auto gradient = tower::compile(tower::vmap(tower::grad<0, 1>(f)));
  const Tensor sound = at::eye(2, at::kDouble).expand({5, 2, 2}) * 2, xs = at::rand({5, 11, 2}, at::kDouble);
  const auto [dm, dxs] = gradient(sound, xs);
  gradient(sound, xs);
  Tensor singular = sound.clone();
  singular[3].zero_();
  EXPECT_THROW(gradient(singular, xs), c10::LinAlgError);
  const auto [again_dm, again_dxs] = gradient(sound, xs);
  EXPECT_TRUE(at::equal(again_dm, dm) && at::equal(again_dxs, dxs));
}

// A gradient asks for no value of the loop, and yet for its error.
TEST(KnownSteps, OfWhichTheGradientAloneIsWantedRaiseWhatTheyWould) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensor& x, const Tensor& rates) {
    const auto step = [](const Tensor& s, const Tensor& rate) {
      const Tensor root = tower::while_loop([](const Tensor& v) { return v > 1; },
                                            [rate](const Tensor& v) { return v * rate; }, s, {.max_steps = 20});
      return std::pair(root + 1.5, root);
    };
    return tower::scan(step, x, rates).second.square().sum();
  };
  const auto gradient = tower::vmap(tower::grad<0, 1>(f));
  const auto compiled = tower::compile(gradient);
  at::manual_seed(3);
  const Tensor x = at::rand({9}, at::kDouble) + 1, rates = at::rand({9, 12}, at::kDouble) * 0.5 + 0.3;
  for (int call = 0; call < 3; ++call) {
    const auto [dx, drates] = compiled(x, rates);
    const auto [ex, erates] = gradient(x, rates);
    EXPECT_TRUE(at::allclose(dx, ex, 1e-11) && at::allclose(drates, erates, 1e-11));
  }
  EXPECT_TRUE(is_in_a_kernel(compiled.report())) << compiled.report();
  EXPECT_EQ(compiled.report().find("while_loop"), std::string::npos) << compiled.report();
  Tensor endless = rates.clone();
  endless[4][7] = 1.0;
  EXPECT_THROW(compiled(x, endless), tower::MaxStepsError);
  EXPECT_THROW(gradient(x, endless), tower::MaxStepsError);
}

// Loops in loops: a scan in a step is written out, a fori_loop is a loop.
TEST(KnownSteps, InStepsOfOtherLoopsAreThoseSteps) {
  TOWER_NEEDS_LLVM();
  const auto f = [](const Tensor& x, const Tensor& n) {
    return tower::while_loop([n](const std::pair<Tensor, Tensor>& s) { return s.second < n; },
                             [x](const std::pair<Tensor, Tensor>& s) {
                               const Tensor inner = tower::fori_loop(
                                   0, 10, [x](int64_t, const Tensor& v) { return (v * x).cos(); }, s.first);
                               const Tensor sums =
                                   tower::scan([](const Tensor& c, const Tensor& v) { return std::pair(c + v, c * v); },
                                               inner, at::linspace(0, 1, 9, inner.options()))
                                       .second;
                               return std::pair(inner + 0.1 * sums.sum(), s.second + 1);
                             },
                             std::pair(x, at::zeros_like(n)))
        .first;
  };
  const Function by_hand = [](const Tensors& in) {
    Tensor s = in[0];
    for (int64_t k = 0; k < in[1].item<int64_t>(); ++k) {
      for (int i = 0; i < 10; ++i) s = (s * in[0]).cos();
      Tensor c = s, sum = at::zeros_like(s);
      for (int i = 0; i < 9; ++i) {
        sum = sum + c * (i / 8.0);
        c = c + i / 8.0;
      }
      s = s + 0.1 * sum;
    }
    return Tensors{s};
  };
  const Tensor x = at::linspace(0.2, 0.9, 7, at::kDouble), n = at::arange(7) % 4;
  const auto gradient = tower::compile(tower::vmap(tower::grad(f)));
  for (int call = 0; call < 3; ++call) {
    const Tensor found = gradient(x, n);
    for (int64_t e = 0; e < 7; ++e) {
      const Function one = [&](const Tensors& in) { return by_hand({in[0], n[e]}); };
      EXPECT_NEAR(found[e].item<double>(),
                  support::autograd_vjp(one, {x[e]}, {at::ones({}, at::kDouble)})[0].item<double>(), 1e-12);
    }
  }
}

}  // namespace
