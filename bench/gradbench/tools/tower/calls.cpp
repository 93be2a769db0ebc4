#include "calls.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace gradbench {
namespace {

using Clock = std::chrono::steady_clock;

struct Spent {
  int64_t calls = 0;
  double milliseconds = 0;
};

// What is measured while a call is running. The time of inner calls is taken off the outer one's.
std::map<std::string, Spent> all;
std::vector<double> inner;

struct Running : at::ObserverContext {
  Clock::time_point start = Clock::now();
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction&) {
  inner.push_back(0);
  return std::make_unique<Running>();
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  const Clock::duration time = Clock::now() - static_cast<Running*>(context)->start;
  const double spent = std::chrono::duration<double, std::milli>(time).count();
  Spent& of_name = all[function.name()];
  ++of_name.calls;
  of_name.milliseconds += spent - inner.back();
  inner.pop_back();
  if (!inner.empty()) inner.back() += spent;
}

}  // namespace

std::string calls_left(const std::function<void()>& compute) {
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}));
  const auto start = Clock::now();
  compute();
  const double total = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  at::removeCallback(handle);

  std::vector<std::pair<std::string, Spent>> sorted(all.begin(), all.end());
  std::ranges::sort(sorted, [](const auto& a, const auto& b) { return a.second.milliseconds > b.second.milliseconds; });
  char line[160];
  std::snprintf(line, sizeof(line), "a run, with these calls measured: %.3f ms\n", total);
  std::string text = line;
  for (const auto& [name, spent] : sorted) {
    std::snprintf(line, sizeof(line), "  %-40s %7lld times %10.3f ms\n", name.c_str(),
                  static_cast<long long>(spent.calls), spent.milliseconds);
    text += line;
  }
  return text;
}

}  // namespace gradbench
