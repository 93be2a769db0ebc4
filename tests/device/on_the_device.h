// What the tests of the device under test begin with.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "support/device.h"
#include "support/prelude.h"

class OnTheDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (support::device().is_cpu()) GTEST_SKIP() << "the tests run on the CPU";
  }
};

inline at::TensorOptions doubles() { return at::dtype(at::kDouble).device(support::device()); }

/// Values that are the same wherever they are.
inline Tensor some(at::IntArrayRef sizes, const at::TensorOptions& where = doubles(), double phase = 0.2) {
  return waves(sizes, phase).to(where.device());
}

/// A device with streams: the default one, which is current, and another.
class OnItsStreams : public OnTheDevice {
 protected:
  void SetUp() override {
    OnTheDevice::SetUp();
    if (support::device().is_cpu()) return;
    main_ = impl_.getDefaultStream(support::device());
    side_ = impl_.getStreamFromGlobalPool(support::device());
    if (*main_ == *side_) GTEST_SKIP() << "the device has one stream only";
    synchronize();
  }
  // Here the device tells what went wrong late.
  void TearDown() override {
    if (main_) synchronize();
  }
  void synchronize() const { impl_.synchronizeDevice(support::device().index()); }
  /// `f()` on the other stream.
  template <class F>
  auto aside(const F& f) const {
    const c10::StreamGuard guard(*side_);
    return f();
  }
  /// One stream's further work comes after the other's present work.
  static void wait(const c10::Stream& later, const c10::Stream& earlier) {
    c10::Event event(support::device().type());
    event.record(earlier);
    event.block(later);
  }
  c10::impl::VirtualGuardImpl impl_{support::device().type()};
  std::optional<c10::Stream> main_, side_;
};
