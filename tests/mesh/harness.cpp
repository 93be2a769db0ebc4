#include "mesh/harness.h"

#include <ATen/Parallel.h>
#include <ATen/ops/scalar_tensor.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <thread>

namespace processes {
namespace {

using Clock = std::chrono::steady_clock;

// One that nobody listens at now, and that the system gives to no connection meanwhile: those are above 32768.
int free_port() {
  static std::minstd_rand numbers(static_cast<unsigned>(::getpid()));
  for (int tries = 0; tries < 100; ++tries) {
    const int port = std::uniform_int_distribution<int>(16'384, 32'767)(numbers);
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool free = ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    ::close(socket);
    if (free) return port;
  }
  throw std::runtime_error("no free port");
}

// In memory that processes share with those that they fork.
std::atomic<int64_t>& counter() {
  static auto* shared =
      new (::mmap(nullptr, sizeof(std::atomic<int64_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          std::atomic<int64_t>;
  return *shared;
}

std::string output_of(pid_t test, int rank) {
  return testing::TempDir() + "tower_process_" + std::to_string(test) + "_" + std::to_string(rank);
}

[[noreturn]] void run_child(int rank, int count, int port, const std::string& output,
                            const std::function<void(int)>& body) {
  const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(count).c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  at::set_num_threads(1);
  std::signal(SIGPIPE, SIG_IGN);  // as docs/processes.md says
  int status = 0;
  try {
    body(rank);
    if (testing::Test::HasFailure()) status = 1;
  } catch (const std::exception& error) {
    std::cout << "threw: " << error.what() << '\n';
    status = 2;
  }
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace

std::vector<Ended> start(int count, const std::function<void(int)>& body, std::chrono::seconds limit) {
  counter();
  const int port = free_port();
  const pid_t test = ::getpid();
  std::vector<pid_t> children;
  std::cout.flush();
  const auto begin = Clock::now();
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) run_child(rank, count, port, output_of(test, rank), body);
    children.push_back(child);
  }
  std::vector<Ended> ended(static_cast<size_t>(count));
  std::vector<bool> done(ended.size()), stopped(ended.size());
  for (int left = count; left > 0; std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
    // One that stopped itself is ended when all others have.
    const bool late = Clock::now() - begin > limit || std::count(stopped.begin(), stopped.end(), true) == left;
    for (size_t r = 0; r < ended.size(); ++r) {
      if (done[r]) continue;
      if (late) {
        ended[r].in_time = stopped[r];
        ::kill(children[r], SIGKILL);
      }
      int status = 0;
      if (::waitpid(children[r], &status, late ? 0 : WNOHANG | WUNTRACED) != children[r]) continue;
      if (WIFSTOPPED(status)) {
        stopped[r] = true;
        continue;
      }
      stopped[r] = false;
      done[r] = true;
      --left;
      ended[r].seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      if (WIFEXITED(status)) ended[r].status = WEXITSTATUS(status);
      else ended[r].signal = WTERMSIG(status);
    }
  }
  for (int rank = 0; rank < count; ++rank) {
    const std::string path = output_of(test, rank);
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    Ended& its = ended[static_cast<size_t>(rank)];
    its.said = text.str();
    if (its.signal != 0) its.said += std::string("ended by ") + ::strsignal(its.signal) + '\n';
    ::unlink(path.c_str());
  }
  return ended;
}

void expect_well(const std::vector<Ended>& ended) {
  for (size_t r = 0; r < ended.size(); ++r) {
    EXPECT_TRUE(ended[r].in_time) << "process " << r << " of " << ended.size() << " hung:\n" << ended[r].said;
    EXPECT_EQ(ended[r].status, 0) << "process " << r << " of " << ended.size() << ":\n" << ended[r].said;
  }
}

void expect_all(int count, const std::function<void(int)>& body) {
  if (!can_start()) GTEST_SKIP() << "Tower was built without meshes of processes";
  expect_well(start(count, body, std::chrono::seconds(60)));
}

void count_comparison() { ++counter(); }
int64_t comparisons() { return counter(); }

bool can_start() { return TOWER_TESTS_START; }

tower::Mesh mesh_of_all(bool check) {
  return tower::Mesh::from_environment({{"data", -1}}, {.timeout = std::chrono::seconds(20), .check = check});
}

bool all_went_well(const tower::Mesh& mesh, bool here) {
  try {
    double failed = here ? 0 : 1;
    for (const tower::MeshAxis& axis : mesh.axes())
      failed = tower::sum_across(mesh, axis.name, at::scalar_tensor(failed, at::kDouble)).item<double>();
    return failed == 0;
  } catch (const tower::MeshError&) {
    return false;
  }
}

}  // namespace processes
