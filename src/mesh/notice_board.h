// Where processes write what became of them: a store that all of them can read.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "mesh/in_time.h"
#include "mesh/store.h"

namespace tower::mesh {

// The store's server may be among the dead: nothing here waits for it longer than `kAsk`, on a thread that is left
// behind if need be. Where there is none to be had, nothing is written or read.
class NoticeBoard {
 public:
  NoticeBoard(StorePointer store, int64_t rank) : store_(std::move(store)), rank_(rank) {}

  void write(const std::string& what) const { set(key(rank_), what); }
  /// What the processes wrote, as soon as one of them wrote a reason of its own or all have; nothing where the board
  /// does not answer.
  std::optional<std::map<int64_t, std::string>> read(const std::vector<int64_t>& ranks) const {
    std::map<int64_t, std::string> found;
    const auto end = std::chrono::steady_clock::now() + kAsk;
    while (true) {
      for (const int64_t rank : ranks) {
        if (rank == rank_ || found.count(rank)) continue;
        const auto text = get(key(rank));
        if (!text) return std::nullopt;
        if (!text->empty()) found[rank] = *text;
        if (!text->empty() && is_reason(*text)) return found;
      }
      if (found.size() + 1 == ranks.size() || std::chrono::steady_clock::now() > end) return found;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  /// The collective that failed here.
  void write_doing(const std::string& what) const { set(doing(rank_), what.substr(0, kLongest)); }
  /// What those processes were doing which say so before long, `until` true of one.
  std::map<int64_t, std::string> read_doing(const std::vector<int64_t>& ranks,
                                            const std::function<bool(const std::string&)>& until) const {
    std::map<int64_t, std::string> found;
    const auto end = std::chrono::steady_clock::now() + kAsk;
    while (true) {
      for (const int64_t rank : ranks) {
        if (rank == rank_ || found.count(rank)) continue;
        const auto text = get(doing(rank));
        if (!text) return found;
        if (text->empty()) continue;
        found[rank] = *text;
        if (until(*text)) return found;
      }
      if (found.size() + 1 == ranks.size() || std::chrono::steady_clock::now() > end) return found;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  /// That this process knows what there is to know.
  void write_told() const { set(told(rank_), "told"); }
  /// Whether all others know, or will not ask any more.
  void wait_until_told(int64_t processes) const {
    const auto end = std::chrono::steady_clock::now() + 2 * kAsk;
    for (int64_t r = 0; r < processes; ++r) {
      const auto know = [&] {
        return patiently<bool>([store = store_, key = told(r)] { return store->check({key}); });
      };
      while (r != rank_ && !know().value_or(true) && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  // What a process wrote either says why it gave up, or that it lost others.
  static std::string reason(const std::string& why) { return "!" + why; }
  static bool is_reason(std::string_view text) { return !text.empty() && text[0] == '!'; }
  static std::string lost() { return "lost"; }

 private:
  // How long a process that lost the others waits for what they have to say.
  static constexpr std::chrono::milliseconds kAsk{1000};

  static constexpr size_t kLongest = 1 << 20;  // bytes; c10d's store takes 8 MiB

  static std::string key(int64_t rank) { return "ended/" + std::to_string(rank); }
  static std::string told(int64_t rank) { return "told/" + std::to_string(rank); }
  static std::string doing(int64_t rank) { return "doing/" + std::to_string(rank); }

  void set(const std::string& key, const std::string& what) const {
    patiently<bool>([store = store_, key, what] {
      store->set(key, std::vector<uint8_t>(what.begin(), what.end()));
      return true;
    });
  }
  /// Empty: there is nothing.
  std::optional<std::string> get(const std::string& key) const {
    return patiently<std::string>([store = store_, key] {
      if (!store->check({key})) return std::string();
      const auto bytes = store->get(key);
      return std::string(bytes.begin(), bytes.end());
    });
  }

  template <class T>
  static std::optional<T> patiently(std::function<T()> ask) {
    try {
      return in_time<T>(kAsk, std::move(ask));
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  StorePointer store_;
  int64_t rank_;
};

}  // namespace tower::mesh
