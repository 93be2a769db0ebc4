// What processes cost: a psum beside c10d's own all_reduce, a tree of small tensors beside one, and how the throughput
// of two workloads grows from one process to two, each of one thread with a part of the same size; docs/processes.md
// puts the numbers into a model of many.
//
//   processes
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tower/tower.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "data/digits.h"
#include "material_newton/newton.h"
#include "mesh/gloo.h"
#include "private_digits/network.h"
#include "support/report.h"

namespace {

using at::Tensor;
using Seconds = std::chrono::duration<double>;

constexpr double kPsumBudget = 1.2, kTreeBudget = 2, kScalingGoal = 1.8;

double seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return Seconds(std::chrono::steady_clock::now() - start).count();
}

/// The shortest of runs that take turns: of processes that wait for each other, any other work on the machine delays
/// all.
std::vector<double> shortest(const std::vector<std::function<void()>>& runs, int rounds) {
  std::vector<double> result(runs.size(), std::numeric_limits<double>::infinity());
  for (int round = 0; round < rounds; ++round)
    for (size_t k = 0; k < runs.size(); ++k) result[k] = std::min(result[k], seconds(runs[k]));
  return result;
}

// A group of c10d as it comes.
c10::intrusive_ptr<c10d::Backend> group_beside(const tower::Mesh& mesh) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  options.isServer = mesh.rank() == 0;
  options.numWorkers = static_cast<size_t>(mesh.size());
  options.multiTenant = true;
  const auto shared = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  return tower::mesh::make_gloo(c10::make_intrusive<c10d::PrefixStore>("beside", shared), static_cast<int>(mesh.rank()),
                                static_cast<int>(mesh.size()), std::chrono::seconds(30), "127.0.0.1");
}

constexpr int kPsums = 20;
constexpr int64_t kMany = 4 << 20;  // floats

/// What `f` does to a vector, many times within one call.
std::function<void()> inside(const tower::Mesh& mesh, std::function<void(const Tensor&)> f) {
  const auto many = [f = std::move(f)](const Tensor& x) {
    for (int i = 0; i < kPsums; ++i) f(x);
    return x;
  };
  return [mapped = tower::vmap(many, {.axis = "data", .across = mesh})] { mapped(at::ones({1, 4})); };
}

void collectives(const tower::Mesh& mesh) {
  const auto beside = group_beside(mesh);
  const auto times = shortest({[&] {
                                 std::vector<Tensor> t{at::ones({4})};
                                 for (int i = 0; i < kPsums; ++i) beside->allreduce(t)->wait();
                               },
                               inside(mesh, [](const Tensor& x) { tower::psum(x, "data"); }),
                               inside(mesh, [](const Tensor& x) { tower::psum(std::vector<Tensor>(100, x), "data"); })},
                              100);
  const Tensor large = at::ones({1, kMany});
  const auto of_large = shortest(
      {[&, t = std::vector<Tensor>{at::ones({kMany})}]() mutable { beside->allreduce(t)->wait(); },
       [&, mapped = tower::vmap([](const Tensor& x) { return tower::psum(x, "data"); },
                                {.out_dims = std::nullopt, .axis = "data", .across = mesh})] { mapped(large); }},
      20);
  if (mesh.rank() != 0) return;
  const double base = times[0] / kPsums, one = times[1] / kPsums, many = times[2] / kPsums;
  report::Table table({fmt::format("{} processes", mesh.size()), "µs", "ratio", "budget", ""});
  table.add({"c10d's all_reduce of 4 floats", fmt::format("{:.0f}", 1e6 * base), "", "", ""});
  table.add({"psum of 4 floats", fmt::format("{:.0f}", 1e6 * one), fmt::format("{:.2f}", one / base),
             fmt::format("{:.2f}", kPsumBudget), report::verdict(one / base, kPsumBudget)});
  table.add({"psum of 100 tensors of 4 floats", fmt::format("{:.0f}", 1e6 * many), fmt::format("{:.2f}", many / one),
             fmt::format("{:.2f}", kTreeBudget), report::verdict(many / one, kTreeBudget)});
  table.add({"c10d's all_reduce of 16 MiB", fmt::format("{:.0f}", 1e6 * of_large[0]), "", "", ""});
  table.add({"psum of 16 MiB", fmt::format("{:.0f}", 1e6 * of_large[1]),
             fmt::format("{:.2f}", of_large[1] / of_large[0]), "", ""});
  table.print();
  fmt::print("\n");
}

