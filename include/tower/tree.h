// Trees: the values that transforms take and return. A tree is a tensor, a container of trees, or a struct whose fields
// are trees; its tensors are its leaves. Everything else in it (numbers, strings, the number of elements, the keys of a
// map) is static: it is carried along and never differentiated or mapped.
//
//   at::Tensor                                    a leaf
//   numbers, bool, enums, strings, at::Scalar, …  static
//   std::vector, array, tuple, pair, optional,    trees of their elements
//     map<std::string, T>, torch::OrderedDict<std::string, T>
//   your struct                                   a tree of the fields that one line names:
//
//   struct State {
//     at::Tensor position, velocity;
//     int steps;
//   };
//   constexpr auto tower_fields(const State&) { return std::tuple(&State::position, &State::velocity); }
//
// The function is found by argument-dependent lookup: put it beside the struct. Fields that it does not name are
// static, so a struct without tensors to transform returns `std::tuple()`.
//
// An undefined tensor is a static part like the nullopt of an optional: the place of a tensor that is not there.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tower/dynamic.h"

namespace torch {
template <typename Key, typename Value>
class OrderedDict;
}

namespace tower {

/// How a type is a tree. The primary template is for types that are none. What a specialization for a container has:
///   holds_tensors         whether a value can hold tensors at all; if not, it is static as a whole
///   children(tree, visit) calls visit(child) for each direct child in order; `tree` may be const or not
///   Rebind<R>             the same type with each tensor replaced by an R
///   map<R>(tree, map)     the Rebind<R> whose children are map(child)
///   keys(tree)            the children's names for messages, where they have any
template <class T>
struct Tree {
  /// Whether the type is a tree.
  static constexpr bool is_tree = false;
};

/// A type that holds no tensors and is passed through as it is. Derive a specialization of Tree from it for more such
/// types.
struct StaticTree {
  /// It is a tree,
  static constexpr bool is_tree = true;
  /// of no tensors.
  static constexpr bool holds_tensors = false;
};

/// A type that transforms take and return.
template <class T>
concept IsTree = Tree<T>::is_tree;

/// A tree that can hold tensors, so that a transform has something to do.
template <class T>
concept TensorTree = IsTree<T> && Tree<T>::holds_tensors;

namespace detail {

template <class T, class R>
struct RebindTree {
  using type = typename Tree<T>::template Rebind<R>;
};
template <class T, class R>
requires(!TensorTree<T>) struct RebindTree<T, R> {
  using type = T;
};

template <class T>
concept HasFields = requires(const T& value) {
  tower_fields(value);
};

[[noreturn]] void refuse_unnamed_field();

template <class... T>
struct TreeOf {
  static_assert(
      (IsTree<T> && ...),
      "tower: an element is not a tree. Trees are tensors, numbers, strings, containers of trees, and structs "
      "with a tower_fields function (tower/tree.h).");
  static constexpr bool is_tree = true;
  static constexpr bool holds_tensors = (TensorTree<T> || ...);
};

}  // namespace detail

/// `T` with each tensor replaced by an `R`: the type of a Jacobian whose outputs are a `T` and whose argument is an
/// `R`.
template <class T, class R>
using Rebound = typename detail::RebindTree<T, R>::type;

template <>
struct Tree<at::Tensor> {
  static constexpr bool is_tree = true;
  static constexpr bool holds_tensors = true;
  template <class R>
  using Rebind = R;
};

template <class T>
requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) struct Tree<T> : StaticTree {
};
template <>
struct Tree<std::string> : StaticTree {};
template <>
struct Tree<std::string_view> : StaticTree {};
template <>
struct Tree<const char*> : StaticTree {};
template <>
struct Tree<std::nullopt_t> : StaticTree {};
template <>
struct Tree<at::Scalar> : StaticTree {};
template <>
struct Tree<at::Device> : StaticTree {};
template <>
struct Tree<at::TensorOptions> : StaticTree {};
template <>
struct Tree<at::IntArrayRef> : StaticTree {};

template <class T>
struct Tree<std::vector<T>> : detail::TreeOf<T> {
  template <class R>
  using Rebind = std::vector<Rebound<T, R>>;

