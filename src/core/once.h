// What is done once in any number of threads, by the one that comes first.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

namespace tower::compiler {

/// A value that is made where it is first asked for. Whoever asks meanwhile waits for it, so what makes it waits for
/// nobody and runs nothing of the user's: NOTE [Nobody else's code under a lock].
template <class T>
class MadeOnce {
 public:
  /// `make()`, called once; where it throws, the next to ask calls theirs.
  template <class Make>
  const T& get(const Make& make) const {
    if (const T* made = if_made()) return *made;
    std::call_once(once_, [&] {
      value_.emplace(make());
      is_made_.store(true, std::memory_order_release);
    });
    return *value_;
  }
  /// Null where nobody has asked for it yet.
  const T* if_made() const { return is_made_.load(std::memory_order_acquire) ? &*value_ : nullptr; }

 private:
  mutable std::once_flag once_;
  mutable std::atomic<bool> is_made_ = false;
  mutable std::optional<T> value_;
};

/// TORCH_WARN_ONCE holds a lock while the program's handler runs; this does not.
template <class... Text>
void warn_once(std::atomic<bool>& warned, const Text&... text) {
  if (!warned.exchange(true) || c10::WarningUtils::get_warnAlways()) TORCH_WARN(text...);
}

}  // namespace tower::compiler
