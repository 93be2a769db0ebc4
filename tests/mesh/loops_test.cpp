// Loops whose predicate differs between processes: they agree on who goes on, however the loop is run.
#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::expect_all;
using processes::mesh_of_all;
using tower::Mesh;

// Examples leave the loop after different numbers of steps, in one process all of them earlier than in the other.
Tensor examples() { return vec({5, 6, 9, 0.1, 0.2, 0.3, 0.4}); }

Tensor own_part(const Mesh& mesh, const Tensor& whole, int64_t of_first) {
  return mesh.rank() == 0 ? whole.narrow(0, 0, of_first) : whole.narrow(0, of_first, whole.size(0) - of_first);
}

using Step = Tensor (*)(const Tensor& state, const Tensor& w);
using Predicate = Tensor (*)(const Tensor& state);

struct Loop {
  const char* name;
  Predicate goes_on;
  Step step;
};

const std::vector<Loop>& loops() {
  static const std::vector<Loop> all{
      {"no collective", [](const Tensor& s) { return s < 10; }, [](const Tensor& s, const Tensor& w) { return s * w; }},
      {"a collective in the step", [](const Tensor& s) { return s < 10; },
       [](const Tensor& s, const Tensor& w) { return s * w + tower::pmean(s, "data").sin() * 0.01; }},
      {"a collective in the predicate", [](const Tensor& s) { return tower::pmin(s, "data") < 10; },
       [](const Tensor& s, const Tensor& w) { return s * w; }},
      {"both, and a predicate of the example's own",
       [](const Tensor& s) { return at::logical_and(s < 10, tower::psum(s, "data") < 400); },
       [](const Tensor& s, const Tensor& w) {
         return s * w + tower::ppermute(s, "data", {{0, 6}, {6, 0}}) * 0.01;
       }},
  };
  return all;
}

auto mapped(const Loop& loop, const Mesh& across, tower::WhileOptions options = {}) {
  return [=](const Tensor& w, const Tensor& x) {
    const auto f = [=](const Tensor& v, const Tensor& e) {
      return tower::while_loop(
          loop.goes_on, [=](const Tensor& s) { return loop.step(s, v); }, e, options);
    };
    return tower::vmap(f, {.in_dims = {std::nullopt, 0}, .axis = "data", .across = across})(w, x);
  };
}

auto loss(const Loop& loop, const Mesh& across, tower::WhileOptions options = {}) {
  return [=](const Tensor& w, const Tensor& x) {
    return tower::vmap(
        [](const Tensor& y) { return tower::psum(y.sin(), "data"); },
        {.out_dims = std::nullopt, .axis = "data", .across = across})(mapped(loop, across, options)(w, x));
  };
}

// The parts: of like lengths, of one example in a process, of none.
template <class F>
void for_each_loop(F&& f) {
  for (const Loop& loop : loops())
    for (const int64_t of_first : {3, 1, 0}) {
      SCOPED_TRACE(std::string(loop.name) + ", " + std::to_string(of_first) + " examples in the first process");
      f(loop, of_first);
    }
}

TEST(LoopsAcrossProcesses, AgreeWhereTheyAreRunStepByStep) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const Tensor x = examples(), w = number(1.5);
    for_each_loop([&](const Loop& loop, int64_t of_first) {
      const Tensor own = own_part(mesh, x, of_first);
      EXPECT_TRUE(same(mapped(loop, mesh)(w, own), own_part(mesh, mapped(loop, {})(w, x), of_first)));
      EXPECT_TRUE(same(tower::grad(loss(loop, mesh))(w, own), tower::grad(loss(loop, {}))(w, x)));
    });
  });
}

TEST(LoopsAcrossProcesses, AgreeWhereTheyAreCompiled) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const Tensor x = examples(), w = number(1.5);
    for_each_loop([&](const Loop& loop, int64_t of_first) {
      const Tensor own = own_part(mesh, x, of_first);
      const auto compiled = tower::compile(mapped(loop, mesh));
      const Tensor expected = own_part(mesh, mapped(loop, {})(w, x), of_first);
      EXPECT_TRUE(same(compiled(w, own), expected));
      EXPECT_TRUE(same(compiled(w, own), expected)) << "again";
    });
  });
}