  template <class Self, class Visit>
  static void children(Self& tree, Visit&& visit) {
    for (auto& child : tree) visit(child);
  }
  template <class R, class Map>
  static Rebind<R> map(const std::vector<T>& tree, Map&& map) {
    Rebind<R> result;
    result.reserve(tree.size());
    for (const T& child : tree) result.push_back(map(child));
    return result;
  }
};

template <class T, std::size_t n>
struct Tree<std::array<T, n>> : detail::TreeOf<T> {
  template <class R>
  using Rebind = std::array<Rebound<T, R>, n>;

  template <class Self, class Visit>
  static void children(Self& tree, Visit&& visit) {
    for (auto& child : tree) visit(child);
  }
  template <class R, class Map>
  static Rebind<R> map(const std::array<T, n>& tree, Map&& map) {
    return std::apply([&](const auto&... child) { return Rebind<R>{map(child)...}; }, tree);
  }
};

template <class... T>
struct Tree<std::tuple<T...>> : detail::TreeOf<T...> {
  template <class R>
  using Rebind = std::tuple<Rebound<T, R>...>;

  template <class Self, class Visit>
  static void children(Self& tree, Visit&& visit) {
    std::apply([&](auto&... child) { (visit(child), ...); }, tree);
  }
  template <class R, class Map>
  static Rebind<R> map(const std::tuple<T...>& tree, Map&& map) {
    // Braces: the children are mapped in order.
    return std::apply([&](const auto&... child) { return Rebind<R>{map(child)...}; }, tree);
  }
};

template <class A, class B>
struct Tree<std::pair<A, B>> : detail::TreeOf<A, B> {
  template <class R>
  using Rebind = std::pair<Rebound<A, R>, Rebound<B, R>>;

  template <class Self, class Visit>
  static void children(Self& tree, Visit&& visit) {
    visit(tree.first);
    visit(tree.second);
  }
  template <class R, class Map>
  static Rebind<R> map(const std::pair<A, B>& tree, Map&& map) {
    return Rebind<R>{map(tree.first), map(tree.second)};
  }
};

template <class T>
struct Tree<std::optional<T>> : detail::TreeOf<T> {
  template <class R>
  using Rebind = std::optional<Rebound<T, R>>;

  template <class Self, class Visit>
  static void children(Self& tree, Visit&& visit) {
    if (tree) visit(*tree);
  }
  template <class R, class Map>
  static Rebind<R> map(const std::optional<T>& tree, Map&& map) {
    if (!tree) return std::nullopt;
    return Rebind<R>(map(*tree));
  }
};

template <class T>
struct Tree<std::map<std::string, T>> : detail::TreeOf<T> {
  template <class R>
  using Rebind = std::map<std::string, Rebound<T, R>>;

  template <class Self, class Visit>
  static void children(Self& tree, Visit&& visit) {
    for (auto& [key, child] : tree) visit(child);
  }
  static std::vector<std::string> keys(const std::map<std::string, T>& tree) {
    std::vector<std::string> result;
    result.reserve(tree.size());
    for (const auto& [key, child] : tree) result.push_back(key);
    return result;
  }
  template <class R, class Map>
  static Rebind<R> map(const std::map<std::string, T>& tree, Map&& map) {
    Rebind<R> result;
    for (const auto& [key, child] : tree) result.emplace_hint(result.end(), key, map(child));
    return result;
  }
};

template <class T>
struct Tree<torch::OrderedDict<std::string, T>> : detail::TreeOf<T> {
  template <class R>
  using Rebind = torch::OrderedDict<std::string, Rebound<T, R>>;

  template <class Self, class Visit>
  static void children(Self& tree, Visit&& visit) {
    for (auto& item : tree) visit(item.value());
  }
  static std::vector<std::string> keys(const torch::OrderedDict<std::string, T>& tree) { return tree.keys(); }
  template <class R, class Map>
  static Rebind<R> map(const torch::OrderedDict<std::string, T>& tree, Map&& map) {
    Rebind<R> result(tree.key_description());
    for (const auto& item : tree) result.insert(item.key(), map(item.value()));
    return result;
  }
};

