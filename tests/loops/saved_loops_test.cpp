// Compiled functions with loops that are one call, in files. Oracles: the loops written by hand, one example at a time,
// LibTorch's autograd, and the functions before they were saved.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/dynamic.h>
#include <tower/function.h>
#include <tower/loops.h>
#include <tower/tower.h>

#include <set>

#include "compile/files.h"
#include "compile/kernels.h"
#include "kernels/llvm.h"
#include "loops/programs.h"
#include "support/nestings.h"
#include "support/oracles.h"
#include "support/prelude.h"

namespace {

using loops::by_hand;
using loops::by_tower;
using loops::Program;
using support::Folder;
using support::transformed;

constexpr support::Tolerance kRounding{1e-9, 1e-9};

TEST(SavedLoops, EveryProgramAndItsDerivativesAreAsByHand) {
  const Folder folder;
  std::set<std::string> refused;  // steps with code of the user's: a function with a rule of its own
  for (const Program& program : loops::programs()) {
    if (program.name == "checkpointed") continue;  // there is no loop in it, and checkpoints of checkpoints are refused
    for (const std::string kinds : {"", "v", "j", "r", "vj", "vr", "jv", "rv", "vv", "jvr", "rvj"}) {
      const Tensors inputs = support::inputs_of(program.shapes, kinds);
      const Function tower = [&](const Tensors& in) { return program.run(by_tower(), in); };
      const Function hand = [&](const Tensors& in) { return program.run(by_hand(), in); };
      const Function compiled = td::compile(transformed(kinds, tower, false));
      for (int call = 0; call < 2; ++call) compiled(inputs);
      try {
        td::save(compiled, folder / "f");
      } catch (const tower::UnsupportedError&) {
        refused.insert(program.name);
        continue;
      }
      const Function loaded = td::load(folder / "f");
      const Tensors expected = transformed(kinds, hand, /*by_loop=*/true)(inputs);
      for (int call = 0; call < 2; ++call)
        EXPECT_EQ(support::difference(loaded(inputs), expected, kRounding), "") << program.name << ", " << kinds;
    }
  }
  EXPECT_EQ(refused, (std::set<std::string>{"newton"}));
}

// x + tanh(M x) = b by Newton's method, and 40 steps of a filter with the outputs of all.
Tensor root_of(const Tensor& m, const Tensor& b) {
  const auto residual = [=](const Tensor& x) { return x + at::mv(m, x).tanh() - b; };
  return tower::while_loop(
      [=](const Tensor& x) { return residual(x).norm() > 1e-11; },
      [=](const Tensor& x) { return x - at::linalg_solve(tower::jacfwd(residual)(x), residual(x)); }, at::zeros_like(b),
      {.max_steps = 30});
}
Tensor filtered(const Tensor& k, const Tensor& signal) {
  const auto [last, outputs] =
      tower::scan([k](const Tensor& s, const Tensor& x) { return std::pair((k * s).tanh() + x, s.sin() * k); },
                  at::zeros_like(k), signal, {.reverse = true});
  return tower::fori_loop(
             0, 24, [k](int64_t, const Tensor& s) { return s * 0.9 + 0.1 * (k * s).cos(); }, last + outputs.sum(0))
      .sum();
}
const auto roots = tower::vmap(root_of);
const auto gradients = tower::vmap(tower::grad<0, 1>(filtered));
Tensor matrices(int64_t n) { return 2 * at::eye(3, at::kDouble) + 0.3 * waves({n, 3, 3}); }
Tensor signals(int64_t n) { return waves({n, 40, 2}, 0.7); }

using Two = Tensor(Tensor, Tensor);
using Pair = std::tuple<Tensor, Tensor>(Tensor, Tensor);

void save_both(const Folder& folder) {
  const auto compiled = tower::compile(roots);
  const auto compiled_gradients = tower::compile(gradients);
  for (const int64_t n : {16, 24, 1000}) {
    compiled(matrices(n), waves({n, 3}));
    compiled_gradients(waves({n, 2}), signals(n));
  }
  compiled.save(folder / "roots");
  compiled_gradients.save(folder / "gradients");
}

void expect_pair(const std::tuple<Tensor, Tensor>& found, const std::tuple<Tensor, Tensor>& expected) {
  EXPECT_TRUE(at::allclose(std::get<0>(found), std::get<0>(expected), 1e-11, 1e-13));
  EXPECT_TRUE(at::allclose(std::get<1>(found), std::get<1>(expected), 1e-11, 1e-13));
}

TEST(SavedLoops, RunWithTheirMachineCodeWhereThereIsNoLlvm) {
  TOWER_NEEDS_LLVM();
  const Folder folder;
  save_both(folder);
  EXPECT_EQ(support::run_in_new_process("SavedLoops.InAProcessWithoutLlvm", folder.path(),
                                        {{"TOWER_LLVM", "/nowhere/libLLVM.so"}}),
            0);
}

TEST(SavedLoops, InAProcessWithoutLlvm) {
  if (support::left_by_another_process().empty()) GTEST_SKIP() << "another test runs it";
  const std::string folder = support::left_by_another_process();
  const auto loaded = tower::load<Two>(folder + "/roots");
  const auto loaded_gradients = tower::load<Pair>(folder + "/gradients");
  for (const int64_t n : {16, 17, 100, 1, 0}) {
    const Tensor m = matrices(n), b = waves({n, 3}), k = waves({n, 2});
    EXPECT_TRUE(at::allclose(loaded(m, b), roots(m, b), 1e-10, 1e-12)) << n;
    expect_pair(loaded_gradients(k, signals(n)), gradients(k, signals(n)));
  }
  for (const std::string& report : {loaded.report(), loaded_gradients.report()})
    EXPECT_TRUE(contains(report, "kernel 0") && contains(report, "from a file")) << report;
  EXPECT_FALSE(tower::compiler::Llvm::get().works());
}

TEST(SavedLoops, HaveDerivativesAndExamples) {
  const Folder folder;
  const auto compiled = tower::compile(root_of);
  const Tensor m = matrices(6), b = waves({6, 3});
  compiled(m[0], b[0]);
  compiled.save(folder / "root");
  const auto loaded = tower::load<Two>(folder / "root");
  // The implicit function theorem: (1 + D M) dx = db.
  const auto expected = [](const Tensor& matrix, const Tensor& right) {
    const Tensor d = 1 - at::mv(matrix, root_of(matrix, right)).tanh().square();
    return at::linalg_inv(at::eye(3, at::kDouble) + d.unsqueeze(1) * matrix);
  };
  for (int call = 0; call < 2; ++call) {
    const Tensor rows = tower::vmap(tower::jacrev<1>(loaded))(m, b),
                 columns = tower::vmap(tower::jacfwd<1>(loaded))(m, b);
    for (int64_t e = 0; e < 6; ++e) {
      EXPECT_TRUE(at::allclose(rows[e], expected(m[e], b[e]), 1e-8, 1e-9));
      EXPECT_TRUE(at::allclose(columns[e], expected(m[e], b[e]), 1e-8, 1e-9));
    }
    const auto total = [&](const auto& f) {
      return tower::hessian<1>([f](const Tensor& x, const Tensor& y) { return f(x, y).square().sum(); })(m[1], b[1]);
    };
    EXPECT_TRUE(at::allclose(total(loaded), total(root_of), 1e-8, 1e-9));
  }
  // LibTorch's autograd, through what was loaded.
  const Tensor leaf = b[2].clone().requires_grad_();
  loaded(m[2], leaf).sum().backward();
  EXPECT_TRUE(at::allclose(leaf.grad(), expected(m[2], b[2]).sum(0), 1e-8, 1e-9));
}

TEST(SavedLoops, RaiseWhatTheyDid) {
  const Folder folder;
  const auto compiled = tower::compile(tower::vmap([](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s < 100; }, [](const Tensor& s) { return s * s; }, x,
                             {.max_steps = 4});
  }));
  compiled(at::tensor({2.0, 500.0}));
  compiled.save(folder / "f");
  const auto loaded = tower::load<Tensor(Tensor)>(folder / "f");
  for (int call = 0; call < 2; ++call) {
    EXPECT_TRUE(at::equal(loaded(at::tensor({2.0, 500.0})), at::tensor({256.0, 500.0})));
    EXPECT_THROW(loaded(at::tensor({2.0, 1.1})), tower::MaxStepsError);
  }
}

