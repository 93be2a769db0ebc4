// The allocator of temporaries (tower/memory.h): LibTorch's CPU allocator, and a cache of blocks for each thread.
//
//   allocate     outside of transforms: the allocator that was there
//                inside: the last block of the size class that came back, else a new one
//   free_block   of blocks made inside, wherever they end: into the cache of the thread, if it has one with room
//
// NOTE [Blocks are ordinary blocks]
// A block of the cache is one of c10::alloc_cpu, with nothing in front of it, and its size class is read off the size
// that malloc knows. So all deleters are good for all blocks: those of raw_allocate, which LibTorch calls for the
// scratch memory of its convolutions, may be freed by LibTorch's deleter, and LibTorch's by this one.
//
// NOTE [How much is kept]
// A cache is of use for what is freed and allocated again: of each size class, what is in use at once. So a block that
// stayed at the bottom of its class for some calls is freed. The classes have their peaks at different times; twice the
// peak of all together has room for them (with the peak itself a fifth of the blocks of bench/workloads came from the
// system again, with 1.5 times a tenth, with twice the peak one in a hundred). A call's own peak counts in full, those
// of the calls before fade. What was freed the longest time ago makes room for what is freed now.
#include "core/memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Flags.h>
#include <malloc.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <mutex>
#include <new>
#include <vector>

#include "tower/memory.h"

C10_DECLARE_bool(caffe2_cpu_allocator_do_zero_fill);
C10_DECLARE_bool(caffe2_cpu_allocator_do_junk_fill);

// Defined in programs that run under a sanitizer.
extern "C" {
[[gnu::weak]] void __asan_init();
[[gnu::weak]] void __tsan_init();
[[gnu::weak]] void __msan_init();
[[gnu::weak]] void __hwasan_init();
}

namespace tower {
namespace memory {

constinit thread_local ThreadMemory thread_memory;

namespace {

// Read at the end of each call. To some milliseconds will do, where that costs less.
std::chrono::nanoseconds now() {
#if defined(CLOCK_MONOTONIC_COARSE)
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
#else
  return std::chrono::steady_clock::now().time_since_epoch();
#endif
}

// LibTorch for other machines may come with a malloc of its own, which malloc_usable_size does not know.
#if defined(__GLIBC__) && defined(__x86_64__)
constexpr bool kBlocksAreMallocs = true;
#else
constexpr bool kBlocksAreMallocs = false;
#endif

// Size classes: whole lines of the processor's cache, and from eight of them on eight classes to a power of two, so
// that a block is at most an eighth larger than what was asked for.
constexpr int kLineLog = 6, kSteppedLog = kLineLog + 3, kLargestLog = 36;
constexpr size_t kLine = size_t{1} << kLineLog, kStepped = size_t{1} << kSteppedLog;
constexpr size_t kLargest = size_t{1} << kLargestLog;
constexpr size_t kClasses = 8 * (kLargestLog - kSteppedLog) + 8;
constexpr uint64_t kUnusedCalls = 16;
constexpr auto kIdle = std::chrono::seconds(1);
// From here on an allocation outside of transforms looks whether the cache is idle.
constexpr size_t kWorthALook = size_t{1} << 16;

constexpr size_t size_of(size_t size_class) {
  if (size_class < 7) return (size_class + 1) << kLineLog;
  const size_t step = size_class - 7;
  return (8 + step % 8) << (step / 8 + kLineLog);
}
// The largest class of at most `bytes`, which are a line or more.
constexpr size_t class_within(size_t bytes) {
  if (bytes < kStepped) return (bytes >> kLineLog) - 1;
  const int log = std::bit_width(bytes) - 1;
  return 7 + static_cast<size_t>(8 * (log - kSteppedLog)) + ((bytes >> (log - 3)) & 7);
}
// The smallest class of at least `bytes`.
constexpr size_t class_for(size_t bytes) { return bytes <= kLine ? 0 : class_within(bytes - 1) + 1; }
static_assert(class_for(kLargest) == kClasses - 1 && size_of(kClasses - 1) == kLargest);
static_assert(class_for(kLine + 1) == 1 && size_of(1) == 2 * kLine && class_for(kStepped) == 7 && size_of(8) == 576);

bool sanitized() { return __asan_init || __tsan_init || __msan_init || __hwasan_init; }

std::atomic<size_t> limit{sanitized() ? 0 : kDefaultMemoryLimit};

}  // namespace

// The free blocks of a size class, by when they were put there.
class Blocks {
 public:
  struct Block {
    void* data;
    uint64_t call;  // when it was put there
  };

