// What the other processes see of one that dies, hangs, fails, or does something else: an error in time, with the names
// of the axis, the collective and the process. Then they go on, to save and exit.
#include <csignal>

#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::Ended;
using tower::Mesh;

Mesh mesh_of_all(bool check = false) {
  return Mesh::from_environment({{"data", -1}}, {.timeout = std::chrono::seconds(5), .check = check});
}

class Faults : public testing::Test {
  void SetUp() override {
    if (!processes::can_start()) GTEST_SKIP() << "Tower was built without meshes of processes";
  }
};

constexpr int kProcesses = 3, kFaulty = 1;
constexpr double kInTime = 9;  // seconds: the timeout of 5, what it takes to ask the others, and a busy machine

Tensor total(const Mesh& mesh, const Tensor& x) {
  return tower::vmap([](const Tensor& e) { return tower::psum(e, "data"); },
                     {.out_dims = std::nullopt, .axis = "data", .across = mesh})(x);
}

constexpr auto kToldAfter = "told after ";

// With the test's results, for the table in docs/processes.md.
void record_times(const std::vector<Ended>& ended) {
  std::string times;
  for (const Ended& e : ended)
    for (size_t at = e.said.find(kToldAfter); at != std::string::npos; at = e.said.find(kToldAfter, at + 1))
      times += e.said.substr(at, e.said.find(" s: ", at) - at + 2) + "; ";
  testing::Test::RecordProperty("times", times);
}

// What a process says of a collective that fails, and that it is alive afterwards.
void expect_failure(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  const std::string text = message_of<tower::MeshError>(call);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(seconds, kInTime);
  std::cout << kToldAfter << seconds << " s: " << text << '\n';
  EXPECT_TRUE(same(tower::grad([](const Tensor& z) { return z * z; })(number(3)), number(6)));
  support::expect_intact();
}

// All but the faulty one are expected to say `what`.
void expect_told(const std::vector<Ended>& ended, const std::string& what) {
  record_times(ended);
  for (size_t r = 0; r < ended.size(); ++r) {
    EXPECT_TRUE(ended[r].in_time) << r << " after " << ended[r].seconds << " s: " << ended[r].said;
    if (r == kFaulty) continue;
    EXPECT_EQ(ended[r].status, 0) << r << ": " << ended[r].said;
    const std::string where =
        "over axis 'data' (process " + std::to_string(r) + " of " + std::to_string(kProcesses) + ")";
    EXPECT_TRUE(contains(ended[r].said, where)) << r << ": " << ended[r].said;
    EXPECT_TRUE(contains(ended[r].said, what)) << r << ": " << ended[r].said;
  }
}

TEST_F(Faults, AProcessThatIsKilledIsNamed) {
  const auto ended = processes::start(kProcesses, [](int rank) {
    const Mesh mesh = mesh_of_all();
    total(mesh, waves({2}));
    if (rank == kFaulty) ::raise(SIGKILL);
    expect_failure([&] { total(mesh, waves({2})); });
    // The mesh stays broken, and says so at once.
    const std::string again = message_of<tower::MeshError>([&] { total(mesh, waves({2})); });
    EXPECT_TRUE(contains(again, "the mesh is of no more use since")) << again;
  });
  expect_told(ended, "process 1 of the mesh did not answer");
  EXPECT_EQ(ended[kFaulty].status, -1);
}

TEST_F(Faults, TheProcessThatHoldsTheStoreMayBeTheOne) {
  const auto ended = processes::start(2, [](int rank) {
    const Mesh mesh = mesh_of_all();
    total(mesh, waves({2}));
    if (rank == 0) ::raise(SIGKILL);
    expect_failure([&] { total(mesh, waves({2})); });
  });
  record_times(ended);
  EXPECT_EQ(ended[1].status, 0) << ended[1].said;
  EXPECT_TRUE(contains(ended[1].said, "process 0")) << ended[1].said;
}

