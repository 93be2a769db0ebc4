// Loops whose step is a compiled function, and the way back through them: it runs as machine code wherever it is called
// from. Oracle for the numbers: the same loops with the function that was compiled.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <tower/tower.h>

#include <string>

#include "compile/kernels.h"

namespace {

using at::Tensor;
using tower::Checkpoints;

// How often LibTorch's operator of that name is called on this thread.
class Calls {
 public:
  explicit Calls(const char* name) {
    watched = name;
    count = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Calls::begin));
  }
  ~Calls() { at::removeCallback(handle_); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  int number() const { return count; }

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    if (std::string(call.name()) == watched) ++count;
    return nullptr;
  }
  static inline std::string watched;
  static inline int count = 0;
  at::CallbackHandle handle_;
};

Tensor step(const Tensor& s, const Tensor& p) { return s + 0.01 * (p * s).sin(); }

constexpr int64_t kSteps = 30;

// By what a step captures, and by the state.
template <class Step>
auto gradients(const Step& one, Checkpoints kept) {
  return tower::grad<0, 1>([&one, kept](const Tensor& p, const Tensor& start) {
    const auto body = [&one, p](int64_t, const Tensor& s) { return one(s, p); };
    return tower::fori_loop(0, kSteps, body, start, {.checkpoints = kept}).square().sum();
  });
}

TEST(CompiledSteps, AreMachineCodeOnTheWayBackWhateverIsKept) {
  TOWER_NEEDS_LLVM();
  const Tensor p = at::rand({50}, at::kDouble), start = at::rand({50}, at::kDouble);
  const auto expected = gradients(step, Checkpoints::all())(p, start);
  const auto compiled = tower::compile(step);
  for (const Checkpoints kept : {Checkpoints::all(), Checkpoints::automatic(), Checkpoints(3), Checkpoints(1)}) {
    const auto differentiated = gradients(compiled, kept);
    for (int call = 0; call < 3; ++call) differentiated(p, start);
    const Calls sines("aten::sin");
    const auto [by_p, by_start] = differentiated(p, start);
    EXPECT_EQ(sines.number(), 0);
    EXPECT_TRUE(at::allclose(by_p, std::get<0>(expected), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(by_start, std::get<1>(expected), 1e-12, 1e-12));
  }
}

// A module's parameters are substituted, and the graph captured one of them.
TEST(CompiledSteps, MeetWhatStandsForWhatTheyCaptured) {
  const Tensor w = at::rand({50}, at::kDouble), other = at::rand({50}, at::kDouble), s = at::rand({50}, at::kDouble);
  const auto compiled = tower::compile([w](const Tensor& s) { return step(s, w); });
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(at::allclose(compiled(s), step(s, w)));
  const tower::Substitution stand_in({{w, other}});
  EXPECT_TRUE(at::allclose(compiled(s), step(s, other)));
  // And where an argument is substituted.
  const auto given = tower::compile(step);
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(at::allclose(given(s, w), step(s, other)));
}

TEST(CompiledSteps, AllIsKeptByDefault) {
  EXPECT_TRUE(Checkpoints().is_all());
  const tower::ForiOptions options{.checkpoints = {}};
  EXPECT_TRUE(options.checkpoints.is_all());
  EXPECT_FALSE(Checkpoints::automatic().is_all());
}

}  // namespace
