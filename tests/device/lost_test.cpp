// What the watch over the device (support/watch.h) finds after a test.
#include "apart/apart.h"
#include "device/on_the_device.h"
#include "support/watch.h"

namespace {

class ApartWatched : public OnItsStreams {
 protected:
  void SetUp() override {
    OnItsStreams::SetUp();
    if (!apart::installed()) GTEST_SKIP() << "a GPU is not to be lost";
  }
};

TEST_F(ApartWatched, ADeviceThatIsLostEndsTheProcessAndNamesTheTest) {
  EXPECT_EXIT(
      {
        EXPECT_ANY_THROW(some({3}).index_select(0, some({2}).to(at::kLong) + 3));
        support::what_the_device_says_after("Some.Test");
      },
      testing::ExitedWithCode(70),
      "Some.Test lost the device: apart: a kernel of aten::index_select met a wrong value");
  EXPECT_EQ(support::what_the_device_says_after("Some.Test"), "");
}

TEST_F(ApartWatched, WhatIsSaidLateIsSaidOnce) {
  Tensor x = some({3});
  wait(*side_, *main_);
  const Tensor y = aside([&] { return x.sin(); });
  x.reset();
  EXPECT_TRUE(says(support::what_the_device_says_after("Some.Test"), {"given back while", "used it"}));
  EXPECT_EQ(support::what_the_device_says_after("Some.Test"), "");
}

TEST_F(ApartWatched, WantOfMemoryIsNotAnOperatorThatTheDeviceLacks) {
  const long before = support::calls_left_out();
  EXPECT_THROW(support::runs_on_device("large", [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory"); }),
               c10::OutOfMemoryError);
  EXPECT_EQ(support::calls_left_out(), before);
}

}  // namespace
