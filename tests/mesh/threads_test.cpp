// Threads of a process: each with a mesh of its own, several with one in turns, or at the same time, which is refused.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "mesh/harness.h"
#include "support/prelude.h"
#include "tower/tower.h"

namespace {

using processes::expect_all;
using processes::mesh_of_all;
using tower::Mesh;

constexpr int kThreads = 3;
constexpr auto kTwoThreads = "two threads use the mesh at the same time";

Mesh mesh_of(const std::string& axis) {
  return Mesh::from_environment({{axis, -1}}, {.timeout = std::chrono::seconds(5)});
}

// Runs `f` on threads of their own, each with its number, and throws what the first of them threw.
void in_threads(int count, const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> thrown(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      try {
        f(i);
      } catch (...) {
        thrown[static_cast<size_t>(i)] = std::current_exception();
      }
    });
  for (std::thread& t : threads) t.join();
  for (const auto& error : thrown)
    if (error) std::rethrow_exception(error);
}

void wait_for(const std::function<bool()>& condition) {
  for (int i = 0; i < 400 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(condition());
}

Tensor loss_of(const Tensor& w, const Tensor& x, const std::string& axis, const Mesh& mesh) {
  const auto of_one = [&](const Tensor& v, const Tensor& e) {
    return tower::pmean((at::dot(v, e).sin() + v.sum()).square(), axis);
  };
  return tower::vmap(of_one, {.in_dims = {std::nullopt, 0}, .out_dims = std::nullopt, .axis = axis, .across = mesh})(w,
                                                                                                                     x);
}

// Other numbers in each thread, many times, in one process and in all.
void expect_derivatives(int thread, const Mesh& mesh, const std::string& axis) {
  for (int i = 0; i < 20; ++i) {
    const Tensor w = waves({3}, thread + 0.1 * i), x = waves({4 + thread, 3}, 0.2 * i);
    const Tensor own = tower::part_of(mesh, axis, x);
    const auto spread = [&](const Tensor& v) { return loss_of(v, own, axis, mesh); };
    const auto whole = [&](const Tensor& v) { return loss_of(v, x, axis, {}); };
    EXPECT_TRUE(same(tower::grad(spread)(w), tower::grad(whole)(w))) << "thread " << thread << ", round " << i;
    EXPECT_TRUE(same(tower::hessian(spread)(w), tower::hessian(whole)(w))) << "thread " << thread << ", round " << i;
  }
}

// Graphs of both meshes are looked up in both threads, in opposite order: neither waits for the other.
TEST(ThreadsWithTwoMeshes, CallCompiledFunctionsOfBothInOppositeOrder) {
  expect_all(2, [](int rank) {
    // Each thread has a mesh of its own for each axis; those of a thread are used in its order, in all processes.
    std::vector<std::vector<Mesh>> meshes;
    for (int t = 0; t < 2; ++t) meshes.push_back({mesh_of("a"), mesh_of("b")});
    in_threads(2, [&](int thread) {
      const auto& mine = meshes[static_cast<size_t>(thread)];
      const Tensor w = waves({3}), x = waves({6, 3}, 0.7);
      const auto mean = [&](const std::string& axis, const Mesh& mesh) {
        return tower::compile([=](const Tensor& v, const Tensor& e) { return loss_of(v, e, axis, mesh); });
      };
      const auto of_a = mean("a", mine[0]), of_b = mean("b", mine[1]);
      const Tensor expected = loss_of(w, x, "a", {});
      for (int i = 0; i < 20; ++i)
        for (const bool a : thread == 0 ? std::vector{true, false} : std::vector{false, true}) {
          const auto& f = a ? of_a : of_b;
          EXPECT_TRUE(same(f(w, x.narrow(0, 3 * rank, 3)), expected)) << i;
        }
    });
  });
}

TEST(Threads, EachWithAMeshOfItsOwnRunAtTheSameTime) {
  expect_all(2, [](int) {
    std::vector<Mesh> meshes;
    for (int i = 0; i < kThreads; ++i) meshes.push_back(mesh_of_all());
    in_threads(kThreads, [&](int i) { expect_derivatives(i, meshes[static_cast<size_t>(i)], "data"); });
  });
}

// The processes' threads come to it in different orders.
TEST(Threads, MakeMeshesAtTheSameTimeWhoseAxesHaveOtherNames) {
  expect_all(2, [](int rank) {
    tower::sum_across(mesh_of_all(), "data", number(1));  // both are there
    in_threads(kThreads, [&](int i) {
      const int place = rank == 0 ? i : kThreads - 1 - i;
      std::this_thread::sleep_for(std::chrono::milliseconds(150 * place));
      const std::string axis = "axis of thread " + std::to_string(i);
      const Mesh mesh = mesh_of(axis);
      expect_derivatives(i, mesh, axis);
    });
  });
}

TEST(Threads, MayTakeTurnsWithOneMesh) {
  expect_all(2, [](int) {
    const Mesh mesh = mesh_of_all();
    for (int i = 0; i < 4; ++i) in_threads(1, [&](int) { expect_derivatives(i, mesh, "data"); });
    expect_derivatives(4, mesh, "data");
  });
}

// LibTorch's own generator would be drawn from by all of them, in another order in each process.
TEST(Threads, DrawFromGeneratorsOfTheirOwn) {
  expect_all(2, [](int) {
    std::vector<Mesh> meshes;
    for (int i = 0; i < kThreads; ++i) meshes.push_back(mesh_of_all());
    in_threads(kThreads, [&](int i) {
      const Mesh& mesh = meshes[static_cast<size_t>(i)];
      const Tensor x = waves({4, 3}), own = tower::part_of(mesh, "data", x);
      const auto drawn = [&](const Tensor& examples, const Mesh& across) {
        const at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(i));
        const auto f = [&](const Tensor& e) { return e + at::randn({3}, generator, e.options()); };
        const auto mapped =
            tower::vmap(f, {.randomness = tower::Randomness::different, .axis = "data", .across = across});
        return at::stack({mapped(examples), mapped(examples)});
      };
      for (int k = 0; k < 10; ++k)
        EXPECT_TRUE(same(drawn(own, mesh), tower::part_of(mesh, "data", drawn(x, {}), 1))) << "thread " << i;
    });
  });
}

