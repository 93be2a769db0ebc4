// Behind tower/exported.h: C++ trees as lists of the leaves that exported models take and give.
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
#include <variant>
#include <vector>

#include "tower/detail/optional.h"
#include "tower/exported_tree.h"
#include "tower/tree.h"

namespace tower {

namespace detail {

[[noreturn]] void refuse_exported_type(const std::string& signature, const std::type_info& type);
[[noreturn]] void refuse_exported_value(const ExportedTree& tree, const std::type_info& type);
/// The place of a leaf that is no tensor; throws ArgumentError where it is another.
const ExportedLeaf& exported_leaf(const std::vector<ExportedLeaf>& leaves, std::size_t at, ExportedTree::Leaf kind);

/// The types of the children of a tree of which there is always the same number.
template <class T>
struct ChildTypes {
  static constexpr bool known = false;
};
template <class... T>
struct ChildTypes<std::tuple<T...>> {
  static constexpr bool known = true;
  using type = std::tuple<T...>;
};
template <class A, class B>
struct ChildTypes<std::pair<A, B>> {
  static constexpr bool known = true;
  using type = std::tuple<A, B>;
};
template <HasFields T>
struct ChildTypes<T> {
  static constexpr bool known = true;
  using type = decltype(std::apply(
      [](auto... field) {
        return std::type_identity<std::tuple<std::remove_cvref_t<decltype(std::declval<T&>().*field)>...>>();
      },
      tower_fields(std::declval<const T&>())))::type;
};

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;
template <class T>
inline constexpr bool is_array = false;
template <class T, std::size_t n>
inline constexpr bool is_array<std::array<T, n>> = true;
template <class T>
inline constexpr bool is_string_map = false;
template <class T>
inline constexpr bool is_string_map<std::map<std::string, T>> = true;
template <class>
inline constexpr bool never = false;

/// What a leaf of the type `T` is.
template <class T>
constexpr std::optional<ExportedTree::Leaf> leaf_kind() {
  if constexpr (std::is_same_v<T, at::Tensor>) return ExportedTree::Leaf::tensor;
  else if constexpr (std::is_same_v<T, bool>) return ExportedTree::Leaf::boolean;
  else if constexpr (std::is_integral_v<T>) return ExportedTree::Leaf::integer;
  else if constexpr (std::is_floating_point_v<T>) return ExportedTree::Leaf::number;
  else if constexpr (std::is_same_v<T, std::string>) return ExportedTree::Leaf::string;
  else return std::nullopt;
}

/// Whether values of the type `T` can be nested like `tree`.
template <class T>
bool fits_exported(const ExportedTree& tree) {
  using Kind = ExportedTree::Kind;
  if constexpr (leaf_kind<T>()) {
    if (tree.kind != Kind::leaf) return false;
    return tree.leaf == *leaf_kind<T>() || (std::is_same_v<T, at::Tensor> && tree.leaf == ExportedTree::Leaf::none);
  } else if constexpr (is_optional<T>) {
    return (tree.kind == Kind::leaf && tree.leaf == ExportedTree::Leaf::none) ||
           fits_exported<typename T::value_type>(tree);
  } else if constexpr (is_string_map<T> || is_vector<T> || is_array<T>) {
    if (tree.kind != (is_string_map<T> ? Kind::mapping : Kind::sequence)) return false;
    if constexpr (is_array<T>)
      if (tree.children.size() != std::tuple_size_v<T>) return false;
    for (const ExportedTree& child : tree.children) {
      if constexpr (is_string_map<T>) {
        if (!fits_exported<typename T::mapped_type>(child)) return false;
      } else {
        if (!fits_exported<typename T::value_type>(child)) return false;
      }
    }
    return true;
  } else if constexpr (ChildTypes<T>::known) {
    using Types = typename ChildTypes<T>::type;
    if (tree.kind == Kind::leaf || tree.children.size() != std::tuple_size_v<Types>) return false;
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return (fits_exported<std::tuple_element_t<I, Types>>(tree.children[I]) && ... && true);
    }
    (std::make_index_sequence<std::tuple_size_v<Types>>{});
  } else {
    static_assert(never<T>, "tower: an exported model takes and gives tensors, numbers, strings, and trees of these.");
  }
}

/// Appends the leaves of `value` in the order of `tree`.
template <class T>
void append_exported(const T& value, const ExportedTree& tree, std::vector<ExportedLeaf>& leaves) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    if (value.defined()) leaves.emplace_back(value);
    else leaves.emplace_back();
  } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::string>) {
    leaves.emplace_back(value);
  } else if constexpr (std::is_integral_v<T>) {
    leaves.emplace_back(static_cast<int64_t>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    leaves.emplace_back(static_cast<double>(value));
  } else if constexpr (is_optional<T>) {
    if (value) append_exported(*value, tree, leaves);
    else if (tree.kind == ExportedTree::Kind::leaf) leaves.emplace_back();
    else refuse_exported_value(tree, typeid(T));
  } else if constexpr (is_string_map<T>) {
    if (value.size() != tree.children.size()) refuse_exported_value(tree, typeid(T));
    for (std::size_t i = 0; i < tree.children.size(); ++i) {
      const auto found = value.find(tree.keys[i]);
      if (found == value.end()) refuse_exported_value(tree, typeid(T));
      append_exported(found->second, tree.children[i], leaves);
    }
  } else {
    std::size_t next = 0;
    Tree<T>::children(value, [&](const auto& child) {
      if (next == tree.children.size()) refuse_exported_value(tree, typeid(T));
      append_exported(child, tree.children[next++], leaves);
    });
    if (next != tree.children.size()) refuse_exported_value(tree, typeid(T));
  }
}

