// Short for what a collective is, so that processes find out whether they mean the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace tower::mesh {

/// Whether the processes' tensors are alike, or parts whose first dimension is each process's own.
enum class Alike : uint8_t { whole, rows };

/// A number made of the collective's name, and of the dtypes and sizes of its tensors: equal ones are equal, others
/// differ but for one case in 2^64.
class Mark {
 public:
  Mark(std::string_view name, const std::vector<at::Tensor>& tensors, Alike alike) {
    for (const char letter : name) add(letter);
    for (const at::Tensor& t : tensors) {
      add(t.defined() ? static_cast<int64_t>(t.scalar_type()) : -1);
      if (!t.defined()) continue;
      add(t.dim());
      for (int64_t dim = alike == Alike::rows; dim < t.dim(); ++dim) add(t.size(dim));
    }
  }
  Mark& add(int64_t number) {
    // The last steps of splitmix64, for each number: each bit of it changes half of all bits.
    value_ += static_cast<uint64_t>(number) + 0x9e3779b97f4a7c15;
    value_ = (value_ ^ (value_ >> 30)) * 0xbf58476d1ce4e5b9;
    value_ = (value_ ^ (value_ >> 27)) * 0x94d049bb133111eb;
    value_ ^= value_ >> 31;
    return *this;
  }
  int64_t value() const { return static_cast<int64_t>(value_); }

 private:
  uint64_t value_ = 0;
};

}  // namespace tower::mesh