TEST(LoopsAcrossProcesses, AgreeInCompiledDerivatives) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const Tensor x = examples(), w = number(1.5);
    for_each_loop([&](const Loop& loop, int64_t of_first) {
      const Tensor own = own_part(mesh, x, of_first), expected = tower::grad(loss(loop, {}))(w, x);
      EXPECT_TRUE(same(tower::compile(tower::grad(loss(loop, mesh)))(w, own), expected));
      EXPECT_TRUE(same(tower::grad(tower::compile(loss(loop, mesh)))(w, own), expected));
    });
  });
}

TEST(LoopsAcrossProcesses, AgreeWithCheckpoints) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const Tensor x = examples(), w = number(1.5);
    const tower::WhileOptions options{.checkpoints = 2};
    for_each_loop([&](const Loop& loop, int64_t of_first) {
      const Tensor own = own_part(mesh, x, of_first);
      EXPECT_TRUE(same(tower::grad(loss(loop, mesh, options))(w, own), tower::grad(loss(loop, {}))(w, x)));
    });
  });
}

// Whether to go on is a value that all are said to have. The process that ends earlier has ended, and the other is
// told. A compiled loop is one call, whose operands differ as its state does: there the processes agree.
TEST(LoopsAcrossProcesses, WhosePredicateIsSaidToBeTheSameAndIsNotDoNotHang) {
  if (!processes::can_start()) GTEST_SKIP() << "Tower was built without meshes of processes";
  for (const bool compiles : {false, true}) {
    const auto ended = processes::start(2, [&](int rank) {
      const Mesh mesh = mesh_of_all();
      const auto steps = [&](const Tensor& limit, const Tensor& x) {
        const auto f = [](const Tensor& most, const Tensor& e) {
          using State = std::pair<Tensor, Tensor>;
          const auto goes_on = [&](const State& s) { return s.first < most; };
          const auto step = [](const State& s) { return State(s.first + 1, s.second + tower::psum(s.second, "data")); };
          return tower::while_loop(goes_on, step, State(number(0), e)).second;
        };
        return tower::vmap(f, {.in_dims = {std::nullopt, 0}, .axis = "data", .across = mesh})(limit, x);
      };
      const Tensor limit = number(2 + rank), x = waves({2});
      if (compiles) tower::compile(steps)(limit, x);
      else if (rank == 0) steps(limit, x);
      else std::cout << message_of<tower::MeshError>([&] { steps(limit, x); }) << '\n';
    });
    for (const auto& e : ended) {
      EXPECT_TRUE(e.in_time) << e.said;
      EXPECT_EQ(e.status, 0) << e.said;
    }
    EXPECT_TRUE(compiles || contains(ended[1].said, "psum over axis 'data'")) << ended[1].said;
  }
}

// GMRES goes on in all processes until the last system is solved, of which each has several.
TEST(LoopsAcrossProcesses, OfSolversAgree) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const Tensor b = waves({7, 4}), scale = vec({1, 1, 1, 30, 40, 50, 60});
    const auto solve = [](const Mesh& across) {
      const auto f = [](const Tensor& s, const Tensor& right) {
        const Tensor d = 1 + s * at::arange(4, at::kDouble);
        const auto apply = [&](const Tensor& v) { return d * v + tower::pmean(s, "data") * v.sum(); };
        return tower::gmres(apply, right).x;
      };
      return tower::vmap(f, {.axis = "data", .across = across});
    };
    EXPECT_TRUE(
        same(solve(mesh)(own_part(mesh, scale, 3), own_part(mesh, b, 3)), own_part(mesh, solve({})(scale, b), 3)));
  });
}

}  // namespace