// What a second thread gets that comes while `first` holds the mesh of process 0; `first` is told when it may go on.
void expect_refused(const std::function<void(const Mesh&, const std::function<void()>& wait)>& first,
                    const std::function<void(const Mesh&)>& second) {
  const std::string tried = testing::TempDir() + "tower_tried_" + std::to_string(::getpid());
  expect_all(2, [&](int rank) {
    const Mesh mesh = mesh_of_all();
    std::atomic<bool> within = false;
    const auto wait_until_refused = [&] {
      within = true;
      wait_for([&] { return std::filesystem::exists(tried); });
    };
    const auto refused = [&] {
      const std::string text = message_of<tower::MeshError>([&] { first(mesh, wait_until_refused); });
      EXPECT_TRUE(contains(text, kTwoThreads)) << text;
      EXPECT_EQ(contains(text, "process 0 of the mesh") || contains(text, "process 0 gave up"), rank == 1) << text;
    };
    if (rank == 1) return refused();
    in_threads(2, [&](int i) {
      if (i == 0) return refused();
      wait_for([&] { return within.load(); });
      const std::string text = message_of<tower::MeshError>([&] { second(mesh); });
      std::ofstream(tried) << "tried";
      EXPECT_TRUE(contains(text, kTwoThreads)) << text;
      EXPECT_TRUE(contains(text, "over axis 'data' (process 0 of 2)")) << text;
    });
    const std::string after = message_of<tower::MeshError>([&] { second(mesh); });
    EXPECT_TRUE(contains(after, "the mesh is of no more use since")) << after;
  });
  std::filesystem::remove(tried);
}

Tensor total(const Mesh& mesh) {
  return tower::vmap([](const Tensor& e) { return tower::psum(e, "data"); },
                     {.out_dims = std::nullopt, .axis = "data", .across = mesh})(waves({2}));
}

