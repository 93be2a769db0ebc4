// Meshes that cannot be made are errors in time, and such that can are made at once.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::Ended;
using tower::Mesh;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeout{2};
constexpr double kInTime = 5;  // seconds: the timeout, and a busy machine

Mesh made() { return Mesh::from_environment({{"data", -1}}, {.timeout = kTimeout}); }
Tensor total(const Mesh& mesh) { return tower::sum_across(mesh, "data", number(1)); }

// What this process is told, and that it is in time.
std::string refused() {
  const auto start = Clock::now();
  std::string text = message_of<tower::MeshError>([] { made(); });
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), kInTime) << text;
  return text;
}

class Making : public testing::Test {
  void SetUp() override {
    if (!processes::can_start()) GTEST_SKIP() << "Tower was built without meshes of processes";
  }
};

TEST_F(Making, NamesAProcessThatDoesNotCome) {
  processes::expect_all(2, [](int rank) {
    ::setenv("WORLD_SIZE", "4", 1);
    if (rank == 1) ::setenv("RANK", "2", 1);
    const std::string text = refused();
    // Process 0 may end with the store before the other has asked who is missing.
    EXPECT_TRUE(contains(text, "processes 1, 3 of 4 did not come") ||
                (rank == 1 && contains(text, "waiting for the others: the mesh's store does not answer: process 0")))
        << text;
  });
}

TEST_F(Making, NamesTheProcessThatEndedWithTheStore) {
  const auto ended = processes::start(2, [](int rank) {
    ::setenv("WORLD_SIZE", "3", 1);  // one does not come
    if (rank == 0)
      std::thread([] { std::this_thread::sleep_for(std::chrono::milliseconds(500)), ::raise(SIGKILL); }).detach();
    const std::string text = refused();
    EXPECT_TRUE(contains(text,
                         "waiting for the others: the mesh's store does not answer: process 0, or torchrun, which "
                         "holds it, has ended ("))
        << text;
  });
  EXPECT_EQ(ended[0].status, -1);
  EXPECT_EQ(ended[1].status, 0) << ended[1].said;
}

TEST_F(Making, NamesTheStoreThatIsNotThere) {
  processes::expect_all(1, [](int) {
    ::setenv("RANK", "1", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    const std::string text = refused();
    EXPECT_TRUE(contains(text, "Mesh::from_environment (process 1 of 2 at 127.0.0.1:")) << text;
    EXPECT_TRUE(contains(text, "waiting for the store of process 0 at 127.0.0.1:")) << text;
  });
}

// Somebody listens who says nothing.
TEST_F(Making, DoesNotWaitForAStoreThatIsSilent) {
  processes::expect_all(1, [](int) {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT"))));
    ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(listener, 5), 0);
    ::setenv("RANK", "1", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    const std::string text = refused();
    EXPECT_TRUE(contains(text, "waiting for the store of process 0")) << text;
    ::setenv("RANK", "0", 1);
    refused();
  });
}

TEST_F(Making, ComparesHowManyProcessesThereAre) {
  processes::expect_all(2, [](int rank) {
    if (rank == 0) ::setenv("WORLD_SIZE", "3", 1);
    const std::string text = refused(), two = "of 2 processes, with axes data 2",
                      three = "of 3 processes, with axes data 3";
    EXPECT_TRUE(contains(text, "do not make the same mesh: here it is one " + (rank == 0 ? three : two))) << text;
    EXPECT_TRUE(contains(text, "in process " + std::to_string(1 - rank) + " one " + (rank == 0 ? two : three))) << text;
  });
}

TEST_F(Making, IsNotHeldUpByAProcessThatDies) {
  const auto ended = processes::start(3, [](int rank) {
    if (rank == 1) {
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ::raise(SIGKILL);
      }).detach();
      made();
      ::raise(SIGKILL);
    }
    const auto start = Clock::now();
    message_of<tower::MeshError>([] { total(made()); });
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 2 * kInTime);
  });
  for (const int rank : {0, 2})
    EXPECT_EQ(ended[static_cast<size_t>(rank)].status, 0) << ended[static_cast<size_t>(rank)].said;
}

TEST_F(Making, TakesMillisecondsHoweverManyWereMadeBefore) {
  processes::expect_all(2, [](int) {
    double most = 0;
    for (int i = 0; i < 100; ++i) {
      const auto start = Clock::now();
      const Mesh mesh = made();
      EXPECT_EQ(total(mesh).item<double>(), 2);
      most = std::max(most, std::chrono::duration<double>(Clock::now() - start).count());
    }
    EXPECT_LT(most, 1.5) << "seconds for one";
  });
}