  bool empty() const { return oldest_ == blocks_.size(); }
  const Block& oldest() const { return blocks_[oldest_]; }
  void put(Block block) { blocks_.push_back(block); }
  void* take_latest() {
    void* data = blocks_.back().data;
    blocks_.pop_back();
    if (empty()) clear();
    return data;
  }
  void* take_oldest() {
    void* data = blocks_[oldest_++].data;
    if (empty()) clear();
    else if (2 * oldest_ > blocks_.size()) shift();
    return data;
  }

 private:
  void clear() {
    blocks_.clear();
    oldest_ = 0;
  }
  void shift() {
    blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(oldest_));
    oldest_ = 0;
  }

  std::vector<Block> blocks_;
  size_t oldest_ = 0;
};

// The blocks are guarded by the mutex, since other threads may give them back; the rest is the thread's own.
class Cache {
 public:
  std::mutex mutex;

  size_t held() const { return held_.load(std::memory_order_relaxed); }

  void begin_call() {
    live_ = peak_ = 0;
    used_ = false;
  }

  void end_call() {
    if (!used_) return release_if_idle();
    recent_peak_ = std::max(peak_, recent_peak_ - recent_peak_ / 16);
    last_use_ = now();
    const std::lock_guard lock(mutex);
    ++call_;
    if (call_ >= next_look_) {
      next_look_ = call_ + kUnusedCalls + 1;
      while (held() > 0) {
        const uint64_t least = blocks_[oldest()].oldest().call;
        if (least + kUnusedCalls >= call_) {
          next_look_ = least + kUnusedCalls + 1;
          break;
        }
        free_oldest();
      }
    }
    trim(bound());
  }

  void release_if_idle() {
    if (held() == 0 || now() - last_use_ < kIdle) return;
    const std::lock_guard lock(mutex);
    trim(0);
  }

  /// A block of the class, or null. It counts as live in any case.
  void* take(size_t size_class) {
    const size_t size = size_of(size_class);
    used_ = true;
    live_ += static_cast<int64_t>(size);
    peak_ = std::max(peak_, live_);
    const std::lock_guard lock(mutex);
    Blocks& blocks = blocks_[size_class];
    if (blocks.empty()) return nullptr;
    return taken(size_class, blocks.take_latest());
  }

  /// Whether it keeps the block, which is of `bytes` or a little more.
  bool put(void* data, size_t bytes, bool in_call) try {
    const size_t size_class = class_within(bytes), size = size_of(size_class);
    if (in_call) live_ -= static_cast<int64_t>(size);
    const std::lock_guard lock(mutex);
    const size_t room = bound();
    if (size > room) return false;
    trim(room - size);
    blocks_[size_class].put({data, call_});
    word(size_class) |= bit(size_class);
    add_held(static_cast<int64_t>(size));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }

  /// Frees what was put there the longest time ago until it holds at most `bytes`. The mutex is held.
  void trim(size_t bytes) {
    while (held() > bytes) free_oldest();
  }

 private:
  // The class with the oldest block; there is one.
  size_t oldest() const {
    size_t found = kClasses;
    for (size_t w = 0; w < filled_.size(); ++w)
      for (uint64_t rest = filled_[w]; rest; rest &= rest - 1) {
        const size_t k = 64 * w + static_cast<size_t>(std::countr_zero(rest));
        if (found == kClasses || blocks_[k].oldest().call <= blocks_[found].oldest().call) found = k;
      }
    return found;
  }
  void free_oldest() {
    const size_t k = oldest();
    c10::free_cpu(taken(k, blocks_[k].take_oldest()));
  }
  void* taken(size_t size_class, void* data) {
    if (blocks_[size_class].empty()) word(size_class) &= ~bit(size_class);
    add_held(-static_cast<int64_t>(size_of(size_class)));
    return data;
  }

  uint64_t& word(size_t size_class) { return filled_[size_class / 64]; }
  static uint64_t bit(size_t size_class) { return uint64_t{1} << size_class % 64; }

  size_t bound() const {
    return std::min(limit.load(std::memory_order_relaxed), 2 * static_cast<size_t>(std::max(peak_, recent_peak_)));
  }
  void add_held(int64_t bytes) { held_.store(held() + static_cast<size_t>(bytes), std::memory_order_relaxed); }

  std::array<Blocks, kClasses> blocks_;                     // by size class
  std::array<uint64_t, (kClasses + 63) / 64> filled_ = {};  // a bit for each class that has blocks
  std::atomic<size_t> held_ = 0;
  uint64_t call_ = 0, next_look_ = 0;  // before that one no block was there for too long
  // Of this call: bytes taken and not yet put back on this thread, and the most of it. Blocks from before that end now
  // make it less than it is, which keeps less.
  int64_t live_ = 0, peak_ = 0;
  int64_t recent_peak_ = 0;
  bool used_ = false;
  std::chrono::nanoseconds last_use_{};
};

namespace {

// All caches. Never destroyed: tensors end after static objects do.
struct Registry {
  std::mutex mutex;
  std::vector<Cache*> caches;

