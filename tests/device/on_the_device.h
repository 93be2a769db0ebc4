// What the tests of the device under test begin with.
#pragma once

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
