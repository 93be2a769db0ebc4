// Streams, casts and pinned memory of a GPU.
#include <ATen/autocast_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <limits>
#include <thread>

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

class OnItsStreams : public OnTheDevice {
 protected:
  void SetUp() override {
    OnTheDevice::SetUp();
    if (support::device().is_cpu()) return;
    main_ = impl_.getDefaultStream(support::device());
    side_ = impl_.getStreamFromGlobalPool(support::device());
    if (*main_ == *side_) GTEST_SKIP() << "the device has one stream only";
  }
  void synchronize() const { impl_.synchronizeDevice(support::device().index()); }
  c10::impl::VirtualGuardImpl impl_{support::device().type()};
  std::optional<c10::Stream> main_, side_;
};

TEST_F(OnItsStreams, TransformsRunOnTheCurrentOne) {
  const Tensor xs = some({4, 1024, 1024}) * 0.01;
  const auto f = tower::vmap(tower::grad(long_energy));
  const Tensor expected = f(xs);
  synchronize();
  Tensor found;
  {
    const c10::StreamGuard guard(*side_);
    found = f(xs);
  }
  EXPECT_TRUE(main_->query()) << "something was queued on the default stream";
  side_->synchronize();
  EXPECT_TRUE(same(found, expected));
}

TEST_F(OnItsStreams, WhatATransformFreesIsTakenByNoOtherStream) {
  const Tensor xs = some({4, 512, 512}) * 0.01;
  const auto f = tower::vmap(tower::grad(long_energy));
  const Tensor expected = f(xs);
  synchronize();
  for (int k = 0; k < 10; ++k) {
    Tensor found;
    {
      const c10::StreamGuard guard(*side_);
      found = f(xs);
    }
    for (int n = 0; n < 40; ++n) at::full({4, 512, 512}, std::numeric_limits<double>::quiet_NaN(), xs.options());
    side_->synchronize();
    ASSERT_TRUE(same(found, expected));
  }
}

TEST_F(OnItsStreams, ALinearMapIsAppliedOnAnotherThanItWasMadeOn) {
  const Tensor x = some({512, 512}) * 0.01, v = some({512, 512}, doubles(), 0.7);
  const Tensor expected = tower::linearize(long_energy, x).second(v);
  synchronize();
  c10::Event made(support::device().type());
  const auto push = tower::linearize(long_energy, x).second;
  made.record(*main_);
  Tensor found;
  {
    const c10::StreamGuard guard(*side_);
    made.block(*side_);
    found = push(v);
  }
  side_->synchronize();
  EXPECT_TRUE(same(found, expected));
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
  if (!support::device().is_cuda()) GTEST_SKIP() << "LibTorch casts on CUDA";
  const Tensor a = some({4, 4}).to(at::kFloat);
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::ScalarType inside = at::kFloat;
  const auto f = [&](const Tensor& x) {
    const Tensor y = at::matmul(x, a);
    inside = y.scalar_type();
    return y.to(at::kFloat).sum();
  };
  const Tensor gradient = tower::vmap(tower::grad(f))(at::stack({a, a}));
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  at::autocast::clear_cache();
  EXPECT_EQ(inside, at::autocast::get_autocast_dtype(at::kCUDA));
  EXPECT_EQ(support::difference(gradient[0], tower::grad(f)(a), {2e-2, 2e-2}), "");
}

TEST_F(OnTheDevice, PinnedMemoryIsCopiedFrom) {
  if (!support::device().is_cuda()) GTEST_SKIP() << "only CUDA has pinned memory";
  const Tensor pinned = waves({2, 3}).pin_memory();
  const auto f = [](const Tensor& x) { return energy(x.to(support::device(), /*non_blocking=*/true)); };
  const Tensor gradient = tower::vmap(tower::grad(f))(pinned);
  EXPECT_TRUE(gradient.device().is_cpu());
  EXPECT_EQ(support::difference(gradient, tower::vmap(tower::grad(energy))(pinned), {1e-9, 1e-9}), "");
}

}  // namespace
