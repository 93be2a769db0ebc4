// One meaning: a program across processes gives what it gives in one.
#include "mesh/harness.h"
#include "mesh/programs.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using mesh_programs::kBatch;
using mesh_programs::Part;
using mesh_programs::Program;
using processes::expect_all;
using processes::mesh_of_all;
using tower::Mesh;

// The first processes have one example more where they do not divide.
Part part_of(int64_t rank, int64_t size, int64_t batch = kBatch) {
  Part part{0, 0};
  for (int64_t r = 0; r <= rank; ++r) {
    part.start += part.length;
    part.length = batch / size + (r < batch % size);
  }
  return part;
}

// Nestings of `fewest` to `most` transforms, of which one in `every` is taken.
void expect_programs_equal(const Mesh& mesh, size_t fewest, size_t most, int every = 1) {
  const Part part = part_of(mesh.rank(), mesh.size());
  int number = 0;
  for (const Program& program : mesh_programs::programs())
    for (const std::string& outside : mesh_programs::nestings(most))
      for (const std::string& inside : mesh_programs::nestings(most)) {
        const size_t transforms = outside.size() + inside.size();
        if (transforms < fewest || transforms > most || number++ % every != 0) continue;
        const auto whole = mesh_programs::run(program, outside, inside, {}, {.axis = "data"});
        const auto spread = mesh_programs::run(program, outside, inside, part, {.axis = "data", .across = mesh});
        for (size_t k = 0; k < whole.values.size(); ++k, processes::count_comparison()) {
          const auto dim = whole.mapped[k];
          EXPECT_TRUE(same(spread.values[k], dim ? part.of(whole.values[k], *dim) : whole.values[k]))
              << program.name << ", outside " << outside << ", inside " << inside << ", result " << k;
        }
      }
}

TEST(AcrossProcesses, OfOneToFourEveryProgramGivesWhatItGivesInOne) {
  for (const int count : {1, 2, 3, 4}) expect_all(count, [](int) { expect_programs_equal(mesh_of_all(), 0, 1); });
}

TEST(AcrossProcesses, TwoTransformsAroundAndInsideGiveWhatTheyGiveInOne) {
  expect_all(2, [](int) { expect_programs_equal(mesh_of_all(), 2, 2, 2); });
}

TEST(AcrossProcesses, ThreeTransformsAroundAndInsideGiveWhatTheyGiveInOne) {
  expect_all(2, [](int) { expect_programs_equal(mesh_of_all(), 3, 3, 17); });
}

// A model's loss over a batch, the same for all processes.
Tensor loss_of(const Tensor& w, const Tensor& x, const tower::Mesh& mesh) {
  const auto of_one = [](const Tensor& v, const Tensor& e) {
    return tower::pmean((at::dot(v, e).sin() + v.sum()).square(), "data");
  };
  return tower::vmap(of_one, {.in_dims = {std::nullopt, 0}, .out_dims = std::nullopt, .axis = "data", .across = mesh})(
      w, x);
}

TEST(AcrossProcesses, JacobiansAndHessiansAroundAreThoseOfTheWholeBatch) {
  expect_all(3, [](int) {
    const Mesh mesh = mesh_of_all();
    const Part part = part_of(mesh.rank(), mesh.size());
    const Tensor w = waves({3}), x = waves({kBatch, 3}), own = part.of(x, 0);
    const auto whole = [&](const Tensor& v) { return loss_of(v, x, {}); };
    const auto spread = [&](const Tensor& v) { return loss_of(v, own, mesh); };
    EXPECT_TRUE(same(tower::grad(spread)(w), tower::grad(whole)(w)));
    EXPECT_TRUE(same(tower::jacfwd(spread)(w), tower::jacfwd(whole)(w)));
    EXPECT_TRUE(same(tower::hessian(spread)(w), tower::hessian(whole)(w)));
    EXPECT_TRUE(same(tower::jacrev(tower::jacrev(spread))(w), tower::hessian(whole)(w)));
    EXPECT_TRUE(same(tower::hvp(spread, w, w).second, tower::hvp(whole, w, w).second));
    EXPECT_TRUE(same(tower::vmap(tower::grad(spread))(at::stack({w, 2 * w})),
                     tower::vmap(tower::grad(whole))(at::stack({w, 2 * w}))));
  });
}

TEST(AcrossProcesses, JacobiansInsideAreThoseOfTheWholeBatch) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const Part part = part_of(mesh.rank(), mesh.size());
    const Tensor x = waves({kBatch, 3});
    const auto f = [](const Tensor& e) { return (tower::psum(e.sin(), "data") * e).cumsum(0); };
    const auto expect_same = [&](auto transform) {
      EXPECT_TRUE(same(tower::vmap(transform(f), {.axis = "data", .across = mesh})(part.of(x, 0)),
                       part.of(tower::vmap(transform(f), {.axis = "data"})(x), 0)));
    };
    expect_same([](auto g) { return tower::jacrev(g); });
    expect_same([](auto g) { return tower::jacfwd(g); });
    expect_same([](auto g) { return tower::hessian(g); });
  });
}