/// The value of the type `T` of the leaves from `at` on, after which `at` is behind them.
template <class T>
T take_exported(const ExportedTree& tree, const std::vector<ExportedLeaf>& leaves, std::size_t& at) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    if (std::holds_alternative<std::monostate>(leaves[at])) return ++at, at::Tensor();
    return std::get<at::Tensor>(exported_leaf(leaves, at++, ExportedTree::Leaf::tensor));
  } else if constexpr (std::is_same_v<T, bool>) {
    return std::get<bool>(exported_leaf(leaves, at++, ExportedTree::Leaf::boolean));
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(std::get<int64_t>(exported_leaf(leaves, at++, ExportedTree::Leaf::integer)));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(std::get<double>(exported_leaf(leaves, at++, ExportedTree::Leaf::number)));
  } else if constexpr (std::is_same_v<T, std::string>) {
    return std::get<std::string>(exported_leaf(leaves, at++, ExportedTree::Leaf::string));
  } else if constexpr (is_optional<T>) {
    if (tree.kind == ExportedTree::Kind::leaf && std::holds_alternative<std::monostate>(leaves[at]))
      return ++at, std::nullopt;
    return take_exported<typename T::value_type>(tree, leaves, at);
  } else if constexpr (is_string_map<T>) {
    T result;
    for (std::size_t i = 0; i < tree.children.size(); ++i)
      result.emplace(tree.keys[i], take_exported<typename T::mapped_type>(tree.children[i], leaves, at));
    return result;
  } else if constexpr (is_vector<T>) {
    T result;
    for (const ExportedTree& child : tree.children)
      result.push_back(take_exported<typename T::value_type>(child, leaves, at));
    return result;
  } else if constexpr (HasFields<T> || is_array<T>) {
    T result{};
    std::size_t next = 0;
    Tree<T>::children(result, [&](auto& child) {
      child = take_exported<std::remove_cvref_t<decltype(child)>>(tree.children[next++], leaves, at);
    });
    return result;
  } else {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      // Braces: the children are taken in order.
      return T{take_exported<std::tuple_element_t<I, T>>(tree.children[I], leaves, at)...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>{});
  }
}

}  // namespace detail
}  // namespace tower
