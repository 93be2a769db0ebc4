// Random programs that speak of named axes, under random nestings: across processes they give what they give in one, or
// all processes refuse them.
//
// TOWER_SPREAD_PROGRAMS=from:count tries other programs than the usual ones.
#include "mesh/random_programs.h"

#include <algorithm>
#include <random>

#include "mesh/harness.h"
#include "support/prelude.h"
#include "support/seeds.h"
#include "tower/tower.h"

namespace {

using mesh_programs::Drawn;
using mesh_programs::kBatch;
using mesh_programs::kInner;
using mesh_programs::Part;
using mesh_programs::World;
using tower::Mesh;

// Which part a process has where the batch is cut at random: some have nothing.
Part random_part(uint64_t seed, int64_t rank, int64_t processes, int64_t batch) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> cuts{0, batch};
  for (int64_t r = 1; r < processes; ++r)
    cuts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(batch + 1)));
  std::sort(cuts.begin(), cuts.end());
  const auto r = static_cast<size_t>(rank);
  return {cuts[r], cuts[r + 1] - cuts[r]};
}

struct Counts {
  int64_t compared = 0, refused = 0, not_in_one = 0;
};

// What one process does; the first `spread` of the two axes are across processes.
class Comparison {
 public:
  Comparison(size_t spread, std::vector<tower::MeshAxis> axes) : spread_(spread), axes_(std::move(axes)) { renew(); }

  void compare(uint64_t seed) {
    Tensors expected;
    Drawn program;
    try {
      program = mesh_programs::draw(seed, spread_);
      expected = program.run(World{{{{"data"}, {"inner"}}}, {{{}, {0, kInner}}}});
    } catch (const std::exception& error) {
      if (support::seeds("TOWER_SPREAD_PROGRAMS", 0).wanted)
        std::cout << seed << " in one: " << error.what() << '\n' << program.text << '\n';
      ++counts_.not_in_one;
      return;
    }
    World world{{{{"data", mesh_}, {"inner", spread_ > 1 ? mesh_ : Mesh()}}}, {{{}, {0, kInner}}}};
    world.parts[0] = random_part(seed, mesh_.rank("data"), mesh_.size("data"), kBatch);
    if (spread_ > 1) world.parts[1] = random_part(seed + 1, mesh_.rank("inner"), mesh_.size("inner"), kInner);
    std::string failure;
    bool refused = false;
    try {
      const Tensors actual = program.run(world);
      for (size_t k = 0; k < actual.size() && failure.empty(); ++k) {
        const auto result = same(actual[k], program.results[k].own(expected[k], world));
        if (!result) failure = "result " + std::to_string(k) + ": " + result.message();
      }
    } catch (const std::exception& error) {
      failure = std::string(error.what()).substr(0, 1000);
      refused = program.mixes &&
                (dynamic_cast<const tower::UnsupportedError*>(&error) || dynamic_cast<const tower::MeshError*>(&error));
    }
    EXPECT_TRUE(refused || failure.empty()) << "program " << seed << ":\n" << program.text << '\n' << failure;
    ++(refused ? counts_.refused : counts_.compared);
    if (!processes::all_went_well(mesh_, failure.empty())) renew();
  }
  const Counts& counts() const { return counts_; }

 private:
  void renew() { mesh_ = Mesh::from_environment(axes_, {.timeout = std::chrono::seconds(10)}); }

  size_t spread_;
  std::vector<tower::MeshAxis> axes_;
  Mesh mesh_;
  Counts counts_;
};

void expect_programs_equal(int processes, const std::vector<tower::MeshAxis>& axes, uint64_t count) {
  if (!processes::can_start()) GTEST_SKIP() << "Tower was built without gloo's headers";
  const support::Seeds seeds = support::seeds("TOWER_SPREAD_PROGRAMS", count);
  const auto ended = processes::start(
      processes,
      [&](int) {
        Comparison comparison(axes.size(), axes);
        for (const uint64_t seed : seeds) comparison.compare(seed);
        const Counts& counts = comparison.counts();
        std::cout << "\nrandom programs: " << counts.compared << " compared, " << counts.refused << " refused by all, "
                  << counts.not_in_one << " that one process refuses\n";
        EXPECT_GE(counts.compared, static_cast<int64_t>(seeds.count) / 2);
      },
      std::chrono::minutes(10));
  processes::expect_well(ended);
  // All processes ended alike.
  const auto counts_in = [](const std::string& said) { return said.substr(said.rfind("random programs: ")); };
  for (const auto& e : ended) {
    EXPECT_EQ(counts_in(e.said), counts_in(ended[0].said));
  }
  std::cout << counts_in(ended[0].said);
  if (seeds.wanted) std::cout << ended[0].said;
}

TEST(RandomProgramsAcrossProcesses, GiveOnTwoWhatTheyGiveInOne) { expect_programs_equal(2, {{"data", -1}}, 150); }

TEST(RandomProgramsAcrossProcesses, GiveOnThreeWhatTheyGiveInOne) { expect_programs_equal(3, {{"data", -1}}, 100); }

TEST(RandomProgramsAcrossProcesses, GiveOverTwoAxesWhatTheyGiveInOne) {
  expect_programs_equal(4, {{"data", 2}, {"inner", 2}}, 60);
}

}  // namespace
