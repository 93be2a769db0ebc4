// Branches and loops in which examples speak to each other while not all of them take part: what an example says in a
// branch that it did not take counts, what it computes there for itself does not.
#include <functional>
#include <limits>

#include "mesh/differences.h"
#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using OfTensor = std::function<Tensor(const Tensor&)>;

OfTensor summed(const OfTensor& of_one, const tower::Mesh& across = {}) {
  return [=](const Tensor& x) {
    const auto f = [=](const Tensor& v) { return tower::psum(of_one(v), "data"); };
    return tower::vmap(f, {.out_dims = std::nullopt, .axis = "data", .across = across})(x);
  };
}

struct Case {
  const char* name;
  OfTensor of_one;
};

const std::vector<Case>& cases() {
  const auto branch = [](OfTensor says) -> OfTensor {
    return [says](const Tensor& v) {
      return tower::cond(
          v > 0, says, [](const Tensor& t) { return t * 0; }, v);
    };
  };
  const auto loop = [](OfTensor step, tower::WhileOptions options = {}) -> OfTensor {
    return [=](const Tensor& v) { return tower::while_loop([](const Tensor& s) { return s < 3; }, step, v, options); };
  };
  const OfTensor grows = [](const Tensor& s) { return s.abs() + 0.5 * tower::psum(s * s, "data"); };
  static const std::vector<Case> all{
      {"psum", branch([](const Tensor& t) { return tower::psum(t * t, "data"); })},
      {"pmean", branch([](const Tensor& t) { return t * tower::pmean(t * t, "data"); })},
      {"pmin", branch([](const Tensor& t) { return t * tower::pmin(t.sin() * t, "data"); })},
      {"pmax", branch([](const Tensor& t) { return t * tower::pmax(t * t, "data"); })},
      {"all_gather", branch([](const Tensor& t) {
         return (tower::all_gather(t, "data").square() * vec({1, 2, 3})).sum();
       })},
      {"psum_scatter", branch([](const Tensor& t) {
         return tower::psum_scatter(t.square() * vec({1, 2, 3}), "data");
       })},
      {"ppermute", branch([](const Tensor& t) {
         return tower::ppermute(t * t, "data", {{1, 0}, {0, 2}});
       })},
      {"all_to_all", branch([](const Tensor& t) {
         return (tower::all_to_all(t.square() * vec({1, 2, 3}), "data", 0, 0) * vec({3, 1, 2})).sum();
       })},
      {"what is heard is said again", branch([](const Tensor& t) {
         return tower::psum(t * tower::ppermute(t * t, "data", {{1, 0}, {0, 1}, {2, 2}}), "data");
       })},
      {"a loop", loop(grows)},
      {"a loop with checkpoints", loop(grows, {.checkpoints = 1})},
      {"a loop that would leave examples out", loop(grows, {.compact = true})},
      {"a predicate",
       [](const Tensor& v) {
         return tower::while_loop([](const Tensor& s) { return s * tower::pmean(s, "data") < 6; },
                                  [](const Tensor& s) { return s * s + 1; }, v);
       }},
  };
  return all;
}

Tensor examples() { return vec({1.5, -2.5, 0.5}); }

TEST(BranchesInWhichExamplesSpeak, HaveTheDerivativesOfDifferences) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const OfTensor f = summed(c.of_one);
    const auto near = [](const Tensor& actual, const Tensor& expected) {
      return support::difference(actual, expected, {1e-6, 1e-6});
    };
    const Tensor x = examples(), slopes = by_differences(f, x), slope = tower::grad(f)(x);
    EXPECT_EQ(near(slope, slopes), "");
    EXPECT_TRUE(same(tower::jacfwd(f)(x), slope));
    EXPECT_TRUE(same(tower::compile(tower::grad(f))(x), slope));
    const Tensor curvature = tower::jacfwd(tower::jacfwd(f))(x);
    EXPECT_TRUE(same(tower::jacrev(tower::grad(f))(x), curvature));
    EXPECT_TRUE(same(tower::jacfwd(tower::grad(f))(x), curvature));
    EXPECT_EQ(near(tower::jvp(tower::grad(f), x, vec({1, 0, 0})).second,
                   by_differences([&](const Tensor& at) { return tower::grad(f)(at)[0]; }, x)),
              "");
  }
}

