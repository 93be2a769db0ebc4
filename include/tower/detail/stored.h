// Trees without their tensors as bytes and back: what a saved function keeps of the arguments and results of its
// graphs.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tower/detail/static_key.h"
#include "tower/tree.h"

namespace tower::detail {

/// "std::vector<at::Tensor>".
std::string readable(const std::type_info& type);
[[noreturn]] void refuse_stored(const std::type_info& type);

class StaticWriter {
 public:
  void raw(const void* data, std::size_t size) { bytes_.append(static_cast<const char*>(data), size); }
  void count(std::size_t n) {
    const std::uint64_t wide = n;
    raw(&wide, sizeof wide);
  }
  void text(const std::string& t) {
    count(t.size());
    raw(t.data(), t.size());
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Throws ArgumentError where the bytes end too early, or go on.
class StaticReader {
 public:
  explicit StaticReader(const std::string& bytes) : bytes_(bytes) {}
  void raw(void* data, std::size_t size);
  std::size_t count();
  std::string text();
  void finish() const;

 private:
  const std::string& bytes_;
  std::size_t next_ = 0;
};

/// How a type is stored. The primary template is for types that cannot be.
template <class T>
struct StaticBytes {
  static constexpr bool possible = false;
};

template <class T>
void store(StaticWriter& out, const T& value) {
  if constexpr (StaticBytes<T>::possible) StaticBytes<T>::put(out, value);
  else refuse_stored(typeid(T));
}

template <class T>
T restore(StaticReader& in) {
  static_assert(
      StaticBytes<T>::possible,
      "tower: values of this type cannot be read from a file of a compiled function. Tensors, numbers, enums, "
      "strings, containers of these, and structs that name all their fields (tower_fields) can be.");
  return StaticBytes<T>::get(in);
}

template <>
struct StaticBytes<at::Tensor> {
  static constexpr bool possible = true;
  static void put(StaticWriter& out, const at::Tensor& t) {
    const bool defined = t.defined();
    out.raw(&defined, 1);
  }
  static at::Tensor get(StaticReader& in) {
    char defined = 0;
    in.raw(&defined, 1);
    return defined ? placeholder() : at::Tensor();
  }
};

template <class T>
requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) struct StaticBytes<T> {
  static constexpr bool possible = true;
  static void put(StaticWriter& out, const T& value) { out.raw(&value, sizeof value); }
  static T get(StaticReader& in) {
    T value{};
    in.raw(&value, sizeof value);
    return value;
  }
};

template <>
struct StaticBytes<std::string> {
  static constexpr bool possible = true;
  static void put(StaticWriter& out, const std::string& value) { out.text(value); }
  static std::string get(StaticReader& in) { return in.text(); }
};

template <class T>
struct StaticBytes<std::vector<T>> {
  static constexpr bool possible = StaticBytes<T>::possible;
  static void put(StaticWriter& out, const std::vector<T>& value) {
    out.count(value.size());
    for (const T& element : value) store<T>(out, element);
  }
  static std::vector<T> get(StaticReader& in) {
    std::vector<T> value;
    for (std::size_t n = in.count(); n-- > 0;) value.push_back(restore<T>(in));
    return value;
  }
};

template <class T, std::size_t n>
struct StaticBytes<std::array<T, n>> {
  static constexpr bool possible = StaticBytes<T>::possible;
  static void put(StaticWriter& out, const std::array<T, n>& value) {
    for (const T& element : value) store<T>(out, element);
  }
  static std::array<T, n> get(StaticReader& in) {
    std::array<T, n> value;
    for (T& element : value) element = restore<T>(in);
    return value;
  }
};

template <class... T>
struct StaticBytes<std::tuple<T...>> {
  static constexpr bool possible = (StaticBytes<T>::possible && ...);
  static void put(StaticWriter& out, const std::tuple<T...>& value) {
    std::apply([&](const T&... element) { (store<T>(out, element), ...); }, value);
  }
  static std::tuple<T...> get([[maybe_unused]] StaticReader& in) {
    return std::tuple<T...>{restore<T>(in)...};  // braces: in order
  }
};

template <class A, class B>
struct StaticBytes<std::pair<A, B>> {
  static constexpr bool possible = StaticBytes<A>::possible && StaticBytes<B>::possible;
  static void put(StaticWriter& out, const std::pair<A, B>& value) {
    store<A>(out, value.first);
    store<B>(out, value.second);
  }
  static std::pair<A, B> get(StaticReader& in) { return std::pair<A, B>{restore<A>(in), restore<B>(in)}; }
};

template <class T>
struct StaticBytes<std::optional<T>> {
  static constexpr bool possible = StaticBytes<T>::possible;
  static void put(StaticWriter& out, const std::optional<T>& value) {
    store<bool>(out, value.has_value());
    if (value) store<T>(out, *value);
  }
  static std::optional<T> get(StaticReader& in) {
    if (!restore<bool>(in)) return std::nullopt;
    return restore<T>(in);
  }
};

template <class T>
struct StaticBytes<std::map<std::string, T>> {
  static constexpr bool possible = StaticBytes<T>::possible;
  static void put(StaticWriter& out, const std::map<std::string, T>& value) {
    out.count(value.size());
    for (const auto& [key, element] : value) {
      out.text(key);
      store<T>(out, element);
    }
  }
  static std::map<std::string, T> get(StaticReader& in) {
    std::map<std::string, T> value;
    for (std::size_t n = in.count(); n-- > 0;) {
      std::string key = in.text();
      value.emplace(std::move(key), restore<T>(in));
    }
    return value;
  }
};

template <HasFields T>
struct StaticBytes<T> {
  using Members = decltype(tower_fields(std::declval<const T&>()));
  static constexpr bool possible = std::apply(
      [](auto... field) {
        return std::is_default_constructible_v<T> && sizeof(T) <= NamedFields<Members>::size() &&
               (StaticBytes<std::remove_cvref_t<decltype(std::declval<T&>().*field)>>::possible && ...);
      },
      Members{});
  static void put(StaticWriter& out, const T& value) {
    std::apply([&](auto... field) { (store(out, value.*field), ...); }, tower_fields(value));
  }
  static T get(StaticReader& in) {
    T value;
    std::apply([&](auto... field) { ((value.*field = restore<std::remove_cvref_t<decltype(value.*field)>>(in)), ...); },
               tower_fields(value));
    return value;
  }
};

}  // namespace tower::detail
