// Processes that do not do the same: both are told what each does, without MeshOptions::check and with it.
#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::Ended;
using tower::Mesh;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeout{2};
constexpr double kInTime = 6;  // seconds: the timeout, what it takes to ask, and a busy machine

// What a process does, and what an error says of it.
struct Step {
  const char* kind;
  at::ScalarType type;
  std::vector<int64_t> sizes;  // of an example
  std::string said = {};
};

Tensor operand_of(const Step& step) {
  std::vector<int64_t> sizes = step.sizes;
  sizes.insert(sizes.begin(), 2);
  return at::ones(sizes, step.type);
}

Tensor run(const Step& step, const Tensor& e) {
  const std::string_view kind = step.kind;
  if (kind == "psum") return tower::psum(e, "data");
  if (kind == "pmax") return tower::pmax(e, "data");
  if (kind == "pmin") return tower::pmin(e, "data");
  if (kind == "pmean") return tower::pmean(e, "data");
  if (kind == "all_gather") return tower::all_gather(e, "data");
  if (kind == "psum_scatter") return tower::psum_scatter(e, "data");
  if (kind == "all_to_all") return tower::all_to_all(e, "data", 0, 0);
  return tower::ppermute(e, "data", {{0, 2}, {2, 0}, {1, 3}, {3, 1}});
}

std::string described(const Step& step) {
  std::ostringstream text;
  text << c10::toString(step.type) << " " << at::IntArrayRef(step.sizes);
  return text.str();
}

// Two programs of one process each, as lists of steps: both are told, in time, what both do.
void expect_both_told(const std::vector<std::pair<std::vector<Step>, std::vector<Step>>>& programs, bool check) {
  processes::expect_all(2, [&](int rank) {
    for (const auto& [first, second] : programs) {
      const Mesh mesh = Mesh::from_environment({{"data", -1}}, {.timeout = kTimeout, .check = check});
      const auto start = Clock::now();
      const std::vector<Step>& own = rank == 0 ? first : second;
      std::string text;
      try {
        for (const Step& step : own) {
          const auto f = [&](const Tensor& e) {
            tower::axis_size("data");  // first, so that what follows is what the step sends
            return run(step, e);
          };
          tower::vmap(f, {.axis = "data", .across = mesh})(operand_of(step));
        }
      } catch (const tower::MeshError& error) {
        text = error.what();
      }
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      const std::string what =
          first[0].kind + (" of " + described(first[0])) + " against " + second[0].kind + " of " + described(second[0]);
      EXPECT_LT(seconds, kInTime) << what;
      EXPECT_TRUE(contains(text, "do not do the same: here it is collective ")) << what << ": " << text;
      EXPECT_TRUE(contains(text, "; in process " + std::to_string(1 - rank) + " it is collective ") ||
                  contains(text, "; in process " + std::to_string(rank) + " it is collective "))
          << what << ": " << text;
      for (const std::vector<Step>& program : {first, second})
        EXPECT_TRUE(contains(text, program[0].said)) << what << ": " << text;
    }
  });
}

const std::vector<const char*> kKinds{"psum",       "pmax",         "pmin",       "pmean",
                                      "all_gather", "psum_scatter", "all_to_all", "ppermute"};

std::vector<std::pair<std::vector<Step>, std::vector<Step>>> of_other_tensors() {
  // Pairs of as many bytes, or as many numbers, as each other.
  const std::vector<std::pair<Step, Step>> tensors{
      {{"", at::kDouble, {4, 3}}, {"", at::kLong, {4, 3}}},
      {{"", at::kDouble, {4, 3}}, {"", at::kFloat, {4, 6}}},
      {{"", at::kDouble, {4, 2, 3}}, {"", at::kDouble, {4, 3, 2}}},
      {{"", at::kComplexDouble, {4, 3}}, {"", at::kDouble, {4, 6}}},
      {{"", at::kFloat, {4, 1000}}, {"", at::kInt, {4, 1000}}},
      {{"", at::kFloat, {4, 1000}}, {"", at::kFloat, {4, 10, 100}}},
  };
  std::vector<std::pair<std::vector<Step>, std::vector<Step>>> programs;
  for (const char* kind : kKinds)
    for (auto [a, b] : tensors) {
      const std::string_view name = kind;
      if ((name == "pmax" || name == "pmin") && c10::isComplexType(a.type)) continue;
      if (name == "pmean" && (b.type == at::kLong || b.type == at::kInt)) continue;
      a.kind = b.kind = kind;
      programs.push_back({{a}, {b}});
    }
  return programs;
}

TEST(Differing, DtypesAndShapesAreFoundOutOfEveryCollective) { expect_both_told(of_other_tensors(), false); }
TEST(Differing, DtypesAndShapesAreFoundOutByTheCheck) { expect_both_told(of_other_tensors(), true); }

std::vector<std::pair<std::vector<Step>, std::vector<Step>>> in_another_order() {
  const Step a{"psum", at::kDouble, {3}, "psum of Double [3]"}, b{"psum", at::kDouble, {4}, "psum of Double [4]"},
      c{"pmax", at::kDouble, {3}, "pmax of Double [3]"};
  return {{{a, b}, {b, a}}, {{a, c}, {c, a}}, {{c, b}, {b, c}}};
}
TEST(Differing, CollectivesInAnotherOrderAreFoundOut) {
  expect_both_told(in_another_order(), false);
  expect_both_told(in_another_order(), true);
}

// They wait for each other, until the timeout or the check.
TEST(Differing, MessagesToOneAndToAllAreFoundOutInTime) {
  const Step moves{"ppermute", at::kDouble, {3}, "ppermute of rows of Double [3]"},
      sums{"psum", at::kDouble, {3}, "psum of Double [3]"};
  expect_both_told({{{moves}, {sums}}, {{sums}, {moves}}}, false);
  expect_both_told({{{moves}, {sums}}, {{sums}, {moves}}}, true);
}

// One process has called a collective before which the other has not, and which it could do alone.
TEST(Differing, PlacesInTheProgramAreCompared) {
  processes::expect_all(2, [](int rank) {
    const Mesh mesh = Mesh::from_environment({{"data", -1}}, {.timeout = kTimeout});
    const auto f = [&](const Tensor& e) {
      tower::axis_size("data");
      if (rank == 0) tower::ppermute(e, "data", {{0, 1}, {1, 0}});
      return tower::psum(e, "data");
    };
    const std::string text = message_of<tower::MeshError>([&] {
      tower::vmap(f, {.out_dims = std::nullopt, .axis = "data", .across = mesh})(waves({2, 3}));
    });
    EXPECT_TRUE(contains(text, "collective 3 over axis 'data', psum of Double [3]")) << text;
    EXPECT_TRUE(contains(text, "collective 4 over axis 'data', psum of Double [3]")) << text;
  });
}

TEST(Differing, TensorsOfLongListsAreNamed) {
  for (const bool check : {false, true})
    processes::expect_all(2, [&](int rank) {
      for (const int64_t other : {399, 0, 17}) {
        const Mesh mesh = Mesh::from_environment({{"data", -1}}, {.timeout = kTimeout, .check = check});
        std::vector<Tensor> tree(400, waves({3}));
        if (rank == 1) tree[static_cast<size_t>(other)] = waves({1, 3});
        const std::string text = message_of<tower::MeshError>([&] { tower::sum_across(mesh, "data", tree); });
        const std::string which = "sum_across of 400 tensors, number " + std::to_string(other) + " Double [";
        EXPECT_TRUE(contains(text, which + "3]")) << text;
        EXPECT_TRUE(contains(text, which + "1, 3]")) << text;
      }
    });
}

}  // namespace