TEST(BranchesInWhichExamplesSpeak, HaveThemAcrossProcesses) {
  processes::expect_all(2, [](int rank) {
    const tower::Mesh mesh = processes::mesh_of_all();
    const auto own = [&](const Tensor& whole) { return rank == 0 ? whole.narrow(0, 0, 2) : whole.narrow(0, 2, 1); };
    for (const Case& c : cases()) {
      SCOPED_TRACE(c.name);
      const Tensor x = examples(), v = vec({1, 0.5, -1});
      const auto along = [&](const tower::Mesh& across, const Tensor& at, const Tensor& direction) {
        return tower::jvp(tower::grad(summed(c.of_one, across)), at, direction).second;
      };
      EXPECT_TRUE(same(tower::grad(summed(c.of_one, mesh))(own(x)), own(tower::grad(summed(c.of_one))(x))));
      EXPECT_TRUE(same(along(mesh, own(x), own(v)), own(along({}, x, v))));
      EXPECT_TRUE(
          same(tower::compile(tower::grad(summed(c.of_one, mesh)))(own(x)), own(tower::grad(summed(c.of_one))(x))));
    }
  });
}

TEST(BranchesInWhichExamplesSpeak, CountWhatIsSaidByThoseWhoDidNotTakeThem) {
  const OfTensor f = summed([](const Tensor& v) {
    return tower::cond(
        v > 0, [](const Tensor& t) { return tower::psum(t * t, "data"); }, [](const Tensor& t) { return t * 0; }, v);
  });
  EXPECT_TRUE(same(f(vec({1, -2})), number(5)));
  EXPECT_TRUE(same(tower::grad(f)(vec({1, -2})), vec({2, -4})));
}

// √ has an infinite slope at zero and none below: what was not taken, and says nothing, stays out, also where another
// branch speaks.
TEST(BranchesInWhichExamplesSpeak, LeaveOutWhatSaysNothing) {
  const auto root = [](const Tensor& t) { return t.sqrt(); };
  const OfTensor silent = summed([&](const Tensor& v) {
    return tower::cond(
        v > 0, root, [](const Tensor& t) { return t * 3; }, v);
  });
  EXPECT_TRUE(same(tower::grad(silent)(vec({4, 0, -1})), vec({0.25, 3, 3})));
  EXPECT_TRUE(same(tower::hessian(silent)(vec({4, 0, -1})), at::diag(vec({-1.0 / 32, 0, 0}))));
  const OfTensor other_speaks = summed([&](const Tensor& v) {
    return tower::cond(
        v > 0, root, [](const Tensor& t) { return tower::psum(t, "data") * t; }, v);
  });
  // Σ over those at -1 and 0 of t · (4 + 0 - 1), by all three.
  EXPECT_TRUE(same(tower::grad(other_speaks)(vec({4, 0, -1})), vec({0.25 - 1, 3 - 1, 3 - 1})));
}

// Along an axis on which no example took the branch nobody hears what was said in it.
TEST(BranchesInWhichExamplesSpeak, LeaveOutThoseWhomNobodyHears) {
  const auto f = [](const Tensor& x) {
    const auto of_one = [](const Tensor& v) {
      const auto says = [](const Tensor& t) { return tower::psum(t.sqrt(), "inner"); };
      return tower::cond(
          tower::pmin(v, "inner") > 0, says, [](const Tensor& t) { return t * 2; }, v);
    };
    const auto of_row = [&](const Tensor& row) { return tower::vmap(of_one, {.axis = "inner"})(row); };
    return tower::vmap(of_row, {.axis = "data"})(x).sum();
  };
  const Tensor x = vec({4, 1, -1, 0}).view({2, 2});
  EXPECT_TRUE(same(tower::grad(f)(x), vec({0.5, 1, 2, 2}).view({2, 2})));
}

TEST(BranchesInWhichExamplesSpeak, OfLoopsThatLeaveExamplesOutAreRefusedWhereOnlyLaterStepsSpeak) {
  const auto f = [](const Tensor& x) {
    const auto of_one = [made = std::make_shared<int>(0)](const Tensor& v) {
      const auto step = [made](const Tensor& s) { return ++*made < 4 ? s + 1 : s + 1 + 0 * tower::psum(s, "data"); };
      return tower::while_loop([](const Tensor& s) { return s < 10; }, step, v, {.compact = true});
    };
    return tower::vmap(of_one, {.axis = "data"})(x);
  };
  const std::string text = message_of<tower::UnsupportedError>([&] { f(vec({1, 9, 8})); });
  EXPECT_TRUE(says(text, {"vmap (level 1): psum speaks of axis 'data' in a step of a while_loop with compact"}))
      << text;
  EXPECT_TRUE(says(text, {"Set compact to 0"})) << text;
}

}  // namespace