// How much of the sums of gradients is hidden behind the backward pass.
void overlap(const tower::Mesh& mesh) {
  constexpr int64_t kWidth = 1024, kExamples = 128;  // 4 MiB for each layer
  at::manual_seed(1);
  std::vector<Tensor> weights;
  for (int layer = 0; layer < 4; ++layer) weights.push_back(at::randn({kWidth, kWidth}) / 32);
  const Tensor x = at::randn({kExamples, kWidth});
  const auto gradient = [](const tower::Mesh& across) {
    const auto of_one = [](const std::vector<Tensor>& layers, const Tensor& example) {
      Tensor h = example;
      for (const Tensor& w : layers) h = at::mv(w, h).tanh();
      return tower::psum(h.square().sum(), "data");
    };
    return tower::grad(tower::vmap(
        of_one, {.in_dims = {std::nullopt, 0}, .out_dims = std::nullopt, .axis = "data", .across = across}));
  };
  const auto times =
      shortest({[&, own = gradient({})] { own(weights, x); }, [&] { tower::sum_across(mesh, "data", weights); },
                [&, all = gradient(mesh)] { all(weights, x); }},
               15);
  if (mesh.rank() != 0) return;
  fmt::print(
      "{} processes: a gradient of four layers of 4 MiB takes {:.1f} ms, their sum {:.1f} ms, the gradient of all "
      "{:.1f} ms\n\n",
      mesh.size(), 1e3 * times[0], 1e3 * times[1], 1e3 * times[2]);
}

/// The time that half of the runs take at most: processes that do not wait for each other do not begin and end
/// together.
double median(const std::function<void()>& run) {
  std::vector<double> times(41);
  for (double& t : times) t = seconds(run);
  std::nth_element(times.begin(), times.begin() + 20, times.end());
  return times[20];
}

/// Seconds of one step of a workload on a part of fixed size.
double digits_step(const tower::Mesh& mesh, int64_t images) {
  const auto data = digits::load();
  const digits::Set batch = data.train.select(at::arange(images));
  at::manual_seed(1);
  private_digits::DigitNet network;
  const auto parameters = tower::parameters_of(network);
  const auto of_one = [gradient = tower::grad(private_digits::loss_of(network))](
                          const private_digits::Parameters& p, const Tensor& image, const Tensor& label) {
    return tower::psum(gradient(p, image, label), "data");
  };
  const auto step =
      tower::vmap(of_one, {.in_dims = {std::nullopt, 0, 0}, .out_dims = std::nullopt, .axis = "data", .across = mesh});
  return median([&] { step(parameters, batch.images, batch.labels); });
}

double newton_step(const tower::Mesh& mesh, int64_t n) {
  using namespace material_newton;
  const auto f64 = at::dtype(at::kDouble);
  at::manual_seed(1);
  const Material material{Constants{}};
  const Step step{3e-3 * at::randn({n, 6}, f64), at::ones({n}, f64), at::zeros({n, 6}, f64), at::zeros({n}, f64)};
  const Tensor x = first_guess(material, step);
  // Whether to go on is decided together.
  const auto correct = tower::vmap(
      [&](const Tensor& one, const Step& s) {
        const auto [corrected, norm] = correct_one_point(material, one, s);
        return std::pair(corrected, tower::pmax(norm, "data"));
      },
      {.out_dims = {0, std::nullopt}, .axis = "data", .across = mesh});
  return median([&] { correct(x, step); });
}

