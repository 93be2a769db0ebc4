// Collectives that move elements from process to process, and no further.
#include <filesystem>
#include <fstream>
#include <thread>

#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::expect_all;
using processes::mesh_of_all;
using tower::Mesh;

constexpr int64_t kExamples = 4;

// Uneven on purpose: of three processes the second has no example.
Tensor own_part(const Mesh& mesh, const Tensor& whole) {
  const std::vector<int64_t> starts =
      mesh.size() == 3 ? std::vector<int64_t>{0, 3, 3, 4} : std::vector<int64_t>{0, 1, 4};
  const auto rank = static_cast<size_t>(mesh.rank());
  return whole.narrow(0, starts[rank], starts[rank + 1] - starts[rank]);
}

// Of several types, of sizes below and above a first message.
std::vector<Tensor> tensors_of_many_types(int64_t length) {
  const Tensor x = waves({kExamples, kExamples, length});
  return {x,     x.to(at::kFloat),      x.to(at::kBFloat16),         (100 * x).to(at::kLong), (100 * x).to(at::kChar),
          x > 0, at::complex(x, x + 1), at::complex(x, x + 1).conj()};
}

using Collective = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

std::vector<std::pair<const char*, Collective>> moves() {
  return {
      {"a ring",
       [](const std::vector<Tensor>& t) {
         return tower::ppermute(t, "data", {{0, 1}, {1, 2}, {2, 3}, {3, 0}});
       }},
      {"some",
       [](const std::vector<Tensor>& t) {
         return tower::ppermute(t, "data", {{3, 0}, {1, 1}});
       }},
      {"none", [](const std::vector<Tensor>& t) { return tower::ppermute(t, "data", {}); }},
      {"all_to_all", [](const std::vector<Tensor>& t) { return tower::all_to_all(t, "data", 0, 1); }},
  };
}

void expect_moves(const Mesh& mesh) {
  for (const int64_t length : {1, 700})
    for (const auto& [name, f] : moves()) {
      const std::vector<Tensor> all = tensors_of_many_types(length);
      std::vector<Tensor> own;
      for (const Tensor& t : all) own.push_back(own_part(mesh, t));
      const auto whole = tower::vmap(f, {.axis = "data"})(all);
      const auto spread = tower::vmap(f, {.axis = "data", .across = mesh})(own);
      for (size_t k = 0; k < all.size(); ++k)
        EXPECT_TRUE(same(spread[k], own_part(mesh, whole[k]))) << name << " of tensor " << k << " of length " << length;
    }
}

TEST(Moves, GiveWhatTheyGiveInOneProcessForAllTypesAndSizes) {
  for (const int count : {2, 3}) expect_all(count, [](int) { expect_moves(mesh_of_all()); });
}

TEST(Moves, OfUnevenPartsPassTheCheck) {
  expect_all(3, [](int) { expect_moves(mesh_of_all(true)); });
}

// Of a single element a stride says nothing, and may be any.
TEST(Moves, TakeSingleElementsOfEachProcess) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    const auto f = [](const Tensor& e) { return tower::all_to_all(e, "data", 0, 0); };
    const Tensor x = waves({2, 2});
    EXPECT_TRUE(same(tower::vmap(f, {.axis = "data", .across = mesh})(x.narrow(0, mesh.rank(), 1)),
                     x.t().narrow(0, mesh.rank(), 1)));
  });
}

// The third process waits until the first two have what they want of each other.
TEST(Moves, ArePassedByProcessesThatHaveNoPartInThem) {
  const std::string done = testing::TempDir() + "tower_moved_" + std::to_string(::getpid());
  expect_all(3, [&](int rank) {
    const Mesh mesh = mesh_of_all();
    const auto f = [&](const Tensor& e) {
      tower::axis_size("data");
      for (int i = 0; rank == 2 && i < 400 && !std::filesystem::exists(done + "1"); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const Tensor moved = tower::ppermute(e, "data", {{0, 1}, {1, 0}});
      std::ofstream(done + std::to_string(rank)) << "done";
      if (rank == 2) {
        EXPECT_TRUE(std::filesystem::exists(done + "1"));
      }
      return moved;
    };
    const Tensor x = waves({3, 5}), expected = at::stack({x[1], x[0], at::zeros({5}, x.options())});
    EXPECT_TRUE(
        same(tower::vmap(f, {.axis = "data", .across = mesh})(x.narrow(0, rank, 1)), expected.narrow(0, rank, 1)));
  });
  for (const char* rank : {"0", "1", "2"}) std::filesystem::remove(done + rank);
}

// Where the examples of a vmap outside lie in memory depends on how many examples a process has of its own. What it
// sends does not; here there are as many of them as elements.
TEST(Moves, SendTheExamplesOfAVmapOutsideInOneOrder) {
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> collectives{
      {"psum", [](const Tensor& t) { return tower::psum(t, "data"); }},
      {"pmax", [](const Tensor& t) { return tower::pmax(t, "data"); }},
      {"all_gather", [](const Tensor& t) { return tower::all_gather(t, "data"); }},
      {"psum_scatter", [](const Tensor& t) { return tower::psum_scatter(tower::all_gather(t, "data"), "data"); }},
      {"ppermute",
       [](const Tensor& t) {
         return tower::ppermute(t, "data", {{0, 3}, {3, 1}});
       }},
  };
  expect_all(2, [&](int) {
    const Mesh mesh = mesh_of_all();
    const Tensor x = waves({3, kExamples, 3});
    const auto parts = [&](const Tensor& of_all) { return own_part(mesh, of_all.transpose(0, 1)).transpose(0, 1); };
    for (const auto& [name, collective] : collectives) {
      const auto f = [&, g = collective](const Tensor& t) {
        return g(tower::ppermute(t, "data", {{3, 0}, {1, 1}}).sin());
      };
      const Tensor whole = tower::vmap(tower::vmap(f, {.axis = "data"}))(x);
      const Tensor spread = tower::vmap(tower::vmap(f, {.axis = "data", .across = mesh}))(parts(x));
      EXPECT_TRUE(same(spread, parts(whole))) << name;
    }
  });
}

}  // namespace
