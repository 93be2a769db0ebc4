// Streams, casts and pinned memory of the device under test.
#include <ATen/autocast_mode.h>

#include <array>
#include <functional>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "device/on_the_device.h"
#include "tower/tower.h"

namespace {

Tensor energy(const Tensor& x) { return (x.cumsum(0).sin() * x.exp().mean()).square().sum(); }
// Takes a GPU milliseconds.
Tensor long_energy(const Tensor& x) {
  Tensor y = x;
  for (int k = 0; k < 8; ++k) y = at::matmul(y, x).tanh();
  return y.square().sum();
}

TEST_F(OnItsStreams, TransformsRunOnTheCurrentOne) {
  const Tensor xs = some({4, 64, 64}) * 0.01;
  const auto f = tower::vmap(tower::grad(long_energy));
  const Tensor expected = f(xs);
  synchronize();
  const Tensor found = aside([&] { return f(xs); });
  EXPECT_TRUE(main_->query()) << "something was queued on the default stream";
  side_->synchronize();
  EXPECT_TRUE(same(found, expected));
}

TEST_F(OnItsStreams, WhatATransformFreesIsTakenByNoOtherStream) {
  const Tensor xs = some({4, 64, 64}) * 0.01;
  const auto f = tower::vmap(tower::grad(long_energy));
  const Tensor expected = f(xs);
  synchronize();
  for (int k = 0; k < 10; ++k) {
    const Tensor found = aside([&] { return f(xs); });
    for (int n = 0; n < 40; ++n) at::full({4, 64, 64}, std::numeric_limits<double>::quiet_NaN(), xs.options());
    side_->synchronize();
    ASSERT_TRUE(same(found, expected));
  }
}

// Each makes something of a point on the stream that is current, and applies it to a vector.
using Map = std::function<Tensor(const Tensor&)>;
const std::vector<std::pair<const char*, std::function<Map(const Tensor&)>>>& maps() {
  const auto gradient = [](const Tensor& x) { return tower::grad(long_energy)(x); };
  static const std::vector<std::pair<const char*, std::function<Map(const Tensor&)>>> all{
      {"linearize", [=](const Tensor& x) -> Map { return tower::linearize(gradient, x).second; }},
      {"vjp", [=](const Tensor& x) -> Map { return tower::vjp(gradient, x).second; }},
      {"vjp of a checkpoint",
       [](const Tensor& x) -> Map {
         const auto f = tower::checkpoint(long_energy);
         return [pull = tower::vjp(f, x).second](const Tensor& v) { return pull(v.sum()); };
       }},
      {"vjp of a loop",
       [](const Tensor& x) -> Map {
         const auto f = [](const Tensor& x) {
           return tower::fori_loop(
               0, 9, [x](int64_t, const Tensor& y) { return (y.matmul(x) + x).tanh(); }, x);
         };
         return tower::vjp(f, x).second;
       }},
      {"vjp with writes", [](const Tensor& x) -> Map {
         const auto f = [](const Tensor& x) {
           Tensor y = at::zeros_like(x);
           y.copy_(x.sin());
           y[0].mul_(x[1]).exp_();
           return y * y;
         };
         return tower::vjp(f, x).second;
       }}};
  return all;
}

TEST_F(OnItsStreams, MapsAreAppliedOnAnotherThanTheyWereMadeOn) {
  const Tensor x = some({32, 32}) * 0.01, v = some({32, 32}, doubles(), 0.7);
  for (const auto& [name, make] : maps()) {
    SCOPED_TRACE(name);
    const Tensor expected = make(x)(v);
    synchronize();
    {
      const Map apply = make(x);
      wait(*side_, *main_);
      const Tensor found = aside([&] { return apply(v); }), again = aside([&] { return apply(v); });
      aside([&] { EXPECT_TRUE(same(found, expected) && same(again, expected)); });
      wait(*main_, *side_);  // before what the map holds is given back
    }
    synchronize();
  }
}

TEST_F(OnTheDevice, TwoThreadsRunTransformsOnStreamsOfTheirOwn) {
  const c10::impl::VirtualGuardImpl impl(support::device().type());
  const auto f = tower::vmap(tower::hessian(energy));
  const Tensor xs = some({50, 3});
  const Tensor expected = f(xs);
  impl.synchronizeDevice(support::device().index());
  std::array<Tensor, 2> found;
  std::vector<std::thread> threads;
  for (Tensor& result : found)
    threads.emplace_back([&] {
      const c10::Stream stream = impl.getStreamFromGlobalPool(support::device());
      const c10::StreamGuard guard(stream);
      for (int k = 0; k < 20; ++k) result = f(xs);
      stream.synchronize();
    });
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& result : found) EXPECT_TRUE(same(result, expected));
}