TEST_F(Making, GoesOnAfterAMeshThatCouldNotBeMade) {
  processes::expect_all(2, [](int rank) {
    const std::string text = message_of<tower::MeshError>([&] {
      Mesh::from_environment({{"data", rank == 0 ? 2 : -1}, {"model", rank == 0 ? 1 : 2}}, {.timeout = kTimeout});
    });
    EXPECT_TRUE(contains(text, "with axes data 2 model 1")) << text;
    EXPECT_TRUE(contains(text, "with axes data 1 model 2")) << text;
    EXPECT_EQ(total(made()).item<double>(), 2);
  });
}

TEST_F(Making, RefusesNumbersThatDoNotFit) {
  processes::expect_all(1, [](int) {
    const auto with = [](const char* name, const char* value) {
      const std::string before = std::getenv(name);
      ::setenv(name, value, 1);
      const std::string text = refused();
      ::setenv(name, before.c_str(), 1);
      return text;
    };
    EXPECT_TRUE(contains(with("MASTER_PORT", "70000"), "MASTER_PORT is 70000, and the most is 65535"));
    EXPECT_TRUE(contains(with("WORLD_SIZE", "99999999999"), "WORLD_SIZE is 99999999999, and the most is 2147483647"));
    EXPECT_TRUE(contains(with("RANK", "99999999999999999999999"), "and the most is 2147483647"));
    EXPECT_TRUE(contains(with("RANK", "-1"), "RANK is '-1', which is no number"));
    EXPECT_TRUE(contains(with("WORLD_SIZE", "2x"), "WORLD_SIZE is '2x', which is no number"));
    EXPECT_TRUE(contains(with("MASTER_PORT", ""), "MASTER_PORT is '', which is no number"));
  });
}

TEST_F(Making, SaysWhatGlooSays) {
  processes::expect_all(1, [](int) {
    ::setenv("GLOO_SOCKET_IFNAME", "nosuch0", 1);
    const std::string text = refused();
    EXPECT_TRUE(contains(text, "by GLOO_SOCKET_IFNAME=nosuch0: ")) << text;
    EXPECT_TRUE(contains(text, "Unable to find address for: nosuch0")) << text;
  });
}

// A limit that leaves no room for another thread.
void leave_no_memory() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto bytes = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE));
  const rlimit limit{bytes + (1 << 20), RLIM_INFINITY};
  ::setrlimit(RLIMIT_AS, &limit);
}

TEST_F(Making, WithoutMemoryForAThreadIsAnError) {
  processes::expect_all(1, [](int) {
    leave_no_memory();
    const std::string text = refused();
    EXPECT_TRUE(contains(text, "Mesh::from_environment (process 0 of 1 at 127.0.0.1:")) << text;
  });
}

// The connections are closed, so that the other is told at once.
TEST_F(Making, GivesUpWithoutMemoryForAThread) {
  const auto ended = processes::start(2, [](int rank) {
    const Mesh mesh = Mesh::from_environment({{"data", -1}}, {.timeout = std::chrono::seconds(20)});
    const auto f = [&](const Tensor& e) {
      if (rank == 0) return tower::psum(e, "data");
      leave_no_memory();
      throw std::runtime_error("no more of this");
    };
    const auto mapped = tower::vmap(f, {.axis = "data", .across = mesh});
    const auto start = Clock::now();
    if (rank == 1) EXPECT_EQ(message_of<std::runtime_error>([&] { mapped(waves({1, 2})); }), "no more of this");
    else message_of<tower::MeshError>([&] { mapped(waves({1, 2})); });
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), kInTime);
  });
  for (const Ended& e : ended) EXPECT_EQ(e.status, 0) << e.said;
}

TEST_F(Making, IsForTheProcessAloneThatMadeIt) {
  processes::expect_all(2, [](int) {
    const Mesh mesh = made();
    total(mesh);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto start = Clock::now();
      const std::string text = message_of<tower::MeshError>([&] { total(mesh); });
      const bool in_time = std::chrono::duration<double>(Clock::now() - start).count() < kInTime;
      { const Mesh gone = std::move(const_cast<Mesh&>(mesh)); }  // closes nothing
      ::_exit(in_time && contains(text, "this process was forked from one of the mesh's") ? 0 : 1);
    }
    int status = -1;
    for (int tries = 0; tries < 2000 && ::waitpid(child, &status, WNOHANG) == 0; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (status == -1) ::kill(child, SIGKILL);
    EXPECT_EQ(status, 0) << "of the process that was forked";
    EXPECT_EQ(total(mesh).item<double>(), 2);  // the mesh goes on
  });
}

}  // namespace
