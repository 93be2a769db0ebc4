// Sums of derivatives go on while the backward pass does.
#include <filesystem>
#include <fstream>
#include <thread>

#include "mesh/harness.h"
#include "mesh/on_the_way_back.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::expect_all;
using processes::mesh_of_all;
using processes::on_the_way_back;
using tower::Mesh;

constexpr int64_t kWeights = 600'000;  // doubles: more than goes together with others

// Of two layers; the second's weights are summed first.
template <class Before, class Between>
Tensor loss(const Tensor& w, const Tensor& v, const Tensor& x, const Mesh& mesh, Before before, Between between) {
  const auto of_one = [=](const Tensor& w1, const Tensor& w2, const Tensor& e) {
    const Tensor first = on_the_way_back((w1 * e).sin().sum(), between);
    return tower::psum(on_the_way_back((w2 * (e + first)).cos().sum(), before), "data");
  };
  return tower::vmap(
      of_one, {.in_dims = {std::nullopt, std::nullopt, 0}, .out_dims = std::nullopt, .axis = "data", .across = mesh})(
      w, v, x);
}

// The second process comes to the sum of the second layer's derivatives when the first is at those of the first layer.
TEST(Overlap, AProcessGoesOnWithItsBackwardPassWhileASumWaitsForOthers) {
  const std::string there = testing::TempDir() + "tower_went_on_" + std::to_string(::getpid());
  expect_all(2, [&](int rank) {
    const Mesh mesh = mesh_of_all();
    const Tensor w = waves({kWeights}) / kWeights, v = waves({kWeights}, 0.4), x = waves({2});
    const auto wait = [&] {
      for (int i = 0; rank == 1 && i < 400 && !std::filesystem::exists(there); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (rank == 1) {
        EXPECT_TRUE(std::filesystem::exists(there));
      }
    };
    const auto tell = [&] {
      if (rank == 0) std::ofstream(there) << "there";
    };
    const auto none = [] {};
    const auto spread = [&](const Tensor& a, const Tensor& b) {
      return loss(a, b, x.narrow(0, rank, 1), mesh, wait, tell);
    };
    const auto whole = [&](const Tensor& a, const Tensor& b) { return loss(a, b, x, {}, none, none); };
    const auto [dw, dv] = tower::grad<0, 1>(spread)(w, v);
    const auto [all_dw, all_dv] = tower::grad<0, 1>(whole)(w, v);
    EXPECT_TRUE(same(dw, all_dw));
    EXPECT_TRUE(same(dv, all_dv));
  });
  std::filesystem::remove(there);
}

// A weight that other code uses, too, before and behind the mapped function: what comes late is added.
TEST(Overlap, LateDerivativesAreAddedToOthers) {
  expect_all(2, [](int rank) {
    const Mesh mesh = mesh_of_all();
    const Tensor w = waves({kWeights}) / kWeights, v = waves({kWeights}, 0.4), x = waves({2});
    const auto none = [] {};
    const auto with = [&](const Mesh& across, const Tensor& examples) {
      return [=](const Tensor& a, const Tensor& b) {
        const Tensor scaled = a.sin();
        return loss(scaled, b, examples, across, none, none) + (a * b).sum() +
               loss(b, scaled, examples, across, none, none);
      };
    };
    const auto [dw, dv] = tower::grad<0, 1>(with(mesh, x.narrow(0, rank, 1)))(w, v);
    const auto [all_dw, all_dv] = tower::grad<0, 1>(with({}, x))(w, v);
    EXPECT_TRUE(same(dw, all_dw));
    EXPECT_TRUE(same(dv, all_dv));
    // A second derivative follows the first's sums.
    const auto slope = [&](const Mesh& across, const Tensor& examples) {
      return [=](const Tensor& a) { return (tower::grad<0>(with(across, examples))(a, v) * v).sum(); };
    };
    EXPECT_TRUE(same(tower::grad(slope(mesh, x.narrow(0, rank, 1)))(w), tower::grad(slope({}, x))(w)));
  });
}

// What was begun and is not wanted any more is left alone, in all processes.
TEST(Overlap, AnExceptionInABackwardPassLeavesTheMeshOfUse) {
  expect_all(2, [](int rank) {
    const Mesh mesh = mesh_of_all();
    const Tensor w = waves({kWeights}) / kWeights, v = waves({kWeights}, 0.4), x = waves({2}),
                 own = x.narrow(0, rank, 1);
    const auto none = [] {};
    const auto fail = [] { throw std::runtime_error("no way back"); };
    const auto failing = [&](const Tensor& a, const Tensor& b) { return loss(a, b, own, mesh, none, fail); };
    EXPECT_EQ(message_of<std::runtime_error>([&] { tower::grad<0, 1>(failing)(w, v); }), "no way back");
    const auto spread = [&](const Tensor& a, const Tensor& b) { return loss(a, b, own, mesh, none, none); };
    const auto whole = [&](const Tensor& a, const Tensor& b) { return loss(a, b, x, {}, none, none); };
    EXPECT_TRUE(same(std::get<0>(tower::grad<0, 1>(spread)(w, v)), std::get<0>(tower::grad<0, 1>(whole)(w, v))));
  });
}

}  // namespace
