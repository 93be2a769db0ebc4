// A progress bar on standard error, drawn only where a person watches it.
//
//   Progress progress("training", steps);
//   for (...) progress.advance();
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

class Progress {
 public:
  Progress(std::string label, int64_t total)
      : label_(std::move(label)), total_(total), watched_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance() {
    ++done_;
    if (!watched_) return;
    constexpr int64_t kWidth = 40;
    const auto filled = static_cast<size_t>(kWidth * done_ / total_);
    std::string bar;
    for (size_t i = 0; i < kWidth; ++i) bar += i < filled ? "█" : "░";
    fmt::print(stderr, "\r{} {} {}/{}", label_, bar, done_, total_);
    std::fflush(stderr);
  }

  /// Makes room for a line of output; the next `advance` draws the bar again.
  void clear() {
    if (!watched_) return;
    std::fflush(stdout);
    fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
  }

 private:
  std::string label_;
  int64_t total_;
  int64_t done_ = 0;
  bool watched_;
};
