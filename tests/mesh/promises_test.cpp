// What is promised to be the same in all processes, and is not.
#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::mesh_of_all;
using tower::Mesh;

// Two processes, of which both are expected to be told `what` where programs are checked.
void expect_found(const std::string& what, const std::function<void(const Mesh&, const Tensor& own)>& program) {
  if (!processes::can_start()) GTEST_SKIP() << "Tower was built without meshes of processes";
  const auto ended = processes::start(2, [&](int rank) {
    const Mesh mesh = mesh_of_all(/*check=*/true);
    const Tensor own = number(1.0 + rank);
    std::cout << message_of<tower::MeshError>([&] { program(mesh, own); }) << '\n';
  });
  for (const auto& e : ended) {
    EXPECT_EQ(e.status, 0) << e.said;
    EXPECT_TRUE(contains(e.said, what)) << e.said;
    EXPECT_TRUE(contains(e.said, "is not the same here and in process")) << e.said;
  }
}

TEST(Promises, OfArgumentsAreChecked) {
  expect_found("argument 0, Double []", [](const Mesh& mesh, const Tensor& own) {
    tower::vmap([](const Tensor& w, const Tensor& x) { return w * x; },
                {.in_dims = {std::nullopt, 0}, .axis = "data", .across = mesh})(own, waves({3}));
  });
}

TEST(Promises, OfArgumentsAreCheckedUnderTransforms) {
  expect_found("argument 0, Double []", [](const Mesh& mesh, const Tensor& own) {
    const auto loss = [&](const Tensor& w) {
      return tower::vmap([](const Tensor& v, const Tensor& x) { return tower::psum(v * x, "data"); },
                         {.in_dims = {std::nullopt, 0}, .out_dims = std::nullopt, .axis = "data", .across = mesh})(
          w, waves({3}));
    };
    tower::grad(loss)(own);
  });
}

TEST(Promises, OfWhatIsCapturedAreCheckedWhereItMeetsWhatIsMapped) {
  expect_found("a value that begins to differ, number 0, Double []", [](const Mesh& mesh, const Tensor& own) {
    tower::grad([&](const Tensor& w) {
      const Tensor captured = w * own;
      return tower::vmap([&](const Tensor& x) { return tower::psum(captured * x, "data"); },
                         {.out_dims = std::nullopt, .axis = "data", .across = mesh})(waves({3}));
    })(number(2));
  });
}

TEST(Promises, OfResultsAreChecked) {
  expect_found("output 0, Double []", [](const Mesh& mesh, const Tensor& own) {
    tower::vmap([&](const Tensor& x) { return tower::psum(x, "data") * own; },
                {.out_dims = std::nullopt, .axis = "data", .across = mesh})(waves({3}));
  });
}

TEST(Promises, ThatAreKeptPassTheCheck) {
  processes::expect_all(2, [](int rank) {
    const Mesh mesh = mesh_of_all(/*check=*/true);
    const Tensor x = waves({4, 3}), w = waves({3});
    const auto loss = [&](const Tensor& v, const Tensor& examples, const Mesh& across) {
      return tower::vmap([](const Tensor& u, const Tensor& e) { return tower::pmean(at::dot(u, e).sin(), "data"); },
                         {.in_dims = {std::nullopt, 0}, .out_dims = std::nullopt, .axis = "data", .across = across})(
          v, examples);
    };
    const auto spread = [&](const Tensor& v) { return loss(v, x.narrow(0, rank * 3, 3 - 2 * rank), mesh); };
    const auto whole = [&](const Tensor& v) { return loss(v, x, {}); };
    EXPECT_TRUE(same(tower::grad(spread)(w), tower::grad(whole)(w)));
    EXPECT_TRUE(same(tower::hessian(spread)(w), tower::hessian(whole)(w)));
  });
}

}  // namespace
