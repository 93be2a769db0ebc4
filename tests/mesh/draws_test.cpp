// Random numbers, loops and compiled functions across processes.
#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::expect_all;
using processes::mesh_of_all;
using tower::Mesh;
using tower::Randomness;

constexpr int64_t kEach = 3;

Tensor own_part(const Mesh& mesh, const Tensor& whole) { return whole.narrow(0, mesh.rank() * kEach, kEach); }

TEST(Draws, ThatTakeAsMuchForEveryExampleAreThoseOfOneProcess) {
  using Draw = Tensor (*)(const Tensor&);
  const std::vector<std::pair<const char*, Draw>> draws{
      {"randn", [](const Tensor& e) { return e + at::randn({20}, at::kDouble); }},
      {"rand_like", [](const Tensor& e) { return e * at::rand_like(e); }},
      {"bernoulli", [](const Tensor& e) { return at::bernoulli(e.sigmoid()); }},
      {"dropout", [](const Tensor& e) { return at::dropout(e, 0.5, true); }},
      {"normal", [](const Tensor& e) { return at::normal(e, 2.0); }}};
  expect_all(2, [&](int) {
    const Mesh mesh = mesh_of_all();
    const Tensor x = waves({2 * kEach, 20});
    for (const auto& [name, f] : draws) {
      const auto drawn = [&, &f = f](const Tensor& examples, const Mesh& across) {
        at::manual_seed(7);
        const Tensor y =
            tower::vmap(f, {.randomness = Randomness::different, .axis = "data", .across = across})(examples);
        return std::pair(y, at::rand({2}));
      };
      const auto [whole, after] = drawn(x, {});
      const auto [spread, after_spread] = drawn(own_part(mesh, x), mesh);
      EXPECT_TRUE(same(spread, own_part(mesh, whole))) << name;
      EXPECT_TRUE(same(after_spread, after)) << name << ": what is drawn next";
    }
  });
}

TEST(Draws, ThatDependOnTheValuesDifferBetweenProcessesAndLeaveGeneratorsAlike) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const auto drawn = [&] {
      at::manual_seed(7);
      const auto f = [](const Tensor& e) { return at::poisson(e); };
      const Tensor own = tower::vmap(f, {.randomness = Randomness::different, .axis = "data", .across = mesh})(
          at::full({kEach, 20}, 5.0 + static_cast<double>(mesh.rank()), at::kDouble));
      return std::pair(tower::gather_across(mesh, "data", own), at::rand({2}));
    };
    const auto [all, after] = drawn();
    EXPECT_FALSE(at::equal(all.narrow(0, 0, kEach), all.narrow(0, kEach, kEach) - 1));
    EXPECT_FALSE(at::equal(all.narrow(0, 0, kEach), all.narrow(0, kEach, kEach)));
    EXPECT_TRUE(same(tower::sum_across(mesh, "data", after), 2 * after));
    const auto [again, after_again] = drawn();
    EXPECT_TRUE(same(again, all));
    EXPECT_TRUE(same(after_again, after));
  });
}

TEST(Draws, ThatAreTheSameForAllExamplesAreSoEverywhere) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    at::manual_seed(3);
    const auto f = [](const Tensor& e) { return e + at::randn({}, at::kDouble); };
    const Tensor own = tower::vmap(
        f, {.randomness = Randomness::same, .axis = "data", .across = mesh})(at::zeros({kEach}, at::kDouble));
    const Tensor all = tower::gather_across(mesh, "data", own);
    EXPECT_TRUE(same(all, all[0].expand({2 * kEach})));
  });
}

TEST(Draws, OfGeneratorsThatDoNotStandAlikeAreRefused) {
  expect_all(2, [](int rank) {
    const Mesh mesh = mesh_of_all();
    at::manual_seed(static_cast<uint64_t>(rank));
    const std::string text = message_of<tower::RandomnessError>([&] {
      tower::vmap([](const Tensor& e) { return e + at::randn({}); },
                  {.randomness = Randomness::same, .axis = "data", .across = mesh})(waves({2}));
    });
    EXPECT_TRUE(contains(text, "the generators of processes")) << text;
    EXPECT_TRUE(contains(text, "Seed them alike")) << text;
  });
}