using Body = std::function<std::vector<double>(const tower::Mesh&)>;

/// Runs in `count` processes what gives numbers, and gives the mean of each.
std::vector<double> in_processes(int count, const Body& body) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw std::runtime_error("no free port");
  ::close(listener);
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
  std::fflush(nullptr);
  for (int rank = 0; rank < count; ++rank) {
    if (::fork() != 0) continue;
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(count).c_str(), 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(ntohs(address.sin_port)).c_str(), 1);
    at::set_num_threads(1);
    int status = EXIT_SUCCESS;
    try {
      const tower::Mesh mesh = tower::Mesh::from_environment({{"data", -1}}, {.timeout = std::chrono::seconds(60)});
      const Tensor all = at::tensor(body(mesh), at::kDouble);
      const Tensor mean = tower::sum_across(mesh, "data", all) / count;
      if (rank == 0 && ::write(ends[1], mean.const_data_ptr(), static_cast<size_t>(mean.nbytes())) < 0)
        status = EXIT_FAILURE;
    } catch (const std::exception& error) {
      fmt::print(stderr, "processes: {}\n", error.what());
      status = EXIT_FAILURE;
    }
    std::fflush(nullptr);
    ::_exit(status);
  }
  ::close(ends[1]);
  std::vector<double> numbers(8);
  const auto read = ::read(ends[0], numbers.data(), numbers.size() * sizeof(double));
  ::close(ends[0]);
  bool well = true;
  for (int status = 0; ::wait(&status) > 0;) well = well && status == 0;
  if (!well || read < 0) throw std::runtime_error("a process failed");
  numbers.resize(static_cast<size_t>(read) / sizeof(double));
  return numbers;
}

int run() {
  for (const int count : {2, 3, 4})
    in_processes(count, [](const tower::Mesh& mesh) {
      collectives(mesh);
      if (mesh.size() == 2) overlap(mesh);
      return std::vector<double>{0};
    });
  // The parts of the examples, and such as take longer between two messages.
  const auto steps = [](const tower::Mesh& mesh) {
    return std::vector{digits_step(mesh, 256), newton_step(mesh, 10'000), digits_step(mesh, 1024),
                       newton_step(mesh, 40'000)};
  };
  // Two processes that do not speak with each other: what the machine has for two.
  const auto silently = [&](const tower::Mesh& mesh) {
    tower::sum_across(mesh, "data", at::ones({1}));  // they begin at the same time
    return steps({});
  };
  std::vector<double> one, two, silent;
  const auto best = [](std::vector<double>& so_far, const std::vector<double>& found) {
    if (so_far.empty()) so_far = found;
    for (size_t k = 0; k < found.size(); ++k) so_far[k] = std::min(so_far[k], found[k]);
  };
  for (int turn = 0; turn < 5; ++turn) {
    best(one, in_processes(1, steps));
    best(two, in_processes(2, steps));
    best(silent, in_processes(2, silently));
  }
  report::Table table({"a step, a part for each process", "1 process, ms", "2 processes, ms", "throughput", "goal", "",
                       "2 that do not speak, ms", "throughput"});
  const char* names[] = {"private_digits, 256 images", "material_newton, 10,000 points", "private_digits, 1,024 images",
                         "material_newton, 40,000 points"};
  for (size_t k = 0; k < std::size(names); ++k)
    table.add({names[k], fmt::format("{:.2f}", 1e3 * one[k]), fmt::format("{:.2f}", 1e3 * two[k]),
               fmt::format("{:.2f}", 2 * one[k] / two[k]), fmt::format("{:.2f}", kScalingGoal),
               report::verdict(-2 * one[k] / two[k], -kScalingGoal), fmt::format("{:.2f}", 1e3 * silent[k]),
               fmt::format("{:.2f}", 2 * one[k] / silent[k])});
  table.print();
  return EXIT_SUCCESS;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "processes: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
