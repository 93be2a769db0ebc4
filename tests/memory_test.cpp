// The memory of temporaries: blocks come back inside of transforms, tensors are ordinary ones, and nothing is kept that
// should not be.
#include "tower/memory.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <future>
#include <thread>

#include "../bench/support/peak_memory.h"
#include "support/prelude.h"
#include "tower/inspect.h"

namespace {

constexpr int64_t kLarge = 1 << 15;                     // floats
constexpr size_t kLargeBytes = sizeof(float) * kLarge;  // a size class
constexpr size_t kMiB = size_t{1} << 20;

// This file is initialized after the library was loaded, and before any test.
const bool kLoadingChangesNothing = c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator();

bool is_libtorchs(const Tensor& t) {
  return t.storage().data_ptr().get_deleter() == c10::GetDefaultCPUAllocator()->raw_deleter();
}

// Runs `body` as the function of a transform.
template <class F>
void inside(F&& body) {
  td::vmap(of_one([&](const Tensor& x) {
             body();
             return x;
           }),
           {0}, {0})({at::ones({1})});
}

// What is allocated in a transform is a constant of its level, whose value is a plain tensor.
Tensor plain(int64_t numel) {
  const tower::Suspended suspended;
  return at::empty({numel});
}

// Leaves one free block in the cache of the thread, and says where.
const void* leave_a_block(int64_t numel = kLarge) {
  const void* data = nullptr;
  inside([&] { data = plain(numel).data_ptr(); });
  return data;
}

// Starts with an empty cache, and with the limit that others find where no sanitizer is.
class Memory : public testing::Test {
 protected:
  void SetUp() override {
    tower::set_memory_limit(tower::kDefaultMemoryLimit);
    leave_a_block();
    tower::release_memory();
  }
  void TearDown() override { tower::set_memory_limit(before_); }

