// Compiled functions with checkpoints in files: what they evaluate again is stored as a graph. Oracle: the functions
// without checkpoints, not compiled.
#include <tower/checkpoint.h>
#include <tower/cond.h>
#include <tower/graph.h>
#include <tower/loops.h>
#include <tower/transforms.h>

#include "compile/kept.h"
#include "support/prelude.h"

namespace {

using support::expect_kept_as;
using support::Folder;
using One = Tensor(Tensor);
using Scalar = std::function<Tensor(const Tensor&)>;

/// How a function is wrapped: not at all, or in a checkpoint.
using Wrap = std::function<Scalar(Scalar)>;
const Wrap plain = [](Scalar f) { return f; };
const Wrap again = [](Scalar f) -> Scalar { return tower::checkpoint(std::move(f)); };

Tensor body(const Tensor& y) { return (y.sin() * y).exp() + y.sum(); }
Scalar loss(const Wrap& wrap) {
  return [f = wrap(body)](const Tensor& x) { return (f(x) * f(0.5 * x)).sum(); };
}

TEST(SavedCheckpoints, HaveDerivatives) {
  const Tensor x = waves({3}, 0.7), xs = waves({5, 3}, 0.7);
  expect_kept_as(loss(again), loss(plain), {x}, {x, -x});
  expect_kept_as(tower::grad(loss(again)), tower::grad(loss(plain)), {x}, {x, -x});
  expect_kept_as(tower::hessian(loss(again)), tower::hessian(loss(plain)), {x}, {x, -x});
  expect_kept_as(tower::vmap(tower::hessian(loss(again))), tower::vmap(tower::hessian(loss(plain))), {xs}, {xs, -xs});
  const auto along = [](const Wrap& wrap) {
    return [=](const Tensor& y) { return tower::jvp(tower::grad(loss(wrap)), y, y.cos()).second; };
  };
  expect_kept_as(along(again), along(plain), {x}, {x, -x});
}

TEST(SavedCheckpoints, OfExamplesAreForAnyNumberOfThem) {
  const auto gradients = [](const Wrap& wrap) { return tower::vmap(tower::grad(loss(wrap))); };
  expect_kept_as(gradients(again), gradients(plain), {waves({5, 3}), waves({9, 3})},
                 {waves({1, 3}), waves({0, 3}), waves({13, 3}, 0.7)});
  // Mapped inside, too.
  const auto rows = [](const Wrap& wrap) {
    return tower::grad([f = wrap(tower::vmap(body))](const Tensor& m) { return f(m).square().sum(); });
  };
  expect_kept_as(rows(again), rows(plain), {waves({4, 3})}, {waves({4, 3}, 0.3)});
  expect_kept_as(tower::vmap(rows(again)), tower::vmap(rows(plain)), {waves({2, 4, 3})}, {waves({2, 4, 3}, 0.3)});
}

TEST(SavedCheckpoints, HaveTheirTransformsOnceTheyAreLoaded) {
  const Folder folder;
  const auto compiled = tower::compile(tower::grad(loss(again)));
  const Tensor xs = waves({6, 3}, 0.7);
  compiled(xs[0]);
  compiled.save(folder / "f");
  const auto loaded = tower::load<One>(folder / "f");
  EXPECT_TRUE(same(tower::vmap(loaded)(xs), tower::vmap(tower::grad(loss(plain)))(xs)));
  EXPECT_TRUE(same(tower::jacrev(loaded)(xs[0]), tower::hessian(loss(plain))(xs[0])));
  EXPECT_TRUE(same(tower::vmap(tower::jacfwd(loaded))(xs), tower::vmap(tower::hessian(loss(plain)))(xs)));
}

TEST(SavedCheckpoints, PassOnWhatTheyCapture) {
  const Tensor w = waves({3, 3}, 0.2), x = waves({3}), xs = waves({4, 3}, 0.9);
  const auto captures = [=](const Wrap& wrap) {
    return [=](const Tensor& y) {
      const Tensor z = y.cos();
      return wrap([=](const Tensor& v) { return w.mv(v) * z + z.sum(); })(y).square().sum();
    };
  };
  expect_kept_as(tower::grad(captures(again)), tower::grad(captures(plain)), {x}, {x, -x});
  expect_kept_as(tower::vmap(tower::hessian(captures(again))), tower::vmap(tower::hessian(captures(plain))), {xs},
                 {xs, -xs});
}

TEST(SavedCheckpoints, AreInEachOtherInLoopsAndInBranches) {
  const auto nested = [](const Wrap& wrap) {
    return wrap([f = wrap(body)](const Tensor& x) { return f(x.sin()) * x; });
  };
  const auto in_loop = [](const Wrap& wrap) -> Scalar {
    return [f = wrap(body)](const Tensor& x) {
      return tower::while_loop([](const Tensor& s) { return s.norm() > 0.5; },
                               [=](const Tensor& s) { return s * 0.5 + 1e-3 * f(s); }, x, {.max_steps = 40});
    };
  };
  const auto loop_in = [](const Wrap& wrap) {
    return wrap([](const Tensor& x) {
      return tower::while_loop([](const Tensor& s) { return s.norm() > 0.5; },
                               [](const Tensor& s) { return s * 0.6 * s.cos(); }, x, {.max_steps = 40});
    });
  };
  const auto in_branch = [](const Wrap& wrap) -> Scalar {
    return [f = wrap(body)](const Tensor& x) {
      return tower::cond(
          x.sum() > 0, f, [](const Tensor& y) { return y * y; }, x);
    };
  };
  const auto branch_in = [](const Wrap& wrap) {
    return wrap([](const Tensor& x) {
      return tower::cond(
          x.sum() > 0, body, [](const Tensor& y) { return y * y; }, x);
    });
  };
  const Tensor x = waves({3}).abs() + 0.2, xs = waves({6, 3}, 0.7);
  for (const std::function<Scalar(const Wrap&)>& f :
       std::vector<std::function<Scalar(const Wrap&)>>{nested, in_loop, loop_in, in_branch, branch_in}) {
    const auto sum = [&](const Wrap& wrap) { return [g = f(wrap)](const Tensor& y) { return g(y).sum(); }; };
    expect_kept_as(tower::grad(sum(again)), tower::grad(sum(plain)), {x}, {x, -x});
    expect_kept_as(tower::vmap(tower::grad(sum(again))), tower::vmap(tower::grad(sum(plain))), {xs}, {xs, -xs});
  }
}

TEST(SavedCheckpoints, OfScansKeepTheirSteps) {
  const auto filter = [](const Wrap& wrap) {
    return tower::grad([f = wrap([](const Tensor& x) {
                          const auto step = [x](const Tensor& s, const Tensor& u) {
                            const Tensor next = (s * x).sin() + u;
                            return std::pair(next, next.cos());
                          };
                          return tower::scan(step, x, at::linspace(0, 1, 600, at::kDouble)).second.sum(0);
                        })](const Tensor& x) { return f(x).square().sum(); });
  };
  const Tensor x = waves({2});
  expect_kept_as(filter(again), filter(plain), {x}, {x, -x});
  // One call of 600 steps each way, and not 600 calls: those would take a megabyte.
  EXPECT_LT(tower::graph(filter(again))(x).calls.size(), 20u);
  const Folder folder;
  const auto compiled = tower::compile(filter(again));
  compiled(x);
  compiled.save(folder / "f");
  EXPECT_LT(std::filesystem::file_size(folder / "f"), 100000u);
}

TEST(SavedCheckpoints, AnInactiveOrIntegerOperandHasNoGradient) {
  const auto picked = [](const Wrap&, bool wrapped) {
    return tower::grad([wrapped](const Tensor& x) {
      const Tensor places = at::tensor({2, 0, 2});
      const auto pick = [](const Tensor& y, const Tensor& at, const Tensor& none) {
        return y.index_select(0, at).square() * none;
      };
      const Tensor none = at::full({3}, 2.0, at::kDouble);
      return (wrapped ? tower::checkpoint(pick)(x, places, none) : pick(x, places, none)).sum();
    });
  };
  const Tensor x = waves({3});
  expect_kept_as(picked(again, true), picked(plain, false), {x}, {x, -x});
}

TEST(SavedCheckpoints, LibTorchsAutogradKeepsTheirOperandsAlone) {
  const Tensor x = waves({3}).requires_grad_();
  const auto compiled = tower::compile([f = again(body)](const Tensor& y) { return f(y).sum(); });
  const Tensor expected = tower::grad([](const Tensor& y) { return body(y).sum(); })(x.detach());
  for (int run = 0; run < 2; ++run) {
    x.mutable_grad() = Tensor();
    compiled(x).backward();
    EXPECT_TRUE(same(x.grad(), expected));
  }
  const Folder folder;
  compiled.save(folder / "f");
  x.mutable_grad() = Tensor();
  tower::load<One>(folder / "f")(x).backward();
  EXPECT_TRUE(same(x.grad(), expected));
}

TEST(SavedCheckpoints, ThatKeepSomethingRunAsBeforeAndAreRefusedByName) {
  const Folder folder;
  const Tensor x = waves({3});
  const auto compiled = tower::compile(
      tower::grad([](const Tensor& y) { return tower::checkpoint(body, {.keep = {"aten::sin"}})(y).sum(); }));
  EXPECT_TRUE(same(compiled(x), tower::grad([](const Tensor& y) { return body(y).sum(); })(x)));
  const auto text = message_of<tower::UnsupportedError>([&] { compiled.save(folder / "f"); });
  EXPECT_TRUE(contains(text, "checkpoint")) << text;
}

}  // namespace
