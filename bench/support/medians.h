// Two functions timed by turns.
#pragma once

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

/// By the calling thread's own clock: what another program on the machine does, does not count.
template <class F>
double thread_seconds(F&& run) {
  const auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double start = now();
  run();
  return now() - start;
}

/// Medians of runs that take turns.
template <class F, class G>
std::pair<double, double> seconds(F&& f, G&& g) {
  std::vector<double> of_f, of_g;
  for (int round = 0; round < 21; ++round) {
    of_f.push_back(thread_seconds(f));
    of_g.push_back(thread_seconds(g));
  }
  std::sort(of_f.begin(), of_f.end());
  std::sort(of_g.begin(), of_g.end());
  return {of_f[of_f.size() / 2], of_g[of_g.size() / 2]};
}