 private:
  size_t before_ = tower::memory_limit();
};

TEST_F(Memory, IsLibTorchsWhenTowerIsLoaded) { EXPECT_TRUE(kLoadingChangesNothing); }

TEST_F(Memory, OfATemporaryIsUsedAgain) {
  inside([&] {
    const void* first = plain(kLarge).data_ptr();
    EXPECT_EQ(plain(kLarge).data_ptr(), first);
    EXPECT_EQ(plain(kLarge - 100).data_ptr(), first) << "of the same size class";
    EXPECT_NE(plain(2 * kLarge).data_ptr(), first);
  });
}

TEST_F(Memory, OfOneCallIsUsedByTheNext) {
  const void* data = leave_a_block();
  EXPECT_EQ(tower::memory_cached(), kLargeBytes);
  EXPECT_EQ(leave_a_block(), data);
  EXPECT_EQ(tower::memory_cached(), kLargeBytes);
}

TEST_F(Memory, IsReusedByEveryTransform) {
  const Tensor x = at::rand({kLarge});
  const Function f = of_one([](const Tensor& x) { return x.sin().exp().cos().sum(); });
  const Function g = of_one([](const Tensor& x) { return x.narrow(0, 0, 2).sin() * at::ones({kLarge}).sum(); });
  const auto uses_the_cache = [&](const char* name, const auto& call) {
    tower::release_memory();
    call();
    EXPECT_GE(tower::memory_cached(), kLargeBytes) << name;
  };
  uses_the_cache("grad", [&] { td::grad(f, {0})({x}); });
  uses_the_cache("vjp", [&] { td::vjp(f, {x}); });
  uses_the_cache("jvp", [&] { td::jvp(f, {x}, {x}); });
  uses_the_cache("hvp", [&] { td::hvp(f, {x}, {x}); });
  uses_the_cache("linearize", [&] { td::linearize(f, {x}); });
  uses_the_cache("jacrev", [&] { td::jacrev(f, {0})({x}); });
  uses_the_cache("jacfwd", [&] { td::jacfwd(g, {0})({at::rand({2})}); });
  const auto pullback = td::vjp(f, {x}).second;
  uses_the_cache("a pullback", [&] { pullback({at::ones({})}); });
  const auto pushforward = td::linearize(f, {x}).second;
  uses_the_cache("a pushforward", [&] { pushforward({x}); });
}

TEST_F(Memory, OutsideOfTransformsIsLibTorchs) {
  const void* data = leave_a_block();
  const Tensor outside = at::empty({kLarge});
  EXPECT_TRUE(is_libtorchs(outside));
  EXPECT_NE(outside.data_ptr(), data);
  EXPECT_EQ(tower::memory_cached(), kLargeBytes);
  inside([&] {
    EXPECT_FALSE(is_libtorchs(plain(kLarge)));
    EXPECT_FALSE(is_libtorchs(plain(1)));
  });
}

TEST_F(Memory, IsLibTorchsAgainAfterAnException) {
  EXPECT_THROW(inside([] { throw std::runtime_error("by the function"); }), std::runtime_error);
  EXPECT_TRUE(is_libtorchs(at::empty({kLarge})));
}

TEST_F(Memory, OfAResultIsAnOrdinaryTensors) {
  Tensor result;
  std::thread([&] { inside([&] { result = plain(kLarge).fill_(3); }); }).join();
  tower::set_memory_limit(0);
  EXPECT_TRUE(same(result, at::full({kLarge}, 3.0F))) << "after its thread and the cache";
  EXPECT_EQ(reinterpret_cast<uintptr_t>(result.data_ptr()) % 64, 0);
  result.resize_({4 * kLarge});
  EXPECT_TRUE(same(result.narrow(0, 0, kLarge), at::full({kLarge}, 3.0F)));
  EXPECT_TRUE(is_libtorchs(result)) << "what it grew into was allocated outside";
}

TEST_F(Memory, OfEveryKindOfDeleterIsFreed) {
  c10::Allocator& allocator = *c10::GetCPUAllocator();
  void* outside = allocator.raw_allocate(kLargeBytes);
  void* by_libtorch = c10::GetDefaultCPUAllocator()->raw_allocate(kLargeBytes);
  inside([&] {
    void* within = allocator.raw_allocate(kLargeBytes);
    allocator.raw_deallocate(within);
    EXPECT_EQ(allocator.raw_allocate(kLargeBytes), within) << "scratch memory of LibTorch's kernels is kept";
    c10::GetDefaultCPUAllocator()->raw_deallocate(within);
    allocator.raw_deallocate(outside);
    allocator.raw_deallocate(by_libtorch);
  });
  EXPECT_LE(tower::memory_cached(), 2 * kLargeBytes);
  EXPECT_EQ(allocator.allocate(0).get(), nullptr);
}

TEST_F(Memory, OfSharedStoragesIsFreedOnce) {
  Tensor clone;
  inside([&] {
    const tower::Suspended suspended;
    const Tensor t = at::full({kLarge}, 2.0F);
    clone = at::_lazy_clone(t);  // copied when either is written to
    t.fill_(5);
  });
  EXPECT_TRUE(same(clone, at::full({kLarge}, 2.0F)));
  clone.add_(1);
  EXPECT_TRUE(same(clone, at::full({kLarge}, 3.0F)));
}

TEST_F(Memory, IsKeptWithinTheLimit) {
  tower::set_memory_limit(2 * kLargeBytes);
  inside([&] {
    std::vector<Tensor> many;
    for (int i = 0; i < 10; ++i) many.push_back(plain(kLarge));
    EXPECT_TRUE(is_libtorchs(plain(4 * kLarge))) << "a block beyond the limit could not be kept";
  });
  EXPECT_EQ(tower::memory_cached(), 2 * kLargeBytes);
  tower::set_memory_limit(kLargeBytes);
  EXPECT_EQ(tower::memory_cached(), kLargeBytes);
}

TEST_F(Memory, IsKeptForWhatWasInUseAtOnce) {
  // Blocks that another thread made come here, which never had more than one of its own in use.
  for (int i = 0; i < 40; ++i) leave_a_block();
  std::vector<Tensor> others;
  std::thread([&] {
    inside([&] {
      for (int i = 0; i < 10; ++i) others.push_back(plain(kLarge));
    });
  }).join();
  others.clear();
  EXPECT_LE(tower::memory_cached(), 2 * kLargeBytes);
}

TEST_F(Memory, ThatSomeCallsDidNotUseIsGivenBack) {
  leave_a_block(4 * kLarge);
  const size_t both = tower::memory_cached() + kLargeBytes;
  leave_a_block();
  EXPECT_EQ(tower::memory_cached(), both);
  for (int i = 0; i < 20; ++i) leave_a_block();
  EXPECT_EQ(tower::memory_cached(), kLargeBytes);
}

TEST_F(Memory, IsGivenBackWhenIdle) {
  const auto leave_and_wait = [] {
    leave_a_block();
    inside([] {});
    EXPECT_EQ(tower::memory_cached(), kLargeBytes) << "a small call does not make it idle";
    std::this_thread::sleep_for(std::chrono::milliseconds(1010));
  };
  leave_and_wait();
  inside([] {});
  EXPECT_EQ(tower::memory_cached(), 0);
  leave_and_wait();
  at::empty({kLarge});
  EXPECT_EQ(tower::memory_cached(), 0);
}

TEST_F(Memory, IsGivenBackOnDemand) {
  leave_a_block();
  EXPECT_EQ(tower::release_memory(), kLargeBytes);
  EXPECT_EQ(tower::memory_cached(), 0);
  EXPECT_EQ(tower::release_memory(), 0);
}

TEST_F(Memory, IsLibTorchsWhereTheCacheIsOff) {
  leave_a_block();
  tower::set_memory_limit(0);
  EXPECT_EQ(tower::memory_limit(), 0);
  EXPECT_EQ(tower::memory_cached(), 0);
  inside([] { EXPECT_TRUE(is_libtorchs(plain(kLarge))); });
  EXPECT_EQ(tower::memory_cached(), 0);
}

TEST_F(Memory, OfAnotherThreadGoesToItsCache) {
  std::promise<Tensor> made;
  std::promise<void> done;
  std::thread other([&] {
    const void* mine = leave_a_block();
    EXPECT_EQ(tower::memory_cached(), kLargeBytes);
    Tensor t = made.get_future().get();
    const void* data = t.data_ptr();
    t.reset();
    EXPECT_EQ(tower::memory_cached(), 2 * kLargeBytes);
    inside([&] {
      const Tensor first = plain(kLarge), second = plain(kLarge);
      EXPECT_EQ(first.data_ptr(), data) << "the last that came";
      EXPECT_EQ(second.data_ptr(), mine);
    });
    done.get_future().get();
  });
  Tensor t;
  inside([&] { t = plain(kLarge); });
  made.set_value(std::move(t));
  done.set_value();
  other.join();
  EXPECT_EQ(tower::memory_cached(), 0) << "a thread's cache ends with it";
}

TEST_F(Memory, OfAThreadWithoutACacheIsFreed) {
  Tensor t;
  inside([&] { t = plain(kLarge); });
  std::thread([&] { t.reset(); }).join();
  EXPECT_EQ(tower::memory_cached(), 0);
}

TEST_F(Memory, IsGivenBackWhereverItIs) {
  std::promise<void> left, released;
  std::thread other([&] {
    leave_a_block();
    left.set_value();
    released.get_future().get();
  });
  left.get_future().get();
  EXPECT_EQ(tower::release_memory(), kLargeBytes);
  released.set_value();
  other.join();
}

TEST_F(Memory, MayBeFreedAfterTheThreadsCache) {
  // Thread-local objects end in reverse order: this one after the cache, which the call makes.
  std::thread([] {
    static thread_local Tensor late;
    late = at::empty({1});
    inside([] { late = plain(kLarge); });
  }).join();
  EXPECT_EQ(tower::memory_cached(), 0);
}

// Runs `body` in a child process; true if it returns true there.
template <class F>
bool in_child(F&& body) {
  const pid_t child = fork();
  if (child == 0) {
    bool good = false;
    try {
      good = body();
    } catch (...) {
    }
    _exit(good ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(Memory, OfAForkedChildIsSane) {
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop) leave_a_block(2 * kLarge);
  });
  const void* data = leave_a_block();
  for (int i = 0; i < 20; ++i)
    EXPECT_TRUE(in_child([&] { return leave_a_block() == data && tower::release_memory() > 0 && leave_a_block(); }));
  stop = true;
  other.join();
  EXPECT_EQ(leave_a_block(), data);
}

size_t mapped_bytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(Memory, IsGivenBackBeforeAnAllocationFails) {
  if (mapped_bytes() > (size_t{1} << 43))
    GTEST_SKIP() << "a sanitizer's shadow memory leaves no address space to limit";
  EXPECT_TRUE(in_child([] {
    // More than malloc has free in one piece, which it would give without the system: after other tests that is a lot.
    const size_t block = std::bit_ceil(std::max(128 * kMiB, mallinfo2().fordblks + 1));
    const auto floats = static_cast<int64_t>(block / sizeof(float));
    tower::set_memory_limit(2 * block);
    leave_a_block(floats);
    // Room for the block that is an eighth larger than the one that is given back, and for malloc.
    const size_t room = mapped_bytes() + block / 8 + 16 * kMiB;
    const rlimit limit{room, room};
    if (setrlimit(RLIMIT_AS, &limit) != 0 || tower::memory_cached() == 0) return false;
    bool good = at::empty({floats}).numel() == floats && tower::memory_cached() == 0;  // outside
    leave_a_block(floats);
    inside([&] { good = good && plain(floats + floats / 8).numel() > 0 && tower::memory_cached() == 0; });
    try {
      inside([&] { plain(8 * floats); });
      return false;
    } catch (const c10::Error& error) {
      return good && contains(error.what(), std::to_string(8 * block) + " bytes");
    }
  }));
}

TEST_F(Memory, IsReportedAsLibTorchDoes) {
  const Tensor x = at::rand({kLarge + 1});
  const auto gradient = td::grad(of_one([](const Tensor& x) { return x.sin().exp().cos().sum(); }), {0});
  Tensors result = gradient({x});
  const auto measured = [&] {
    result.clear();
    return peak_memory([&] { result = gradient({x}); });
  };
  const int64_t with_cache = measured();
  tower::set_memory_limit(0);
  EXPECT_EQ(with_cache, measured());
}

}  // namespace
