#include "mesh/first_message.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace tower::mesh {

WorkPointer Wire::gather(Tensor bytes, Tensor& all) const {
  if (size == 1) {
    all = bytes.view({1, bytes.numel()});
    return {};
  }
  all = at::empty({size, bytes.numel()}, bytes.options());
  Tensor flat = all.view({-1});
  return backend(bytes)->_allgather_base(flat, bytes);
}

// A message between processes of one machine takes less time than to wake up a process whose core has gone to sleep. So
// who waits stays awake for a while, and leaves the core to whoever else wants it.
void wait_awake(const WorkPointer& work, const Tensor& buffer) {
  constexpr std::chrono::microseconds kAwake{1000};
  if (!work) return;
  const auto end = std::chrono::steady_clock::now() + kAwake;
  while (buffer.is_cpu() && !work->isCompleted() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  work->wait();
}

FirstMessage::FirstMessage(Wire& wire, const Mark& what, int64_t number, int64_t bytes, at::Device device)
    : wire_(wire),
      mark_{what.value(), number},
      bytes_(bytes),
      own_(at::zeros({wire.foresight.room()}, at::dtype(at::kByte).device(device))) {
  if (own_.is_cpu()) std::memcpy(own_.mutable_data_ptr(), mark_.data(), kMark);
  else own_.narrow(0, 0, kMark).copy_(at::tensor(mark_, at::kLong).view(at::kByte));
}

bool FirstMessage::agrees() const {
  wait_awake(work_, own_);
  const Tensor marks = all_.narrow(1, 0, kMark).contiguous().cpu();
  const auto* found = static_cast<const char*>(marks.const_data_ptr());
  for (int64_t r = 0; r < wire_.size; ++r)
    if (std::memcmp(found + r * kMark, mark_.data(), kMark) != 0) return false;
  return true;
}

bool FirstMessage::agreed() {
  if (!agrees()) return false;
  wire_.foresight.learn(mark_[0], kMark + bytes_);
  return true;
}

}  // namespace tower::mesh
