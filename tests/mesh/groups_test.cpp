// Meshes of groups that the program made: of some of the processes, with timeouts of their own, with several axes.
#include "mesh/groups.h"

#include <csignal>
#include <thread>

#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::Group;
using processes::group_of;
using tower::Mesh;

Tensor total(const Mesh& mesh, const Tensor& x, const char* axis) {
  return tower::vmap([&](const Tensor& e) { return tower::psum(e, axis); },
                     {.out_dims = std::nullopt, .axis = axis, .across = mesh})(x);
}

TEST(Groups, MayHaveSomeOfTheProcesses) {
  processes::expect_all(3, [](int rank) {
    const Mesh all = processes::mesh_of_all();  // none ends before all have their groups
    if (rank == 1) {
      const Group alone = group_of(0, 1, "one", std::chrono::seconds(5));
      const Mesh mesh = Mesh::from_group(alone, {{"data", -1}});
      EXPECT_TRUE(same(total(mesh, waves({3}), "data"), waves({3}).sum()));
      total(all, waves({2}), "data");
      return;
    }
    const Group two = group_of(rank / 2, 2, "two", std::chrono::seconds(5));
    const Mesh mesh = Mesh::from_group(two, {{"data", -1}});
    EXPECT_EQ(mesh.rank(), rank / 2);
    EXPECT_EQ(mesh.size(), 2);
    const Tensor x = waves({4});
    EXPECT_TRUE(same(total(mesh, x.narrow(0, rank, 2), "data"), x.sum()));
    total(all, waves({2}), "data");
  });
}

TEST(Groups, WaitAsLongAsTheMeshIsToldTo) {
  if (!processes::can_start()) GTEST_SKIP() << "Tower was built without meshes of processes";
  const auto ended = processes::start(2, [](int rank) {
    const Group group = group_of(rank, 2, "short", std::chrono::seconds(300));
    const Mesh mesh = Mesh::from_group(group, {{"data", -1}}, {.timeout = std::chrono::seconds(2)});
    total(mesh, waves({2}), "data");
    if (rank == 1) ::raise(SIGSTOP);
    const auto start = std::chrono::steady_clock::now();
    const std::string text = message_of<tower::MeshError>([&] { total(mesh, waves({2}), "data"); });
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 4.5);
    EXPECT_TRUE(contains(text, "process 1 of the mesh did not answer")) << text;
  });
  EXPECT_EQ(ended[0].status, 0) << ended[0].said;
}

TEST(Groups, HaveSeveralAxesWhereTheirBackendCanBeSplit) {
  processes::expect_all(4, [](int rank) {
    const Group group = group_of(rank, 4, "four", std::chrono::seconds(5));
    const Mesh mesh = Mesh::from_group(group, {{"data", 2}, {"model", 2}});
    const Tensor x = waves({4}), own = x.narrow(0, rank, 1), grid = x.view({2, 2});
    EXPECT_TRUE(same(total(mesh, own, "data"), grid.sum(0)[rank % 2]));
    EXPECT_TRUE(same(total(mesh, own, "model"), grid.sum(1)[rank / 2]));
  });
}

// The second process is in two groups, of which it makes the other mesh first.
TEST(Groups, OfWhichAProcessIsInSeveralTellItsReasons) {
  if (!processes::can_start()) GTEST_SKIP() << "Tower was built without meshes of processes";
  const auto ended = processes::start(3, [](int rank) {
    const auto mesh_with = [&](int first) {
      return Mesh::from_group(group_of(rank - first, 2, std::to_string(first), std::chrono::seconds(5)), {{"data", -1}},
                              {.timeout = std::chrono::seconds(5)});
    };
    const Mesh other = rank > 0 ? mesh_with(1) : Mesh();
    if (rank > 0) total(other, waves({2}), "data");  // none ends before both are connected
    if (rank == 2) return;
    const Mesh mesh = mesh_with(0);
    const auto f = [&](const Tensor& e) {
      if (rank == 1) throw std::runtime_error("no more of this");
      return tower::psum(e, "data");
    };
    const auto mapped = tower::vmap(f, {.axis = "data", .across = mesh});
    if (rank == 1) message_of<std::runtime_error>([&] { mapped(waves({2})); });
    else std::cout << message_of<tower::MeshError>([&] { mapped(waves({2})); }) << std::endl;
  });
  EXPECT_EQ(ended[0].status, 0) << ended[0].said;
  EXPECT_TRUE(contains(ended[0].said, "process 1 gave up: no more of this")) << ended[0].said;
}

// Two meshes of a group whose backend is not gloo's own send messages by the same connections.
TEST(Groups, WithSeveralMeshesAreUsedByOneThreadAtATime) {
  processes::expect_all(1, [](int) {
    const auto around = [](processes::Backend gloo) { return c10::make_intrusive<processes::Noting>(gloo); };
    const Group group = group_of(0, 1, "one", std::chrono::seconds(5), around);
    const Mesh mesh = Mesh::from_group(group, {{"data", -1}}), again = Mesh::from_group(group, {{"data", -1}});
    std::string text;
    const auto f = [&](const Tensor& e) {
      std::thread([&] { text = message_of<tower::MeshError>([&] { total(again, waves({2}), "data"); }); }).join();
      return e;
    };
    message_of<tower::MeshError>([&] { tower::vmap(f, {.axis = "data", .across = mesh})(waves({2})); });
    EXPECT_TRUE(contains(text, "two threads use the mesh at the same time")) << text;
  });
}

// Gloo's have connections of their own.
TEST(Groups, OfGlooMayHaveAMeshForEachThread) {
  processes::expect_all(2, [](int rank) {
    const Group group = group_of(rank, 2, "both", std::chrono::seconds(20));
    const Mesh mesh = Mesh::from_group(group, {{"data", -1}}), again = Mesh::from_group(group, {{"data", -1}});
    const auto sums = [rank](const Mesh& of, double phase) {
      const Tensor whole = waves({2, 3}, phase);
      for (int k = 0; k < 20; ++k) EXPECT_TRUE(same(total(of, whole.narrow(0, rank, 1), "data"), whole.sum(0)));
    };
    std::thread other([&] { sums(again, 0.7); });
    sums(mesh, 0.2);
    other.join();
  });
}

// What the program sends itself does not meet what a mesh that fails was about to send.
TEST(Groups, GoOnWhenAMeshOfThemHasFailed) {
  processes::expect_all(2, [](int rank) {
    const Group group = group_of(rank, 2, "mine", std::chrono::seconds(5));
    const Mesh mesh = Mesh::from_group(group, {{"data", -1}}, {.timeout = std::chrono::seconds(5)});
    const auto f = [&](const Tensor& e) {
      if (rank == 1) throw std::runtime_error("no more of this");
      return tower::psum(e, "data");
    };
    const auto mapped = tower::vmap(f, {.axis = "data", .across = mesh});
    const auto start = std::chrono::steady_clock::now();
    if (rank == 1) message_of<std::runtime_error>([&] { mapped(waves({2})); });
    else EXPECT_TRUE(contains(message_of<tower::MeshError>([&] { mapped(waves({2})); }), "process 1 gave up"));
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 4) << "not told at once";
    std::vector<Tensor> own{at::ones({100})};
    group->getBackend(at::kCPU)->allreduce(own)->wait();
    EXPECT_TRUE(at::equal(own[0], at::full({100}, 2.0)));
  });
}

}  // namespace