TEST_F(OnTheDevice, AutocastComputesProductsInHalfPrecision) {
  const at::DeviceType type = support::device().type();
  const Tensor a = some({4, 4}).to(at::kFloat);
  at::autocast::set_autocast_enabled(type, true);
  at::ScalarType inside = at::kFloat;
  const auto f = [&](const Tensor& x) {
    const Tensor y = at::matmul(x, a);
    inside = y.scalar_type();
    return y.to(at::kFloat).sum();
  };
  const Tensor gradient = tower::vmap(tower::grad(f))(at::stack({a, a}));
  at::autocast::set_autocast_enabled(type, false);
  at::autocast::clear_cache();
  EXPECT_EQ(inside, at::autocast::get_autocast_dtype(type));
  EXPECT_EQ(support::difference(gradient[0], tower::grad(f)(a), {2e-2, 2e-2}), "");
}

TEST_F(OnItsStreams, PinnedMemoryIsCopiedFrom) {
  const Tensor pinned = waves({2, 3}).pin_memory();
  ASSERT_TRUE(pinned.is_pinned());
  const auto f = [](const Tensor& x) { return energy(x.to(support::device(), /*non_blocking=*/true)); };
  const Tensor gradient = tower::vmap(tower::grad(f))(pinned);
  EXPECT_TRUE(gradient.device().is_cpu());
  EXPECT_EQ(support::difference(gradient, tower::vmap(tower::grad(energy))(pinned), {1e-9, 1e-9}), "");
}

TEST_F(OnItsStreams, PinnedMemoryIsCopiedToAndWaitedForByTheFunction) {
  const auto f = [this](const Tensor& x) {
    const Tensor y = x.sin().to(at::kCPU, /*non_blocking=*/true);
    main_->synchronize();
    return y.square().sum();
  };
  const auto g = [](const Tensor& x) { return x.sin().square().sum(); };
  const Tensor xs = some({2, 3});
  const auto near = [](const Tensor& actual, const Tensor& expected) {
    return support::difference(actual.cpu(), expected.cpu(), {1e-9, 1e-9});
  };
  EXPECT_EQ(near(tower::vmap(f)(xs), tower::vmap(g)(xs)), "");
  EXPECT_EQ(near(tower::grad(f)(xs), tower::grad(g)(xs)), "");
  EXPECT_EQ(near(tower::jvp(f, xs, xs).second, tower::jvp(g, xs, xs).second), "");
  EXPECT_EQ(near(tower::vmap(tower::hessian(f))(xs), tower::vmap(tower::hessian(g))(xs)), "");
}

TEST_F(OnItsStreams, TensorsArePinnedInsideOfTransforms) {
  const auto there = support::device();
  std::vector<bool> pinned;
  const auto f = [&](const Tensor& x) {
    const Tensor y = x.sin().pin_memory();
    pinned.push_back(y.is_pinned());
    return energy(y.to(there, /*non_blocking=*/true));
  };
  const auto g = [](const Tensor& x) { return energy(x.sin()); };
  const Tensor xs = waves({2, 3});
  const auto near = [](const Tensor& actual, const Tensor& expected) {
    return support::difference(actual.cpu(), expected, {1e-9, 1e-9});
  };
  EXPECT_EQ(near(tower::vmap(f)(xs), tower::vmap(g)(xs)), "");
  EXPECT_EQ(near(tower::grad(f)(xs[0]), tower::grad(g)(xs[0])), "");
  EXPECT_EQ(near(tower::jvp(f, xs, xs).second, tower::jvp(g, xs, xs).second), "");
  EXPECT_EQ(near(tower::vmap(tower::hessian(f))(xs), tower::vmap(tower::hessian(g))(xs)), "");
  EXPECT_EQ(pinned, std::vector<bool>(pinned.size(), true));
}

}  // namespace