// Steps that no kernel makes.
TEST(SavedLoops, OfLargeStepsAreSavedAsWell) {
  const Folder folder;
  const auto f = [](const Tensor& a, const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s.norm() > 1e-3; },
                             [a](const Tensor& s) { return std::get<0>(at::mv(a, s).sort()).cumsum(0) * 0.01; }, x)
        .sum();
  };
  const auto gradient = tower::grad<0, 1>(f);
  const auto compiled = tower::compile(gradient);
  const Tensor a = waves({40, 40}), x = waves({40}, 0.3);
  compiled(a, x);
  compiled.save(folder / "f");
  const auto loaded = tower::load<Pair>(folder / "f");
  for (int call = 0; call < 3; ++call) expect_pair(loaded(a, x), gradient(a, x));
}

struct Clipped : tower::Function<Clipped> {
  static constexpr const char* name = "clipped";
  static Tensor forward(const Tensor& x) { return x.clone(); }
  static Tensor backward(tower::Context&, const Tensor& grad) { return grad.clamp(-1, 1); }
};

TEST(SavedLoops, OfCodeOfTheUsersAreRefusedByName) {
  const Folder folder;
  const auto f = tower::compile([](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s.sum() < 9; },
                             [](const Tensor& s) { return Clipped::apply(s) * 2; }, x);
  });
  f(at::ones({3}, at::kDouble));
  EXPECT_TRUE(contains(message_of<tower::UnsupportedError>([&] { f.save(folder / "f"); }), "clipped"));
  EXPECT_TRUE(folder.files("").empty());
}

}  // namespace