/// What a struct `T` is where an `R` stands for each of its tensors, as in a Hessian: its named fields, found by the
/// struct's members.
///
///   auto h = tower::hessian(energy)(state);  // Fields<State, State>
///   h[&State::position].velocity             // derivative by position, then by velocity
template <class T, class R>
class Fields {
 public:
  /// A tuple of the struct's members, as it names them.
  using Members = decltype(tower_fields(std::declval<const T&>()));
  /// A tuple of the fields: of each the type, with an `R` for each tensor.
  using Values = typename decltype(std::apply(
      [](auto... member) {
        return std::type_identity<
            std::tuple<Rebound<std::remove_cvref_t<decltype(std::declval<T&>().*member)>, R>...>>();
      },
      std::declval<const Members&>()))::type;

  /// The fields `values` in the places of `members`.
  Fields(const Members& members, Values values) : members_(members), values_(std::move(values)) {}

  /// The field in the place of `member`; throws ArgumentError where the struct does not name it.
  template <class Field, class Class>
  const Rebound<Field, R>& operator[](Field Class::*member) const {
    const Rebound<Field, R>* found = nullptr;
    each([&](auto named, const auto& value) {
      if constexpr (std::is_same_v<decltype(named), Field Class::*>)
        if (named == member) found = &value;
    });
    if (!found) detail::refuse_unnamed_field();
    return *found;
  }

  /// The members that the struct names.
  const Members& members() const { return members_; }
  /// The fields, in the order of the members.
  Values& values() { return values_; }
  /// The same.
  const Values& values() const { return values_; }

 private:
  template <class Visit>
  void each(Visit&& visit) const {
    [&]<std::size_t... I>(std::index_sequence<I...>) { (visit(std::get<I>(members_), std::get<I>(values_)), ...); }
    (std::make_index_sequence<std::tuple_size_v<Members>>{});
  }

  Members members_;
  Values values_;
};

template <class T, class R>
struct Tree<Fields<T, R>> {
  /// The fields, whose tree this is.
  using Values = typename Fields<T, R>::Values;
  static constexpr bool is_tree = true;
  static constexpr bool holds_tensors = TensorTree<Values>;

  template <class S>
  using Rebind = Fields<T, Rebound<R, S>>;

  template <class Self, class Visit>
  static void children(Self& tree, Visit&& visit) {
    Tree<Values>::children(tree.values(), visit);
  }
  template <class S, class Map>
  static Rebind<S> map(const Fields<T, R>& tree, Map&& map) {
    return Rebind<S>(tree.members(), Tree<Values>::template map<S>(tree.values(), map));
  }
};

/// A struct that names its fields.
template <detail::HasFields T>
struct Tree<T> {
  static constexpr bool is_tree = true;
  static constexpr bool holds_tensors = std::apply(
      [](auto... field) { return (TensorTree<std::remove_cvref_t<decltype(std::declval<T&>().*field)>> || ...); },
      decltype(tower_fields(std::declval<const T&>())){});

  /// A struct's type is fixed: only tensors can stand where its tensors are.
  template <class R>
  using Rebind = std::conditional_t<std::is_same_v<R, at::Tensor>, T, Fields<T, R>>;

  template <class Self, class Visit>
  static void children(Self& tree, Visit&& visit) {
    std::apply([&](auto... field) { (visit(tree.*field), ...); }, tower_fields(tree));
  }
  template <class R, class Map>
  static Rebind<R> map(const T& tree, Map&& map) {
    if constexpr (std::is_same_v<R, at::Tensor>) {
      T result = tree;
      std::apply([&](auto... field) { ((result.*field = map(tree.*field)), ...); }, tower_fields(tree));
      return result;
    } else {
      const auto members = tower_fields(tree);
      // Braces: the fields are mapped in order.
      return std::apply(
          [&](auto... field) { return Fields<T, R>(members, typename Fields<T, R>::Values{map(tree.*field)...}); },
          members);
    }
  }
};

