// What the examples share: claims that are checked as they are printed, and a stopwatch.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace support {

/// Prints each check as it is made and remembers whether one failed.
class Checks {
 public:
  void operator()(bool passed, const std::string& what) {
    fmt::print("  {}  {}\n", passed ? "ok    " : "FAILED", what);
    std::fflush(stdout);
    failed_ += !passed;
  }
  int failed() const { return failed_; }

 private:
  int failed_ = 0;
};

template <class F>
double seconds_of(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace support