TEST_F(Faults, AProcessThatIsStoppedIsNamedWithinTheTimeout) {
  const auto ended = processes::start(kProcesses, [](int rank) {
    const Mesh mesh = mesh_of_all();
    total(mesh, waves({2}));
    if (rank == kFaulty) ::raise(SIGSTOP);
    expect_failure([&] { total(mesh, waves({2})); });
  });
  expect_told(ended, "process 1 of the mesh did not answer");
}

// Elements that go from one process to another are awaited as sums are.
TEST_F(Faults, AProcessWhoseElementsAreAwaitedIsNamed) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const auto ended = processes::start(kProcesses, [&](int rank) {
      const Mesh mesh = mesh_of_all();
      const auto f = [](const Tensor& e) { return tower::all_to_all(e, "data", 0, 0); };
      const auto mapped = tower::vmap(f, {.axis = "data", .across = mesh});
      mapped(waves({1, kProcesses, 1000}));
      total(mesh, waves({2}));
      const auto f_that_ends = [&](const Tensor& e) {
        tower::axis_size("data");
        if (rank == kFaulty) ::raise(signal);
        return f(e);
      };
      const auto ends = tower::vmap(f_that_ends, {.axis = "data", .across = mesh});
      expect_failure([&] { ends(waves({1, kProcesses, 1000})); });
    });
    expect_told(ended, "all_to_all over axis 'data'");
    expect_told(ended, "process 1 of the mesh did not answer");
  }
}

TEST_F(Faults, AnExceptionInOneProcessReachesTheOthers) {
  const auto ended = processes::start(kProcesses, [](int rank) {
    const Mesh mesh = mesh_of_all();
    const auto f = [&](const Tensor& e) {
      if (rank == kFaulty) throw std::runtime_error("no more of this");
      return tower::psum(e, "data");
    };
    const auto mapped = tower::vmap(f, {.axis = "data", .across = mesh});
    if (rank == kFaulty) {
      EXPECT_EQ(message_of<std::runtime_error>([&] { mapped(waves({2})); }), "no more of this");
      return;
    }
    expect_failure([&] { mapped(waves({2})); });
  });
  EXPECT_EQ(ended[kFaulty].status, 0) << ended[kFaulty].said;
  expect_told(ended, "process 1 gave up: no more of this");
}

TEST_F(Faults, AProcessThatEndsEarlyIsNamed) {
  const auto ended = processes::start(kProcesses, [](int rank) {
    const Mesh mesh = mesh_of_all();
    total(mesh, waves({2}));
    if (rank == kFaulty) return;
    expect_failure([&] { total(mesh, waves({2})); });
  });
  expect_told(ended, "process 1 of the mesh did not answer");
}

// ---- processes that do not do the same -----------------------------------------------------------------------------

std::vector<Ended> differing(bool check, const std::function<Tensor(const Tensor&, bool faulty)>& f) {
  return processes::start(2, [&](int rank) {
    const Mesh mesh = mesh_of_all(check);
    const auto one = [&](const Tensor& e) { return f(e, rank == kFaulty); };
    expect_failure([&] { tower::vmap(one, {.axis = "data", .across = mesh})(waves({2, 3})); });
  });
}

void expect_both_told(const std::vector<Ended>& ended, const std::string& what) {
  record_times(ended);
  for (const Ended& e : ended) {
    EXPECT_EQ(e.status, 0) << e.said;
    EXPECT_TRUE(contains(e.said, what)) << e.said;
  }
}

Tensor of_other_shape(const Tensor& e, bool faulty) { return tower::psum(faulty ? e.slice(0, 0, 2) : e, "data"); }
Tensor of_other_dtype(const Tensor& e, bool faulty) { return tower::psum(faulty ? e.to(at::kFloat) : e, "data"); }
Tensor by_another(const Tensor& e, bool faulty) { return faulty ? tower::pmax(e, "data") : tower::psum(e, "data"); }
Tensor once_more(const Tensor& e, bool faulty) {
  return tower::psum(faulty ? tower::psum(e.slice(0, 0, 1), "data") + e : e, "data");
}

