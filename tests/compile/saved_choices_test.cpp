// Compiled functions with cond in files: branches are stored as graphs. Oracle: the function, not compiled.
#include <tower/compile.h>
#include <tower/cond.h>
#include <tower/loops.h>
#include <tower/transforms.h>

#include <limits>

#include "compile/kept.h"
#include "support/prelude.h"

namespace {

using support::expect_kept;
using support::Folder;
using One = Tensor(Tensor);

Tensor choose(const Tensor& x) {
  return tower::cond(
      x.sum() > 0, [](const Tensor& y) { return y.sin() * y; }, [](const Tensor& y) { return y.exp() + 1; }, x);
}
Tensor loss(const Tensor& x) { return choose(x).sum(); }

std::vector<Tensor> both_signs(const Tensor& x) { return {x, -x}; }

TEST(SavedChoices, TakeTheBranchOfEachCall) {
  const Tensor x = waves({4}).abs() + 0.1;
  expect_kept(choose, {x}, both_signs(x));
  expect_kept(choose, {-x}, both_signs(x));
  // nan is not greater, and infinities go through the branch that is taken alone.
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  expect_kept(choose, {x},
              {vec({nan, 1, 2, 3}), vec({infinity, 1, 2, 3}), vec({-infinity, 1, 2, 3}), vec({-0.0, 0, 0, 0})});
}

TEST(SavedChoices, AreTakenForEachExampleAlone) {
  const Tensor xs = waves({7, 3}, 0.7);
  expect_kept(tower::vmap(choose), {xs}, both_signs(xs));
  expect_kept(tower::vmap(tower::vmap(choose)), {waves({2, 5, 3})}, {waves({2, 5, 3}, 0.3)});
  expect_kept(tower::vmap(choose), {waves({5, 3}), waves({9, 3})}, {waves({1, 3}), waves({0, 3}), waves({13, 3}, 0.7)});
}

TEST(SavedChoices, HaveDerivatives) {
  const Tensor x = waves({3}, 0.7).abs() + 0.1, xs = waves({5, 3}, 0.7);
  expect_kept(tower::grad(loss), {x}, both_signs(x));
  expect_kept(tower::hessian(loss), {x}, both_signs(x));
  expect_kept(tower::vmap(tower::grad(loss)), {xs}, both_signs(xs));
  expect_kept(tower::vmap(tower::hessian(loss)), {xs}, both_signs(xs));
  expect_kept([](const Tensor& y) { return tower::jvp(choose, y, y.cos()).second; }, {x}, both_signs(x));
}

TEST(SavedChoices, HaveTheirTransformsOnceTheyAreLoaded) {
  const Folder folder;
  const auto compiled = tower::compile(choose);
  const Tensor xs = waves({6, 3}, 0.7);
  compiled(xs[0]);
  compiled.save(folder / "f");
  const auto loaded = tower::load<One>(folder / "f");
  const auto sum = [&](const Tensor& x) { return loaded(x).sum(); };
  EXPECT_TRUE(same(tower::vmap(loaded)(xs), tower::vmap(choose)(xs)));
  for (const Tensor& x : both_signs(xs[0].abs())) EXPECT_TRUE(same(tower::grad(sum)(x), tower::grad(loss)(x)));
  EXPECT_TRUE(same(tower::vmap(tower::hessian(sum))(xs), tower::vmap(tower::hessian(loss))(xs)));
}

TEST(SavedChoices, HaveNoNanOfTheBranchThatWasNotTaken) {
  const auto root = [](const Tensor& x) {
    return tower::cond(
        x > 0, [](const Tensor& y) { return y.sqrt(); }, [](const Tensor& y) { return y * 2; }, x);
  };
  const Tensor xs = vec({-1, 0, 4});
  expect_kept(tower::vmap(tower::grad(root)), {xs}, {xs});
  const Folder folder;
  const auto compiled = tower::compile(tower::vmap(tower::grad(root)));
  compiled(xs);
  compiled.save(folder / "f");
  EXPECT_TRUE(same(tower::load<One>(folder / "f")(xs), vec({2, 2, 0.25})));
}

TEST(SavedChoices, DoNotFailForTheBranchThatIsNotTaken) {
  const auto factor = [](const Tensor& m) {
    return tower::cond(
        m.diagonal().sum() > 0, [](const Tensor& a) { return at::linalg_cholesky(a); },
        [](const Tensor& a) { return a * 3; }, m);
  };
  const Tensor m = at::eye(3, at::kDouble);
  expect_kept(factor, {-m}, both_signs(m));
  const auto compiled = tower::compile(factor);
  compiled(-m);
  EXPECT_THROW(compiled(vec({-3, 9, 9}).diag()), c10::Error);
}

TEST(SavedChoices, PassOnWhatTheyCapture) {
  const Tensor w = waves({3}, 0.2), x = waves({3}).abs();
  const auto f = [=](const Tensor& y) {
    const Tensor z = y.cos();
    return tower::cond(
        y.sum() > 0, [=](const Tensor& v) { return v * w + z; }, [=](const Tensor& v) { return v - z * z; }, y);
  };
  expect_kept(f, {x}, both_signs(x));
  expect_kept(tower::grad([=](const Tensor& y) { return f(y).sum(); }), {x}, both_signs(x));
  expect_kept(tower::vmap(tower::grad([=](const Tensor& y) { return f(y).sum(); })), {waves({4, 3})},
              {waves({4, 3}, 0.9)});
}

TEST(SavedChoices, AreInEachOtherAndInLoopsAndLoopsInThem) {
  const auto inner = [](const Tensor& y) {
    return tower::cond(
        y.sum() > 1, [](const Tensor& v) { return v * 0.5; }, [](const Tensor& v) { return v.cos(); }, y);
  };
  const auto nested = [=](const Tensor& x) {
    return tower::cond(
        x.sum() > 0, inner, [](const Tensor& v) { return v.sin(); }, x);
  };
  const auto in_loop = [=](const Tensor& x) {
    return tower::while_loop([](const Tensor& s) { return s.norm() > 0.5; },
                             [=](const Tensor& s) { return 0.9 * inner(s); }, x, {.max_steps = 40});
  };
  const auto loop_in = [=](const Tensor& x) {
    return tower::cond(
        x.sum() > 0,
        [](const Tensor& y) {
          return tower::while_loop([](const Tensor& s) { return s.norm() > 0.5; },
                                   [](const Tensor& s) { return s * 0.5; }, y, {.max_steps = 40});
        },
        [](const Tensor& y) { return y * y; }, x);
  };
  const Tensor x = waves({3}).abs() + 0.2, xs = waves({6, 3}, 0.7);
  expect_kept(nested, {x}, {x, -x, x * 0.1});
  expect_kept(in_loop, {x}, {x, x * 0.1});
  expect_kept(loop_in, {x}, both_signs(x));
  const auto sums = [](const auto& f) { return tower::vmap(tower::grad([=](const Tensor& y) { return f(y).sum(); })); };
  expect_kept(sums(nested), {xs}, both_signs(xs));
  expect_kept(sums(loop_in), {xs}, both_signs(xs));
}

TEST(SavedChoices, ThatCallThemselvesEndAsBefore) {
  std::function<Tensor(const Tensor&)> halve = [&](const Tensor& x) {
    return tower::cond(
        x.sum() > 1, [&](const Tensor& y) { return halve(y * 0.5); }, [](const Tensor& y) { return y; }, x);
  };
  const auto compiled = tower::compile(halve);
  const Tensor x = at::full({2}, 100, at::kDouble);
  for (const Tensor& y : {x, x * 1e-3}) EXPECT_TRUE(same(compiled(y), halve(y)));
  const Folder folder;
  EXPECT_THROW(compiled.save(folder / "f"), tower::UnsupportedError);
}

TEST(SavedChoices, BranchesThatDoMoreThanToComputeAreRefusedByName) {
  const Folder folder;
  const Tensor count = at::zeros({3}, at::kDouble), x = waves({3}).abs();
  const auto refused = [&](const auto& branch) {
    const auto f = tower::compile([=](const Tensor& y) {
      return tower::cond(
          y.sum() > 0, branch, [](const Tensor& v) { return v.cos(); }, y);
    });
    f(x);
    return contains(message_of<tower::UnsupportedError>([&] { f.save(folder / "f"); }), "cond");
  };
  EXPECT_TRUE(refused([](const Tensor& y) { return y + at::rand_like(y); }));
  EXPECT_TRUE(refused([=](const Tensor& y) {
    count.add_(1);
    return y * 2;
  }));
  EXPECT_TRUE(same(count, at::ones({3}, at::kDouble)));
  EXPECT_TRUE(refused([](const Tensor& y) { return y.sum(); }));  // of another shape than the other branch's
}

}  // namespace