// Examples leave the loop after different numbers of steps, in one process earlier than in the other.
TEST(LoopsAcrossProcesses, RunUntilTheLastExampleOfAllHasEnded) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const Tensor x = vec({0.1, 0.2, 0.3, 5, 6, 9}), w = number(1.5);
    const auto mapped = [](const Mesh& across) {
      return [=](const Tensor& scale, const Tensor& examples) {
        const auto f = [](const Tensor& v, const Tensor& e) {
          return tower::while_loop([](const Tensor& s) { return s < 10; },
                                   [v](const Tensor& s) { return s * v + tower::pmean(s, "data").sin() * 0.01; }, e);
        };
        const auto all = tower::vmap(f, {.in_dims = {std::nullopt, 0}, .axis = "data", .across = across});
        return all(scale, examples);
      };
    };
    EXPECT_TRUE(same(mapped(mesh)(w, own_part(mesh, x)), own_part(mesh, mapped({})(w, x))));
    const auto loss = [&](const Mesh& across) {
      return [=](const Tensor& scale, const Tensor& examples) {
        return tower::vmap(
            [](const Tensor& y) { return tower::psum(y.sin(), "data"); },
            {.out_dims = std::nullopt, .axis = "data", .across = across})(mapped(across)(scale, examples));
      };
    };
    EXPECT_TRUE(same(tower::grad(loss(mesh))(w, own_part(mesh, x)), tower::grad(loss({}))(w, x)));
    EXPECT_TRUE(same(tower::jvp(loss(mesh), std::tuple(w, own_part(mesh, x)),
                                std::tuple(number(1), own_part(mesh, at::ones_like(x))))
                         .second,
                     tower::jvp(loss({}), std::tuple(w, x), std::tuple(number(1), at::ones_like(x))).second));
  });
}

TEST(CompiledAcrossProcesses, CollectivesStayCalls) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const auto loss = [](const Mesh& across) {
      return [=](const Tensor& w, const Tensor& x) {
        const auto f = [](const Tensor& v, const Tensor& e) {
          return tower::pmean((v * e).sin().sum().square(), "data");
        };
        return tower::vmap(
            f, {.in_dims = {std::nullopt, 0}, .out_dims = std::nullopt, .axis = "data", .across = across})(w, x);
      };
    };
    const Tensor w = waves({4});
    const auto compiled = tower::compile(loss(mesh));
    const auto gradient = tower::compile(tower::grad(loss(mesh)));
    for (const double phase : {0.3, 0.8}) {
      const Tensor x = waves({2 * kEach, 4}, phase);
      EXPECT_TRUE(same(compiled(w, own_part(mesh, x)), loss({})(w, x)));
      EXPECT_TRUE(same(gradient(w, own_part(mesh, x)), tower::grad(loss({}))(w, x)));
      EXPECT_TRUE(same(tower::grad(compiled)(w, own_part(mesh, x)), tower::grad(loss({}))(w, x)));
    }
  });
}

TEST(CheckpointsAcrossProcesses, AreEvaluatedAgainByAll) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const Tensor w = waves({4}), x = waves({2 * kEach, 4});
    const auto loss = [](const Mesh& across) {
      return [=](const Tensor& v, const Tensor& examples) {
        const auto f = [](const Tensor& u, const Tensor& e) {
          const auto part = tower::checkpoint(
              [](const Tensor& a, const Tensor& b) { return tower::pmean((a * b).sin(), "data") * b; });
          return tower::psum(part(u, e).sum(), "data");
        };
        return tower::vmap(
            f, {.in_dims = {std::nullopt, 0}, .out_dims = std::nullopt, .axis = "data", .across = across})(v, examples);
      };
    };
    EXPECT_TRUE(same(tower::grad(loss(mesh))(w, own_part(mesh, x)), tower::grad(loss({}))(w, x)));
  });
}

}  // namespace