TEST(Threads, AreRefusedWhileAnotherIsInAVmapAcrossTheMesh) {
  const auto first = [](const Mesh& mesh, const std::function<void()>& wait) {
    const auto f = [&](const Tensor& e) {
      wait();
      return tower::psum(e, "data");
    };
    tower::vmap(f, {.axis = "data", .across = mesh})(waves({2}));
  };
  expect_refused(first, [](const Mesh& mesh) { total(mesh); });
  expect_refused(first, [](const Mesh& mesh) { tower::sum_across(mesh, "data", waves({2})); });
}

// Also one whose vmap has no collective any more is told: its numbers may be those of another thread.
TEST(Threads, ThatCameFirstAreToldAtTheEndOfTheirVmap) {
  expect_all(1, [&](int) {
    const Mesh mesh = mesh_of_all();
    const auto f = [&](const Tensor& e) {
      std::thread([&] { message_of<tower::MeshError>([&] { total(mesh); }); }).join();
      return e.sin();
    };
    const std::string text =
        message_of<tower::MeshError>([&] { tower::vmap(f, {.axis = "data", .across = mesh})(waves({2})); });
    EXPECT_TRUE(contains(text, std::string("vmap over axis 'data' (process 0 of 1): ") + kTwoThreads)) << text;
  });
}

// While process 1 does not come to the sum, process 0 computes.
TEST(Threads, ComputeWhileOneWaitsForACollective) {
  const std::string done = testing::TempDir() + "tower_computed_" + std::to_string(::getpid());
  expect_all(2, [&](int rank) {
    const Mesh mesh = mesh_of_all();
    const auto collective = [&](int) { EXPECT_TRUE(same(total(mesh), 2 * waves({2}).sum())); };
    if (rank == 1) {
      wait_for([&] { return std::filesystem::exists(done); });
      return collective(0);
    }
    in_threads(2, [&](int i) {
      if (i == 0) return collective(0);
      const auto f = [](const Tensor& x) { return (x.sin() * x).sum(); };
      for (int k = 0; k < 50; ++k) {
        const Tensor x = waves({3, 4}, 0.1 * k);
        EXPECT_TRUE(same(tower::vmap(tower::grad(f))(x), x.cos() * x + x.sin()));
        EXPECT_TRUE(same(tower::vmap([](const Tensor& e) { return tower::psum(e, "data"); },
                                     {.out_dims = std::nullopt, .axis = "data"})(x),
                         x.sum(0)));
      }
      std::ofstream(done) << "done";
    });
  });
  std::filesystem::remove(done);
}

// A backward pass within a backward pass; beyond 60 of them LibTorch's autograd goes on in another thread.
TEST(Threads, OfLibTorchsAutogradCallCollectives) {
  expect_all(2, [](int rank) {
    const Mesh mesh = mesh_of_all();
    const Tensor x = waves({4, 3}), own = x.narrow(0, 2 * rank, 2);
    std::vector<std::thread::id> threads;
    const std::function<void(int)> backward = [&](int depth) {
      Tensor w = waves({3}, 0.1 * depth).requires_grad_();
      Tensor loss = loss_of(w, own, "data", mesh);
      if (depth < 65) {
        loss.register_hook([&, depth](const Tensor& gradient) {
          const at::AutoGradMode record(true);
          backward(depth + 1);
          return gradient;
        });
      }
      loss.backward();
      threads.push_back(std::this_thread::get_id());
      EXPECT_TRUE(same(w.grad(), tower::grad([&](const Tensor& v) { return loss_of(v, x, "data", {}); })(w.detach())));
    };
    backward(0);
    EXPECT_EQ(threads.size(), 66U);
    EXPECT_NE(threads.front(), threads.back());  // innermost first
  });
}

// A process may be done with a mesh before the others are.
TEST(Meshes, ComeOneAfterTheOtherAndEndAtDifferentTimes) {
  expect_all(2, [](int rank) {
    for (int i = 0; i < 3; ++i) {
      const Mesh mesh = mesh_of_all();
      EXPECT_TRUE(same(total(mesh), 2 * waves({2}).sum()));
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  });
}

}  // namespace