  template <class F>
  size_t sum(F&& of_cache) {
    const std::lock_guard lock(mutex);
    size_t sum = 0;
    for (Cache* cache : caches) sum += of_cache(*cache);
    return sum;
  }
};
Registry& registry() {
  static Registry& all = *new Registry;
  return all;
}

size_t trim_all(size_t bytes) {
  return registry().sum([bytes](Cache& cache) {
    const std::lock_guard lock(cache.mutex);
    const size_t before = cache.held();
    cache.trim(bytes);
    return before - cache.held();
  });
}

// A child has the blocks of all threads, and may give them back: no thread is in the middle of something at a fork.
void before_fork() {
  registry().mutex.lock();
  for (Cache* cache : registry().caches) cache->mutex.lock();
}
void after_fork() {
  for (Cache* cache : registry().caches) cache->mutex.unlock();
  registry().mutex.unlock();
}

// Ends with the thread.
struct Owner {
  ~Owner() {
    Cache* cache = thread_memory.cache;
    thread_memory.cache = nullptr;
    thread_memory.ended = true;
    const std::lock_guard lock(registry().mutex);
    std::erase(registry().caches, cache);
    {
      const std::lock_guard blocks(cache->mutex);
      cache->trim(0);
    }
    delete cache;
  }
};

Cache* cache_of_this_thread() {
  if (!thread_memory.cache && !thread_memory.ended) {
    auto* cache = new Cache;
    {
      const std::lock_guard lock(registry().mutex);
      registry().caches.push_back(cache);
    }
    thread_memory.cache = cache;
    static thread_local const Owner owner;
  }
  return thread_memory.cache;
}

void free_block(void* data) {
  if (!data) return;
  c10::profiledCPUMemoryReporter().Delete(data);
  if (Cache* cache = thread_memory.cache) {
    const size_t bytes = malloc_usable_size(data);
    if (bytes >= kLine && bytes < kLargest && cache->put(data, bytes, thread_memory.calls > 0)) return;
  }
  c10::free_cpu(data);
}

class Allocator final : public c10::Allocator {
 public:
  explicit Allocator(c10::Allocator* former) : former_(former) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (thread_memory.calls > 0 && bytes > 0 && bytes <= limit.load(std::memory_order_relaxed) && bytes <= kLargest &&
        !FLAGS_caffe2_cpu_allocator_do_zero_fill && !FLAGS_caffe2_cpu_allocator_do_junk_fill) {
      if (void* data = take(bytes)) {
        c10::profiledCPUMemoryReporter().New(data, bytes);
        return {data, data, &free_block, c10::Device(c10::DeviceType::CPU)};
      }
    } else if (bytes >= kWorthALook && thread_memory.cache) {
      thread_memory.cache->release_if_idle();
    }
    try {
      return former_->allocate(bytes);
    } catch (const c10::Error&) {
      if (release_memory() == 0) throw;
    }
    return former_->allocate(bytes);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  // Null if the system has no block of that class.
  static void* take(size_t bytes) {
    Cache* cache = cache_of_this_thread();
    if (!cache) return nullptr;
    const size_t size_class = class_for(bytes);
    if (void* data = cache->take(size_class)) return data;
    try {
      return c10::alloc_cpu(size_of(size_class));
    } catch (const c10::Error&) {
      return nullptr;
    }
  }

  c10::Allocator* former_;
};

bool install() {
  c10::Allocator* former = c10::GetCPUAllocator();
  if (!kBlocksAreMallocs || former != c10::GetDefaultCPUAllocator()) return false;
  pthread_atfork(before_fork, after_fork, after_fork);
  c10::SetCPUAllocator(new Allocator(former));
  return true;
}

}  // namespace

void begin_outermost() {
  if (limit.load(std::memory_order_relaxed) == 0) return;
  [[maybe_unused]] static const bool installed = install();
  if (thread_memory.cache) thread_memory.cache->begin_call();
}

void end_outermost() {
  if (thread_memory.cache) thread_memory.cache->end_call();
}

}  // namespace memory

void set_memory_limit(size_t bytes_per_thread) {
  memory::limit.store(bytes_per_thread, std::memory_order_relaxed);
  memory::trim_all(bytes_per_thread);
}

size_t memory_limit() { return memory::limit.load(std::memory_order_relaxed); }

size_t memory_cached() {
  return memory::registry().sum([](const memory::Cache& cache) { return cache.held(); });
}

size_t release_memory() { return memory::trim_all(0); }

}  // namespace tower