Tensor to_others_of_other_shape(const Tensor& e, bool faulty) {
  return tower::ppermute(faulty ? e.slice(0, 0, 2) : e, "data", {{0, 2}, {2, 0}});
}
Tensor to_others(const Tensor& e, bool faulty) {
  return faulty ? tower::ppermute(e, "data", {{0, 2}, {2, 0}}) : tower::psum(e, "data");
}

TEST_F(Faults, CollectivesThatDifferAreErrorsWithoutTheCheck) {
  for (const auto f : {of_other_shape, of_other_dtype, by_another, once_more, to_others_of_other_shape, to_others})
    for (const Ended& e : differing(false, f)) {
      record_times({e});
      EXPECT_EQ(e.status, 0) << e.said;
      EXPECT_TRUE(contains(e.said, "over axis 'data'") || contains(e.said, "process")) << e.said;
    }
}

TEST_F(Faults, TheCheckSaysWhatDiffers) {
  expect_both_told(differing(true, of_other_shape), "psum of Double [2]");
  expect_both_told(differing(true, of_other_dtype), "psum of Float [3]");
  expect_both_told(differing(true, by_another), "pmax of Double [3]");
  expect_both_told(differing(true, once_more), "psum of Double [1]");
  expect_both_told(differing(true, to_others_of_other_shape), "ppermute of rows of Double [2]");
}

// ---- meshes that cannot be made ------------------------------------------------------------------------------------

TEST(Meshes, SayWhatIsMissing) {
  if (!processes::can_start()) GTEST_SKIP() << "Tower was built without meshes of processes";
  const std::string text = message_of<tower::MeshError>([] { Mesh::from_environment({{"data", -1}}); });
  EXPECT_TRUE(contains(text, "the variable RANK is not set. Start the program with torchrun, or with script/launch"))
      << text;
}

TEST(Meshes, HaveProcessesThatAreNumbered) {
  processes::expect_all(1, [](int) {
    ::setenv("RANK", "7", 1);
    const std::string text = message_of<tower::MeshError>([] { Mesh::from_environment({{"data", -1}}); });
    EXPECT_TRUE(contains(text, "RANK is 7, but there are 1 processes (WORLD_SIZE), numbered from 0")) << text;
  });
}

TEST(Meshes, HaveAxesThatFitTheProcesses) {
  processes::expect_all(1, [](int) {
    const auto refused = [](std::vector<tower::MeshAxis> axes) {
      return message_of<tower::MeshError>([&] { Mesh::from_environment(std::move(axes)); });
    };
    EXPECT_TRUE(contains(refused({{"data", 2}}), "the axes (data 2) do not fit 1 processes")) << refused({{"data", 2}});
    EXPECT_TRUE(contains(refused({}), "it has no axes"));
    EXPECT_TRUE(contains(refused({{"a", 1}, {"a", 1}}), "two axes are called 'a'"));
    EXPECT_TRUE(contains(refused({{"a", 0}}), "axis 'a' has size 0"));
    const Mesh mesh = mesh_of_all();
    const std::string unknown = message_of<tower::MeshError>(
        [&] { tower::vmap([](const Tensor& e) { return e; }, {.axis = "model", .across = mesh})(waves({2})); });
    EXPECT_TRUE(contains(unknown, "there is no axis 'model'; there is 'data'")) << unknown;
    const std::string unnamed = message_of<tower::ArgumentError>(
        [&] { tower::vmap([](const Tensor& e) { return e; }, {.across = mesh})(waves({2})); });
    EXPECT_TRUE(contains(unnamed, "along which axis is not said")) << unnamed;
  });
}

}  // namespace
