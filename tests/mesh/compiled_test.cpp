// Compiled functions whose processes have other parts from call to call.
#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::expect_all;
using processes::mesh_of_all;
using tower::Mesh;

// A loss that knows of how many examples it is the mean, and which of them it sees.
auto loss(const Mesh& across) {
  return [=](const Tensor& w, const Tensor& x) {
    const auto of_one = [](const Tensor& v, const Tensor& e) {
      const Tensor centred = e - tower::pmean(e, "data");
      return tower::pmean((centred * v).sin().sum() * (1 + tower::axis_index("data")), "data");
    };
    return tower::vmap(
        of_one, {.in_dims = {std::nullopt, 0}, .out_dims = std::nullopt, .axis = "data", .across = across})(w, x);
  };
}

TEST(CompiledAcrossProcesses, FollowThePartsOfOthers) {
  expect_all(2, [](int rank) {
    const Mesh mesh = mesh_of_all();
    const Tensor w = waves({3});
    const auto compiled = tower::compile(loss(mesh));
    const auto gradient = tower::compile(tower::grad(loss(mesh)));
    const auto twice = tower::compile([&](const Tensor& v, const Tensor& x) { return 2 * compiled(v, x); });
    // In each process its own part stays where the other's changes, and such that were there before come again.
    const std::vector<std::vector<int64_t>> parts{{3, 2}, {3, 1}, {2, 1}, {2, 2}, {3, 2}, {2, 1}, {3, 3}, {3, 2}};
    for (const auto& sizes : parts) {
      const Tensor x = waves({sizes[0] + sizes[1], 3}, 0.1 * static_cast<double>(sizes[0]));
      const Tensor own = rank == 0 ? x.narrow(0, 0, sizes[0]) : x.narrow(0, sizes[0], sizes[1]);
      EXPECT_TRUE(same(compiled(w, own), loss({})(w, x))) << sizes;
      EXPECT_TRUE(same(gradient(w, own), tower::grad(loss({}))(w, x))) << sizes;
      EXPECT_TRUE(same(tower::grad(compiled)(w, own), tower::grad(loss({}))(w, x))) << sizes;
      EXPECT_TRUE(same(twice(w, own), 2 * loss({})(w, x))) << sizes;
    }
  });
}

// As without compile: a graph that is there already does not hide whose rows they are.
TEST(CompiledAcrossProcesses, RefuseJacobiansOfParts) {
  const auto ended = processes::start(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const auto part = [](const Tensor& w, const Tensor& e) { return tower::psum(e * w, "data") * e; };
    const auto mapped = tower::vmap(part, {.in_dims = {std::nullopt, 0}, .axis = "data", .across = mesh});
    const auto compiled = tower::compile(mapped);
    const Tensor w = waves({3}), x = waves({2, 3});
    const auto of_shared = [&](const Tensor& v) { return compiled(v, x); };
    EXPECT_TRUE(same(tower::jacfwd(of_shared)(w), tower::jacfwd([&](const Tensor& v) { return mapped(v, x); })(w)));
    const std::string text = message_of<tower::UnsupportedError>([&] { tower::jacrev(of_shared)(w); });
    EXPECT_TRUE(contains(text, "a result of which each process has a part")) << text;
  });
  for (const auto& process : ended) EXPECT_EQ(process.status, 0) << process.said;
}

// Where one process traces and sends something first, the other asks for sizes: they find out.
TEST(CompiledAcrossProcesses, ThatCannotFollowSaySo) {
  const auto ended = processes::start(2, [](int rank) {
    const Mesh mesh = mesh_of_all();
    const auto f = [](const Tensor& e) { return tower::pmean(e * tower::psum(e, "data"), "data"); };
    const auto compiled = tower::compile(tower::vmap(f, {.out_dims = std::nullopt, .axis = "data", .across = mesh}));
    compiled(waves({3}));
    const std::string text = message_of<tower::MeshError>([&] { compiled(waves({rank == 0 ? 3 : 2})); });
    EXPECT_TRUE(contains(text, "the processes do not do the same") || contains(text, "gave up")) << text;
  });
  for (const auto& process : ended) EXPECT_EQ(process.status, 0) << process.said;
}

}  // namespace