// What a function captures is an argument that is the same for all, to every transform around.
TEST(AcrossProcesses, CapturedTensorsGetTheDerivativeOfAllExamples) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const Part part = part_of(mesh.rank(), mesh.size());
    const Tensor w = waves({3}), x = waves({kBatch, 3});
    const auto loss = [](const Tensor& examples, const Mesh& across) {
      return [=](const Tensor& v) {
        const Tensor shared = v.exp();  // used twice, and alone
        const auto f = [&](const Tensor& e) {
          return tower::psum((shared * e).sin().sum(), "data") + (shared * shared).sum() +
                 tower::psum(e * v, "data").sum();
        };
        return tower::vmap(f, {.out_dims = std::nullopt, .axis = "data", .across = across})(examples);
      };
    };
    EXPECT_TRUE(same(tower::grad(loss(part.of(x, 0), mesh))(w), tower::grad(loss(x, {}))(w)));
    EXPECT_TRUE(same(tower::hessian(loss(part.of(x, 0), mesh))(w), tower::hessian(loss(x, {}))(w)));
  });
}

TEST(AcrossProcesses, LibTorchsAutogradGetsTheDerivativeOfAllExamples) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const Part part = part_of(mesh.rank(), mesh.size());
    const Tensor x = waves({kBatch, 3});
    Tensor w = waves({3}).requires_grad_(), same_w = waves({3}).requires_grad_();
    loss_of(w, part.of(x, 0), mesh).backward();
    loss_of(same_w, x, {}).backward();
    EXPECT_TRUE(same(w.grad(), same_w.grad()));
  });
}

TEST(AcrossProcesses, TwoAxesOfAMeshNest) {
  expect_all(4, [](int) {
    const Mesh mesh = Mesh::from_environment({{"data", 2}, {"model", 2}}, {.timeout = std::chrono::seconds(5)});
    EXPECT_EQ(mesh.rank(), mesh.rank("data") * 2 + mesh.rank("model"));
    const Part data = part_of(mesh.rank("data"), 2), model = part_of(mesh.rank("model"), 2, 3);
    const Tensor x = waves({kBatch, 4}), w = waves({3, 4}), b = waves({4});
    // A layer whose rows are spread over one axis, of examples that are spread over the other.
    const auto loss = [](const Mesh& across) {
      return [=](const Tensor& rows, const Tensor& bias, const Tensor& examples) {
        const auto of_one = [&](const Tensor& r, const Tensor& c, const Tensor& e) {
          const auto of_row = [&](const Tensor& row) { return tower::psum(at::dot(row * c, e).tanh(), "model"); };
          const auto mapped = tower::vmap(of_row, {.out_dims = std::nullopt, .axis = "model", .across = across});
          return tower::pmean(mapped(r).square(), "data");
        };
        return tower::vmap(
            of_one,
            {.in_dims = {std::nullopt, std::nullopt, 0}, .out_dims = std::nullopt, .axis = "data", .across = across})(
            rows, bias, examples);
      };
    };
    const Tensor own_x = data.of(x, 0), own_w = model.of(w, 0);
    EXPECT_TRUE(same(loss(mesh)(own_w, b, own_x), loss({})(w, b, x)));
    const auto [dw, db] = tower::grad<0, 1>(loss(mesh))(own_w, b, own_x);
    const auto [all_dw, all_db] = tower::grad<0, 1>(loss({}))(w, b, x);
    EXPECT_TRUE(same(dw, model.of(all_dw, 0)));
    EXPECT_TRUE(same(db, all_db));
  });
}

TEST(AcrossProcesses, ANamedLocalAxisInsideASpreadOneMixesWithIt) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const Part part = part_of(mesh.rank(), mesh.size());
    const Tensor x = waves({kBatch, 3, 2});
    const auto mapped = [](const Mesh& across) {
      const auto f = [](const Tensor& e) {
        return tower::psum(tower::psum(e.sin(), "local") * e, "data") +
               tower::pmax(e, "local") * tower::psum(e, "data");
      };
      return tower::vmap(tower::vmap(f, {.axis = "local"}), {.axis = "data", .across = across});
    };
    EXPECT_TRUE(same(mapped(mesh)(part.of(x, 0)), part.of(mapped({})(x), 0)));
  });
}

TEST(AcrossProcesses, ResultsThatArePromisedTheSameMustNotDiffer) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const std::string text = message_of<tower::ArgumentError>([&] {
      tower::vmap([](const Tensor& e) { return e; },
                  {.out_dims = std::nullopt, .axis = "data", .across = mesh})(waves({2}));
    });
    EXPECT_TRUE(contains(text, "output 0 differs between examples")) << text;
  });
}

