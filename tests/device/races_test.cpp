// What the tests' own device refuses, as a GPU would give other values on some days: memory used by two streams of
// which none waited for the other.
#include "apart/apart.h"
#include "device/on_the_device.h"
#include "tower/tower.h"

namespace {

class OnTwoStreams : public OnItsStreams {
 protected:
  void SetUp() override {
    OnItsStreams::SetUp();
    if (!apart::installed()) GTEST_SKIP() << "only the tests' own device finds races";
  }
  template <class F>
  std::string aside_refusal(const F& f) const {
    return aside([&] { return refusal<std::exception>(f); });
  }
  static constexpr const char* kUnread = "reads memory that stream 0 of apart:1 wrote to, and has not waited for it";
};

TEST_F(OnTwoStreams, ReadersAndWritersWaitForEachOther) {
  const Tensor x = some({3});
  EXPECT_TRUE(says(aside_refusal([&] { x.sin(); }), {"aten::sin on stream", kUnread}));
  wait(*side_, *main_);
  const Tensor y = aside([&] { return x.sin(); });
  EXPECT_TRUE(says(refusal<std::exception>([&] { x.add_(1); }), {"aten::add_", "writes to memory that", "read"}));
  EXPECT_TRUE(says(refusal<std::exception>([&] { y.cos(); }), {"aten::cos", "reads memory that", "wrote to"}));
  EXPECT_EQ(y.view({3, 1}).size(0), 3) << "a view reads nothing";
  wait(*main_, *side_);
  x.add_(y);
  EXPECT_FALSE(main_->query());
  const Tensor read = x[0].cpu();  // the program waits
  EXPECT_TRUE(main_->query());
  EXPECT_TRUE(side_->query());
  aside([&] { x.mul_(2); });
  synchronize();
}

TEST_F(OnTwoStreams, MemoryIsGivenBackWhenItsStreamKnowsOfItsUses) {
  const auto use = [&](const auto& afterwards) {
    Tensor x = some({3});
    wait(*side_, *main_);
    const Tensor y = aside([&] { return x.sin(); });
    afterwards(x);
    x.reset();
    return refusal<std::exception>([&] { synchronize(); });
  };
  EXPECT_TRUE(
      says(use([](const Tensor&) {}), {"memory of stream 0 of apart:1 was given back while stream", "used it"}));
  const std::vector<std::function<void(const Tensor&)>> enough{[&](const Tensor& x) { x.record_stream(*side_); },
                                                               [&](const Tensor&) { wait(*main_, *side_); },
                                                               [&](const Tensor&) { side_->synchronize(); }};
  for (const auto& afterwards : enough) EXPECT_EQ(use(afterwards).find("given back"), std::string::npos);
}

TEST_F(OnTwoStreams, EventsAreAsTheStreamWasWhenTheyWereRecorded) {
  const Tensor x = some({3});
  c10::Event event(support::device().type());
  event.record(*main_);
  EXPECT_FALSE(event.query());
  const Tensor y = x.sin();
  event.block(*side_);
  aside([&] { x.cos(); });
  EXPECT_TRUE(says(aside_refusal([&] { y.cos(); }), {kUnread}));
  event.synchronize();
  EXPECT_TRUE(event.query());
  EXPECT_FALSE(main_->query());
  synchronize();
}

TEST_F(OnTwoStreams, WhatIsCopiedToPinnedMemoryComesWhenTheProgramWaits) {
  const Tensor x = some({3});
  const Tensor copied = x.to(at::kCPU, /*non_blocking=*/true);
  EXPECT_TRUE(copied.isnan().all().item<bool>());
  EXPECT_FALSE(main_->query());
  main_->synchronize();
  EXPECT_TRUE(same(copied, waves({3}, 0.2)));
}

TEST_F(OnTwoStreams, ALinearMapDoesNotWaitForTheStreamThatItWasMadeOn) {
  const Tensor x = some({3});
  const auto f = [](const Tensor& x) { return x.exp().cumsum(0); };
  synchronize();
  const auto push = tower::linearize(f, x).second;
  const auto pull = tower::vjp(f, x).second;
  EXPECT_TRUE(says(aside_refusal([&] { push(x); }), {kUnread}));
  EXPECT_TRUE(says(aside_refusal([&] { pull(x); }), {kUnread}));
  synchronize();
}

}  // namespace
