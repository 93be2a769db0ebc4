// What a function is compiled for besides its tensors: the shape of the arguments' trees and their static parts, by
// value.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <typeindex>
#include <vector>

#include "tower/tree.h"

namespace tower::detail {

/// Equal and of equal sign; a nan is what it is.
template <class T>
bool same_number(T a, T b) {
  return a == b ? 1 / a == 1 / b || a != 0 : a != a && b != b;
}
bool same_number(const at::Scalar& a, const at::Scalar& b);
std::string text_of(const at::TensorOptions& options);

/// A static value as a key keeps it: in memory of its own, with a == that tells all values apart.
template <class T>
auto owned(const T& value) {
  if constexpr (std::is_convertible_v<T, std::string_view>) return std::string(std::string_view(value));
  else if constexpr (std::is_same_v<T, at::IntArrayRef>) return value.vec();
  else if constexpr (std::is_same_v<T, at::TensorOptions>) return text_of(value);
  else return value;
}

template <class T>
bool same_static(const T& a, const T& b) {
  if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, at::Scalar>) {
    return same_number(a, b);
  } else if constexpr (!HasFields<T> && requires { Tree<T>::children(a, [](const auto&) {}); }) {
    // A container without tensors: its elements may have a == that is not enough.
    std::vector<const void*> of_b;
    Tree<T>::children(b, [&](const auto& child) { of_b.push_back(&child); });
    std::size_t next = 0;
    bool same = true;
    Tree<T>::children(a, [&](const auto& child) {
      same = same && next < of_b.size() &&
             same_static(child, *static_cast<const std::decay_t<decltype(child)>*>(of_b[next]));
      ++next;
    });
    if constexpr (requires { Tree<T>::keys(a) == Tree<T>::keys(b); })
      same = same && Tree<T>::keys(a) == Tree<T>::keys(b);
    return same && next == of_b.size();
  } else {
    static_assert(
        std::equality_comparable<T>,
        "tower: a function is compiled for the values of its static arguments, but the type of one has no ==, "
        "so that another value could not be told from it. Give it one (bool operator==(const T&) const = "
        "default).");
    return a == b;
  }
}

template <class T>
struct NamedFields;
template <class... Member>
struct NamedFields<std::tuple<Member...>> {
  template <class Class, class Field>
  static Field type_of(Field Class::*);
  /// As a struct of these fields alone would be.
  static constexpr std::size_t size() {
    std::size_t end = 0, widest = 1;
    [[maybe_unused]] const auto add = [&](std::size_t bytes, std::size_t alignment) {
      end = (end + alignment - 1) / alignment * alignment + bytes;
      widest = alignment > widest ? alignment : widest;
    };
    (add(sizeof(decltype(type_of(Member{}))), alignof(decltype(type_of(Member{})))), ...);
    return (end + widest - 1) / widest * widest;
  }
};

class StaticKey {
 public:
  template <class... D>
  static StaticKey of(const D&... args) {
    StaticKey key(typeid(std::tuple<D...>));
    (key.append(args), ...);
    return key;
  }

  bool operator==(const StaticKey& other) const;

 private:
  struct Part {
    std::shared_ptr<const void> value;
    bool (*same)(const void*, const void*);
  };

  explicit StaticKey(std::type_index type) : type_(type) {}

  template <class T>
  void append(const T& tree) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      shape_.push_back(tree.defined());
    } else if constexpr (TensorTree<T>) {
      if constexpr (HasFields<T>)
        static_assert(
            sizeof(T) <= NamedFields<decltype(tower_fields(std::declval<const T&>()))>::size(),
            "tower: a function is compiled for the values of static arguments, but a struct among its "
            "arguments has fields that its tower_fields does not name, so that other values could not be told "
            "from these. Name them all; numbers may be named, too.");
      if constexpr (requires { Tree<T>::keys(tree); })
        for (const std::string& name : Tree<T>::keys(tree)) add(name);
      const std::size_t place = shape_.size();
      shape_.push_back(0);
      int64_t children = 0;
      Tree<T>::children(tree, [&](const auto& child) {
        append(child);
        ++children;
      });
      shape_[place] = children;
    } else {
      add(owned(tree));
    }
  }

  template <class T>
  void add(T value) {
    parts_.push_back({std::make_shared<const T>(std::move(value)), [](const void* a, const void* b) {
                        return same_static(*static_cast<const T*>(a), *static_cast<const T*>(b));
                      }});
  }

  std::type_index type_;
  std::vector<int64_t> shape_;  // of the trees: what follows is of the same types where it is equal
  std::vector<Part> parts_;
};

}  // namespace tower::detail
