// A growing sequence in fixed chunks whose memory the thread keeps for the next tape: recording neither moves what is
// there nor asks the allocator for every node.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "core/of_thread.h"

namespace tower {

template <class T>
class Chunks {
 public:
  Chunks() = default;
  Chunks(const Chunks&) = delete;
  Chunks& operator=(const Chunks&) = delete;
  ~Chunks() {
    for (size_t i = 0; i < size_; ++i) (*this)[i].~T();
    for (std::byte* chunk : chunks_) pool().put(chunk);
  }

  size_t size() const { return size_; }
  T& operator[](size_t i) {
    return *std::launder(reinterpret_cast<T*>(chunks_[i / kPerChunk] + (i % kPerChunk) * sizeof(T)));
  }
  const T& operator[](size_t i) const { return const_cast<Chunks&>(*this)[i]; }
  T& back() { return (*this)[size_ - 1]; }

  template <class... Args>
  T& emplace_back(Args&&... args) {
    if (size_ == chunks_.size() * kPerChunk) chunks_.push_back(pool().take());
    T* place = reinterpret_cast<T*>(chunks_[size_ / kPerChunk] + (size_ % kPerChunk) * sizeof(T));
    T* made = new (place) T(std::forward<Args>(args)...);
    ++size_;
    return *made;
  }

 private:
  static constexpr size_t kPerChunk = 32;
  static constexpr size_t kKept = 64;  // chunks that a thread keeps at most

  struct Pool {
    std::vector<std::byte*> free;
    std::byte* take() {
      if (free.empty())
        return static_cast<std::byte*>(::operator new(kPerChunk * sizeof(T), std::align_val_t(alignof(T))));
      std::byte* chunk = free.back();
      free.pop_back();
      return chunk;
    }
    void put(std::byte* chunk) {
      if (free.size() < kKept) free.push_back(chunk);
      else ::operator delete(chunk, std::align_val_t(alignof(T)));
    }
    ~Pool() {
      for (std::byte* chunk : free) ::operator delete(chunk, std::align_val_t(alignof(T)));
    }
  };
  static Pool& pool() { return of_thread<Pool>(); }

  std::vector<std::byte*> chunks_;
  size_t size_ = 0;
};

}  // namespace tower