// Unit vectors of a part are taken by all processes at the same time.
TEST(AcrossProcesses, JacobiansThatWouldMixProcessesAreRefused) {
  const auto expect_refused = [](auto jacobian, const std::string& what) {
    expect_all(2, [&](int) {
      const Mesh mesh = mesh_of_all();
      const std::string text = message_of<tower::UnsupportedError>([&] { jacobian(mesh); });
      EXPECT_TRUE(contains(text, what)) << text;
    });
  };
  const auto losses = [](const Mesh& mesh, bool total) {
    return tower::vmap([=](const Tensor& w, const Tensor& x) { return total ? tower::psum(w * x, "data") : w * x; },
                       {.in_dims = {std::nullopt, 0},
                        .out_dims = total ? std::nullopt : std::optional<int64_t>(0),
                        .axis = "data",
                        .across = mesh});
  };
  expect_refused([&](const Mesh& mesh) { tower::jacfwd<1>(losses(mesh, true))(number(2), waves({3})); },
                 "it differentiates by an argument of which each process has a part");
  expect_refused([&](const Mesh& mesh) { tower::hessian<1>(losses(mesh, true))(number(2), waves({3})); },
                 "it differentiates by an argument of which each process has a part");
  expect_refused([&](const Mesh& mesh) { tower::jacrev<0>(losses(mesh, false))(number(2), waves({3})); },
                 "it differentiates a result of which each process has a part");
}

TEST(AcrossProcesses, OfTwoVmapsAcrossTheSameProcessesTheInnerOneIsRefused) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const auto f = [](const Tensor& x, const Tensor& y) { return tower::psum(x * y, "data"); };
    const auto inner = tower::vmap(f, {.in_dims = {std::nullopt, 0}, .axis = "data", .across = mesh});
    const auto outer = tower::vmap(inner, {.in_dims = {0, std::nullopt}, .axis = "data", .across = mesh});
    const std::string text = message_of<tower::ArgumentError>([&] { outer(waves({2}), waves({3})); });
    EXPECT_TRUE(contains(text, "inside of a vmap across the same processes")) << text;
  });
}

// ---- around the mapped function ------------------------------------------------------------------------------------

TEST(AcrossProcesses, SumsOutsideHaveTheDerivativeOfTheProgramOfAll) {
  expect_all(3, [](int) {
    const Mesh mesh = mesh_of_all();
    const Part part = part_of(mesh.rank(), mesh.size());
    const Tensor w = waves({2}), x = waves({kBatch, 2});
    const auto losses = [](const Mesh& across) {
      return tower::vmap([](const Tensor& v, const Tensor& e) { return (v * e).sin().sum(); },
                         {.in_dims = {std::nullopt, 0}, .axis = "data", .across = across});
    };
    const auto spread = [&](const Tensor& v) {
      return tower::sum_across(mesh, "data", losses(mesh)(v, part.of(x, 0)).sum()) / kBatch;
    };
    const auto whole = [&](const Tensor& v) { return losses({})(v, x).mean(); };
    EXPECT_TRUE(same(spread(w), whole(w)));
    EXPECT_TRUE(same(tower::grad(spread)(w), tower::grad(whole)(w)));
    // Without it each process differentiates the sum of all processes' own results: a mean of its own is another.
    const auto own_mean = [&](const Tensor& v) { return losses(mesh)(v, part.of(x, 0)).mean(); };
    Tensor expected = at::zeros({2}, at::kDouble);
    for (int64_t r = 0; r < mesh.size(); ++r) {
      const Part theirs = part_of(r, mesh.size());
      expected += tower::grad([&](const Tensor& v) { return losses({})(v, theirs.of(x, 0)).mean(); })(w);
    }
    EXPECT_TRUE(same(tower::grad(own_mean)(w), expected));
  });
}

TEST(AcrossProcesses, PartsAreGatheredAndTakenWithDerivatives) {
  expect_all(3, [](int) {
    const Mesh mesh = mesh_of_all();
    const Part part = part_of(mesh.rank(), mesh.size());
    const Tensor x = waves({2, kBatch}), weights = waves({2, kBatch}, 0.7);
    const Tensor own = tower::part_of(mesh, "data", x, 1);
    EXPECT_TRUE(same(own, part.of(x, 1)));
    EXPECT_TRUE(same(tower::gather_across(mesh, "data", own, 1), x));
    const auto through = [&](const Tensor& t) {
      return (tower::gather_across(mesh, "data", tower::part_of(mesh, "data", t, 1).sin(), 1) * weights).sum();
    };
    EXPECT_TRUE(same(tower::grad(through)(x), x.cos() * weights));
    const auto of_part = [&](const Tensor& p) {
      return (tower::gather_across(mesh, "data", p, 1).square() * weights).sum();
    };
    EXPECT_TRUE(same(tower::grad(of_part)(own), part.of(2 * x * weights, 1)));
  });
}

}  // namespace