/// Calls visit(tensor) for every tensor of `tree`, in order, undefined ones too. `tree` may be const or not.
template <class Self, class Visit>
void for_each_tensor(Self& tree, Visit&& visit) {
  using T = std::remove_const_t<Self>;
  static_assert(IsTree<T>, "tower: not a tree (see tower/tree.h): name the fields of a struct with tower_fields.");
  if constexpr (std::is_same_v<T, at::Tensor>) {
    visit(tree);
  } else if constexpr (TensorTree<T>) {
    Tree<T>::children(tree, [&visit](auto& child) { for_each_tensor(child, visit); });
  }
}

/// `tree` with each tensor replaced by map(tensor), an `R`.
template <class R, class T, class Map>
Rebound<T, R> map_tensors(const T& tree, Map&& map) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return map(tree);
  } else if constexpr (TensorTree<T>) {
    return Tree<T>::template map<R>(tree, [&map](const auto& child) { return map_tensors<R>(child, map); });
  } else {
    return tree;
  }
}

/// Appends the defined tensors of `tree` to `leaves`, in order.
template <class T>
void append_leaves(const T& tree, dynamic::Tensors& leaves) {
  for_each_tensor(tree, [&](const at::Tensor& tensor) {
    if (tensor.defined()) leaves.push_back(tensor);
  });
}

/// The defined tensors of `tree`, in order.
template <class T>
dynamic::Tensors leaves_of(const T& tree) {
  dynamic::Tensors leaves;
  append_leaves(tree, leaves);
  return leaves;
}

/// The tree `like` with its defined tensors replaced by `leaves`. Throws ArgumentError where their number differs.
template <class T>
T with_leaves(T like, const dynamic::Tensors& leaves);

namespace detail {

/// Hands out the elements of a list one by one, as trees are filled with them.
class LeafReader {
 public:
  explicit LeafReader(const dynamic::Tensors& leaves) : leaves_(leaves) {}
  const at::Tensor& next();
  /// Throws where leaves are left over.
  void finish() const;

 private:
  const dynamic::Tensors& leaves_;
  std::size_t next_ = 0;
};

/// Replaces the defined tensors of `tree` by the reader's next ones.
template <class T>
void fill(T& tree, LeafReader& reader) {
  for_each_tensor(tree, [&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = reader.next();
  });
}

/// A defined tensor without data that stands where a leaf goes, in a tree kept for its static parts only.
const at::Tensor& placeholder();

/// Moves the defined tensors out of `tree`, which keeps its static parts and placeholders.
template <class T>
void move_leaves(T& tree, dynamic::Tensors& leaves) {
  for_each_tensor(tree, [&](at::Tensor& tensor) {
    if (!tensor.defined()) return;
    leaves.push_back(std::move(tensor));
    tensor = placeholder();
  });
}

/// Whether two trees differ in their tensors at most: the same tensors are defined, containers have the same sizes and
/// keys, and static parts are equal (those that cannot be compared count as equal).
template <class T>
bool same_static_parts(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return a.defined() == b.defined();
  } else if constexpr (!TensorTree<T>) {
    if constexpr (std::equality_comparable<T>) return a == b;
    else return true;
  } else {
    if constexpr (requires { Tree<T>::keys(a) == Tree<T>::keys(b); })
      if (Tree<T>::keys(a) != Tree<T>::keys(b)) return false;
    std::vector<const void*> children;  // of the same type as those of `b` in their places
    Tree<T>::children(a, [&](const auto& child) { children.push_back(&child); });
    std::size_t next = 0;
    bool same = true;
    Tree<T>::children(b, [&](const auto& child) {
      same = same && next < children.size() &&
             same_static_parts(*static_cast<const std::decay_t<decltype(child)>*>(children[next]), child);
      ++next;
    });
    return same && next == children.size();
  }
}

/// The static parts of `tree`, with placeholders for its tensors, which it does not keep alive.
template <class T>
T static_parts(T tree) {
  for_each_tensor(tree, [&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = placeholder();
  });
  return tree;
}

}  // namespace detail

template <class T>
T with_leaves(T like, const dynamic::Tensors& leaves) {
  detail::LeafReader reader(leaves);
  detail::fill(like, reader);
  reader.finish();
  return like;
}

}  // namespace tower
