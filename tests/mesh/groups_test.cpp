// Meshes of groups that the program made: of some of the processes, with timeouts of their own, with several axes.
#include <csignal>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "mesh/gloo.h"
#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using tower::Mesh;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// Of the processes of torchrun's environment those that call it, all with the same name.
Group group_of(int rank, int size, const std::string& name, std::chrono::seconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  options.isServer = std::string_view(std::getenv("RANK")) == "0";
  options.waitWorkers = false;
  options.multiTenant = true;
  const auto shared = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, shared);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                    tower::mesh::make_gloo(store, rank, size, timeout, "127.0.0.1"));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

Tensor total(const Mesh& mesh, const Tensor& x, const char* axis) {
  return tower::vmap([&](const Tensor& e) { return tower::psum(e, axis); },
                     {.out_dims = std::nullopt, .axis = axis, .across = mesh})(x);
}

TEST(Groups, MayHaveSomeOfTheProcesses) {
  processes::expect_all(3, [](int rank) {
    if (rank == 1) {
      const Group alone = group_of(0, 1, "one", std::chrono::seconds(5));
      const Mesh mesh = Mesh::from_group(alone, {{"data", -1}});
      EXPECT_TRUE(same(total(mesh, waves({3}), "data"), waves({3}).sum()));
      return;
    }
    const Group two = group_of(rank / 2, 2, "two", std::chrono::seconds(5));
    const Mesh mesh = Mesh::from_group(two, {{"data", -1}});
    EXPECT_EQ(mesh.rank(), rank / 2);
    EXPECT_EQ(mesh.size(), 2);
    const Tensor x = waves({4});
    EXPECT_TRUE(same(total(mesh, x.narrow(0, rank, 2), "data"), x.sum()));
  });
}

TEST(Groups, WaitAsLongAsTheyWereMadeTo) {
  if (!processes::can_start()) GTEST_SKIP() << "Tower was built without gloo's headers";
  const auto ended = processes::start(2, [](int rank) {
    const Group group = group_of(rank, 2, "short", std::chrono::seconds(2));
    const Mesh mesh = Mesh::from_group(group, {{"data", -1}});
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

}  // namespace
