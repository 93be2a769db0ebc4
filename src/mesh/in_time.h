// Calls that may wait for ever.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>

namespace tower::mesh {

/// What `f` returns, or nothing when that takes longer: LibTorch's stores, and gloo's connections while they are made,
/// have waits without a limit. It runs on a thread that is left behind if need be, so that `f` owns what it uses.
/// Throws what `f` throws, and std::system_error where there is no thread to be had.
template <class T>
std::optional<T> in_time(std::chrono::milliseconds limit, std::function<T()> f) {
  auto task = std::make_shared<std::packaged_task<T()>>(std::move(f));
  auto answer = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (answer.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

}  // namespace tower::mesh
