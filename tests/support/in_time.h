// What must not wait for ever.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <thread>
#include <vector>

namespace support {

/// Runs `f` on a thread of its own, and throws what it threw. Threads that wait for each other cannot be ended: where
/// `f` takes too long, the process ends, naming the test.
inline void in_time(const std::function<void()>& f, std::chrono::seconds most = std::chrono::seconds(120)) {
  std::packaged_task<void()> task(f);
  std::future<void> done = task.get_future();
  std::thread thread(std::move(task));
  if (done.wait_for(most) != std::future_status::ready) {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "%s.%s: threads wait for each other\n", test->test_suite_name(), test->name());
    std::fflush(nullptr);
    std::_Exit(1);
  }
  thread.join();
  done.get();
}

/// Runs `f(i)` on threads of their own, all at once, and throws what one of them threw.
inline void on_threads(int count, const std::function<void(int)>& f) {
  in_time([&] {
    std::vector<std::future<void>> running;
    for (int i = 0; i < count; ++i) running.push_back(std::async(std::launch::async, f, i));
    for (auto& one : running) one.wait();
    for (auto& one : running) one.get();
  });
}

}  // namespace support
