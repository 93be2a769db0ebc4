// What a piece of code allocates.
#pragma once

#include <ATen/Functions.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "support/functions.h"

namespace support {

/// The bytes of all tensors that `body` makes on this thread.
inline int64_t allocated_by(const std::function<void()>& body) {
  struct Meter : c10::MemoryReportingInfoBase {
    int64_t bytes = 0;
    bool memoryProfilingEnabled() const override { return true; }
    void reportMemoryUsage(void*, int64_t change, size_t, size_t, c10::Device) override {
      bytes += std::max<int64_t>(change, 0);
    }
  };
  const auto meter = std::make_shared<Meter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  body();
  return meter->bytes;
}

/// Expects what `of_steps(n)`, a function of a vector, allocates under each transform to grow with n alone. Copies of a
/// tensor of n parts for each of them would make twice the steps allocate four times as much.
inline void expect_linear_allocations(const std::string& what,
                                      const std::function<tower::dynamic::Function(int64_t steps)>& of_steps) {
  using tower::dynamic::Function;
  namespace td = tower::dynamic;
  const at::Tensor x = waves({40});
  const std::pair<const char*, std::function<void(const Function&)>> transforms[] = {
      {"grad", [&](const Function& f) { gradient(f)({x}); }},
      {"vmap(grad)",
       [&](const Function& f) {
         mapped(gradient(f))({at::stack({x, -x})});
       }},
      {"jvp", [&](const Function& f) { td::jvp(f, {x}, {x}); }},
      {"linearize", [&](const Function& f) { td::linearize(f, {x}).second({x}); }},
      {"grad(grad)", [&](const Function& f) { gradient(summed(gradient(f)))({x}); }},
      {"jvp(grad)", [&](const Function& f) { td::hvp(f, {x}, {x}); }},
      {"grad(vmap)",
       [&](const Function& f) {
         gradient(summed(mapped(f)))({at::stack({x, -x})});
       }},
      {"jvp(vmap)", [&](const Function& f) {
         td::jvp(mapped(f), {at::stack({x, -x})}, {at::stack({x, x})});
       }}};
  for (const auto& [name, run] : transforms) {
    const auto allocated = [&, &run = run](int64_t steps) { return allocated_by([&] { run(of_steps(steps)); }); };
    EXPECT_LT(allocated(200), 2.3 * allocated(100)) << name << ", " << what;
  }
}

}  // namespace support
