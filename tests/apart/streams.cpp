#include "apart/streams.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "apart/apart.h"
#include "apart/asserts.h"

namespace apart {
namespace {

constexpr size_t kStreams = 8;  // of each device; the first is its default
constexpr size_t kAll = kDevices * kStreams;

using Clock = std::array<uint64_t, kAll>;

void learn(Clock& clock, const Clock& other) {
  std::ranges::transform(clock, other, clock.begin(), [](uint64_t a, uint64_t b) { return std::max(a, b); });
}

struct Memory {
  size_t owner;
  Clock written{}, read{};
  std::array<bool, kAll> recorded{};
};

struct Event {
  size_t stream;
  Clock clock;
};

struct Account {
  std::mutex mutex;
  std::array<Clock, kAll> known{};  // to each stream; of itself, how much it was given to do
  Clock done{};                     // what the program has waited for
  std::unordered_map<const void*, Memory> memories;
  std::string given_back_early;
  size_t taken_from_pool = 0;
  struct Late {
    size_t stream;
    uint64_t when;
    std::function<void()> work;
  };
  std::vector<Late> late;

  // The first stream with work in `work` that this one does not know of.
  size_t unknown(size_t stream, const Clock& work) const {
    size_t other = 0;
    while (other < kAll && work[other] <= std::max(known[stream][other], done[other])) ++other;
    return other;
  }
  void finish(const Clock& work) {
    learn(done, work);
    std::erase_if(late, [&](const Late& l) {
      const bool due = l.when <= done[l.stream];
      if (due) l.work();
      return due;
    });
  }
  void tell() {
    if (!given_back_early.empty()) TORCH_CHECK(false, std::exchange(given_back_early, {}));
  }
};

// Lives to the end: tensors may die later than anything else.
Account& account() {
  static Account& all = *new Account;
  return all;
}

thread_local std::array<c10::StreamId, kDevices> current_streams{};

size_t number(const c10::Stream& stream) {
  return static_cast<size_t>(stream.device_index()) * kStreams + static_cast<size_t>(stream.id());
}
size_t number_of_current(c10::DeviceIndex device) {
  const auto d = static_cast<size_t>(device);
  return d * kStreams + static_cast<size_t>(current_streams[d]);
}
std::string name(size_t stream) { return c10::str("stream ", stream % kStreams, " of apart:", stream / kStreams); }

}  // namespace

void made(const void* memory, c10::DeviceIndex device) {
  if (memory == nullptr) return;
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  const size_t stream = number_of_current(device);
  Memory& made = all.memories.insert_or_assign(memory, Memory{stream}).first->second;
  made.written[stream] = all.known[stream][stream];
}

void given_back(const void* memory) {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  const auto found = all.memories.find(memory);
  if (found == all.memories.end()) return;
  Memory& its = found->second;
  learn(its.read, its.written);
  for (size_t s = 0; s < kAll; ++s)
    if (its.recorded[s]) its.read[s] = 0;
  if (const size_t other = all.unknown(its.owner, its.read); other < kAll)
    all.given_back_early = c10::str("memory of ", name(its.owner), " was given back while ", name(other),
                                    " used it: that has not waited for this one, and record_stream was not called");
  all.memories.erase(found);
}

void queue(c10::DeviceIndex device, const std::string& kernel, c10::ArrayRef<Used> used) {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  all.tell();
  const size_t stream = number_of_current(device);
  const auto check = [&](const Clock& work, const char* uses, const char* used_by) {
    const size_t other = all.unknown(stream, work);
    TORCH_CHECK(other == kAll, kernel, " on ", name(stream), " ", uses, " memory that ", name(other), " ", used_by,
                ", and has not waited for it");
  };
  for (const auto& [memory, written] : used) {
    const auto found = all.memories.find(memory);
    if (found == all.memories.end()) continue;
    check(found->second.written, written ? "writes to" : "reads", "wrote to");
    if (written) check(found->second.read, "writes to", "read");
  }
  Clock& known = all.known[stream];
  learn(known, all.done);
  ++known[stream];
  for (const auto& [memory, written] : used)
    if (const auto found = all.memories.find(memory); found != all.memories.end())
      (written ? found->second.written : found->second.read)[stream] = known[stream];
}

void meet(c10::DeviceIndex one, c10::DeviceIndex other) {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  Clock &a = all.known[number_of_current(one)], &b = all.known[number_of_current(other)];
  learn(a, b);
  b = a;
}

void later(c10::DeviceIndex device, std::function<void()> work) {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  const size_t stream = number_of_current(device);
  all.late.push_back({stream, all.known[stream][stream], std::move(work)});
}

void wait(c10::DeviceIndex device) {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  all.finish(all.known[number_of_current(device)]);
}

// ---- the guard's part ----------------------------------------------------------------------------------------------

namespace {

c10::Stream stream_of(c10::Device device, c10::StreamId id) {
  const c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
  return c10::Stream(c10::Stream::UNSAFE, {c10::DeviceType::PrivateUse1, index}, id);
}

}  // namespace

c10::Stream StreamsOfGuard::getStream(c10::Device device) const {
  const c10::Stream first = stream_of(device, 0);
  return stream_of(device, current_streams[static_cast<size_t>(first.device_index())]);
}

c10::Stream StreamsOfGuard::getDefaultStream(c10::Device device) const { return stream_of(device, 0); }

c10::Stream StreamsOfGuard::getStreamFromGlobalPool(c10::Device device, bool) const {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  return stream_of(device, 1 + static_cast<c10::StreamId>(all.taken_from_pool++ % (kStreams - 1)));
}

c10::Stream StreamsOfGuard::getNewStream(c10::Device device, int) const {
  return getStreamFromGlobalPool(device, false);
}

c10::Stream StreamsOfGuard::exchangeStream(c10::Stream stream) const {
  auto& current = current_streams[static_cast<size_t>(stream.device_index())];
  return stream_of(stream.device(), std::exchange(current, stream.id()));
}

bool StreamsOfGuard::queryStream(const c10::Stream& stream) const {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  const size_t s = number(stream);
  return all.known[s][s] <= all.done[s];
}

void StreamsOfGuard::synchronizeStream(const c10::Stream& stream) const {
  check_alive();
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  all.finish(all.known[number(stream)]);
  all.tell();
}

void StreamsOfGuard::synchronizeDevice(c10::DeviceIndex device) const {
  check_alive();
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  for (size_t s = 0; s < kStreams; ++s) all.finish(all.known[static_cast<size_t>(device) * kStreams + s]);
  all.tell();
}

void StreamsOfGuard::recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.memories.find(memory.get()); found != all.memories.end())
    found->second.recorded[number(stream)] = true;
}

void StreamsOfGuard::record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  if (*event == nullptr) *event = new Event;
  const size_t s = number(stream);
  *static_cast<Event*>(*event) = {s, all.known[s]};
}

void StreamsOfGuard::block(void* event, const c10::Stream& stream) const {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  learn(all.known[number(stream)], static_cast<const Event*>(event)->clock);
}

bool StreamsOfGuard::queryEvent(void* event) const {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  const auto& [stream, clock] = *static_cast<const Event*>(event);
  return clock[stream] <= all.done[stream];
}

void StreamsOfGuard::synchronizeEvent(void* event) const {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  all.finish(static_cast<const Event*>(event)->clock);
  all.tell();
}

void StreamsOfGuard::destroyEvent(void* event, c10::DeviceIndex) const noexcept { delete static_cast<Event*>(event); }

}  // namespace apart
