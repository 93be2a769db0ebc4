// Values as bytes and back, for files: little-endian numbers, and texts with their length before them. A reader takes
// nothing on trust: what is not there is an error.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tower::compiler {

class ByteWriter {
 public:
  void number(int64_t n) { out_.append(reinterpret_cast<const char*>(&n), sizeof n); }
  void text(std::string_view t) {
    number(static_cast<int64_t>(t.size()));
    out_.append(t);
  }
  template <class T, class F>
  void list(const T& elements, F&& write) {
    number(static_cast<int64_t>(elements.size()));
    for (const auto& element : elements) write(element);
  }
  template <class T>
  void numbers(const T& elements) {
    list(elements, [&](const auto& n) { number(static_cast<int64_t>(n)); });
  }
  const std::string& bytes() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// What is wrong with bytes that were read.
struct BytesError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}

  int64_t number() {
    int64_t n;
    std::memcpy(&n, take(sizeof n).data(), sizeof n);
    return n;
  }
  std::string_view text() { return take(static_cast<uint64_t>(number())); }
  /// Of a list whose elements take a byte at least: no more than could follow.
  size_t count() {
    const auto n = static_cast<uint64_t>(number());
    if (n > left_.size()) fail();
    return n;
  }
  /// Less than `end`.
  size_t index(size_t end) {
    const auto n = static_cast<uint64_t>(number());
    if (n >= end) fail();
    return n;
  }
  template <class T>
  T numbers() {
    T result;
    for (size_t n = count(); n-- > 0;) result.push_back(static_cast<typename T::value_type>(number()));
    return result;
  }
  bool done() const { return left_.empty(); }
  [[noreturn]] static void fail() { throw BytesError("what is in it does not fit together"); }

 private:
  std::string_view take(uint64_t n) {
    if (n > left_.size()) fail();
    const std::string_view taken = left_.substr(0, n);
    left_.remove_prefix(n);
    return taken;
  }
  std::string_view left_;
};

}  // namespace tower::compiler
