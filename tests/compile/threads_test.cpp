// Compiled functions on several threads: all get what the function computes, and nothing of the program's runs under a
// lock: what runs there calls the same function on another thread, and waits for it.
#include <tower/compile.h>
#include <tower/loops.h>
#include <tower/transforms.h>
#include <unistd.h>

#include <filesystem>

#include "support/in_time.h"
#include "support/prelude.h"
#include "support/warnings.h"

namespace {

using support::in_time;
using support::on_threads;

void on_another_thread(const std::function<void()>& f) { std::thread(f).join(); }

// A static argument of the user's. What the next comparison of two does is `comparing`.
struct Setting {
  int value;
  static thread_local std::function<void()> comparing;
  bool operator==(const Setting& other) const {
    if (const auto knock = std::exchange(comparing, nullptr)) knock();
    return value == other.value;
  }
  friend auto tower_fields(const Setting&) { return std::tuple(&Setting::value); }
};
thread_local std::function<void()> Setting::comparing;

TEST(CompiledThreads, StaticArgumentsAreComparedUnderNoLock) {
  in_time([] {
    const auto f = tower::compile([](const Tensor& x, const Setting& by) { return x * by.value; });
    const Tensor x = waves({3});
    bool compared = false;
    for (int round = 0; round < 3; ++round)
      for (const int value : {2, 3, 4}) {
        Setting::comparing = [&] {
          compared = true;
          on_another_thread([&] { EXPECT_TRUE(same(f(x, Setting{5 + round}), x * (5 + round))); });
        };
        EXPECT_TRUE(same(f(x, Setting{value}), x * value));
      }
    EXPECT_TRUE(compared);
    EXPECT_EQ(f.graphs(), 6u);
  });
}

TEST(CompiledThreads, AComparisonOfStaticArgumentsMayCallTheFunction) {
  in_time([] {
    const auto f = tower::compile([](const Tensor& x, const Setting& by) { return x * by.value; });
    const Tensor x = waves({3});
    int depth = 0;
    const std::function<void()> call = [&] {
      if (depth < 2) {
        ++depth;
        EXPECT_TRUE(same(f(x, Setting{depth}), x * depth));
        --depth;
      }
      Setting::comparing = call;
    };
    for (int round = 0; round < 3; ++round)
      for (const int value : {2, 3, 4}) {
        Setting::comparing = call;
        EXPECT_TRUE(same(f(x, Setting{value}), x * value));
      }
    Setting::comparing = nullptr;
  });
}

// Another one, with something that is not compared.
struct Counted {
  int value;
  std::shared_ptr<const void> other = nullptr;
  bool operator==(const Counted& that) const { return value == that.value; }
  [[maybe_unused]] friend auto tower_fields(const Counted&) { return std::tuple(&Counted::value); }
};

TEST(CompiledThreads, WhatBelongsToAGraphIsDestroyedUnderNoLock) {
  in_time([] {
    int destroyed = 0;
    bool ends = false;  // then the function itself is destroyed
    const auto f = tower::compile([](const Tensor& x, const Counted& by) { return x * by.value; });
    const Tensor x = waves({3});
    for (int value = 1; value <= 70; ++value) {
      const std::shared_ptr<const void> owned(&destroyed, [&](const void*) {
        if (ends) return;
        on_another_thread([&] { EXPECT_TRUE(same(f(x, Counted{0}), x * 0)); });
        ++destroyed;
      });
      EXPECT_TRUE(same(f(x, Counted{value, owned}), x * value));
    }
    EXPECT_GT(destroyed, 0);
    ends = true;
  });
}

// A handler of the program's.
class OnWarning final : public c10::WarningHandler {
 public:
  explicit OnWarning(std::function<void()> f) : f_(std::move(f)) {}
  void process(const c10::Warning&) override {
    ++count;
    f_();
  }
  int count = 0;

 private:
  std::function<void()> f_;
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

TEST(CompiledThreads, WarnsUnderNoLock) {
  in_time([] {
    const auto f = tower::compile([](const Tensor& x, int by) { return x * by; });
    const Tensor x = waves({3});
    const OnWarning handler([&] { on_another_thread([&] { EXPECT_TRUE(same(f(x, 1), x)); }); });
    for (int value = 1; value <= 40; ++value) EXPECT_TRUE(same(f(x, value), x * value));
    EXPECT_EQ(handler.count, 1);
  });
}

TEST(CompiledThreads, TheFunctionMayAskForItsOwnReportOnAnotherThread) {
  in_time([] {
    std::function<void()> ask;
    const auto f = tower::compile([&](const Tensor& x) {
      if (ask) on_another_thread(ask);
      return (x * x).sin();
    });
    ask = [&] { f.report(); };
    for (const int64_t size : {3, 4, 3, 9}) EXPECT_TRUE(same(f(waves({size})), waves({size}).square().sin()));
  });
}

Tensor energy(const Tensor& x) { return ((x * x + 0.3).log().sin() * x + x.exp()).sum(); }

// Newton's method, which takes another number of steps for each example.
Tensor root(const Tensor& x) {
  const auto correct = [x](const Tensor& y) { return y - (y * y * y - x) / (3 * y * y); };
  return tower::while_loop([x](const Tensor& y) { return (y * y * y - x).abs() > 1e-9; }, correct, x + 1,
                           {.max_steps = 50});
}

// One compiled function on all threads: first calls, calls with numbers of examples that follow, images, reports and
// files meet in every order.
TEST(CompiledThreads, ShareGraphsKernelsAndImages) {
  const std::string folder = std::filesystem::temp_directory_path() / ("tower_threads_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  for (int round = 0; round < 3; ++round) {
    const auto f = tower::compile(energy);
    const auto mapped = tower::compile(tower::vmap(tower::grad(energy)));
    const auto scaled = tower::compile([](const Tensor& x, double by) { return (x * by).sin() + x; });
    const auto roots = tower::compile(tower::vmap(root));
    on_threads(4, [&](int thread) {
      for (int i = 0; i < 12; ++i) {
        const int64_t size = 1 + (i * 5 + thread * (3 + round)) % 17;
        const Tensor x = waves({size}, 0.1 * thread), batch = waves({size, 3}, 0.2 * i);
        EXPECT_TRUE(same(f(x), energy(x)));
        EXPECT_TRUE(same(mapped(batch), tower::vmap(tower::grad(energy))(batch)));
        EXPECT_TRUE(same(scaled(x, thread % 2 + 1), (x * (thread % 2 + 1)).sin() + x));
        EXPECT_TRUE(same(tower::grad(f)(x), tower::grad(energy)(x)));
        EXPECT_TRUE(same(tower::vmap(f)(batch), tower::vmap(energy)(batch)));
        EXPECT_TRUE(same(tower::jvp(f, x, x).second, tower::jvp(energy, x, x).second));
        EXPECT_TRUE(same(roots(x.abs() + 1), tower::vmap(root)(x.abs() + 1)));
        if (i % 4 == thread) {
          EXPECT_GT(f.graphs(), 0u);
          EXPECT_NE(f.report() + mapped.report(), "");
          const std::string file = folder + "/" + std::to_string(thread);
          mapped.save(file);
          EXPECT_TRUE(same(tower::load<Tensor(Tensor)>(file)(batch), mapped(batch)));
        }
      }
    });
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
