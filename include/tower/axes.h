// Which dimension vmap maps, for every tensor of a tree.
//
//   Axes a = 0;                              dimension 0 of every tensor
//   Axes b = std::nullopt;                   none: the tensors are the same for all examples
//   Axes c = {0, std::nullopt, {0, -1}};     part by part: the third part is a tree of two
//
// A number or nullopt stands for every tensor of the part of the tree that it is given for; a list has one entry for
// each direct child (elements in order, the values of a map in the order of their keys, a struct's fields as named).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tower/tree.h"

namespace tower {

/// Which dimension is mapped of every tensor of a tree: one for all, or a list that goes into the tree. Whether it fits
/// the tree is seen where it is used: vmap throws ArgumentError that names the place.
class Axes {
 public:
  // NOLINTBEGIN(google-explicit-constructor): Axes are written as literals
  /// Dimension `dim` of every tensor; a negative one is counted from the end of each.
  Axes(int64_t dim) : dim_(dim) {}
  /// None: the tensors are the same for all examples.
  Axes(std::nullopt_t) {}
  /// Dimension `dim`, or none where it is empty.
  Axes(std::optional<int64_t> dim) : dim_(dim) {}
  // NOLINTEND(google-explicit-constructor)
  /// A list: `parts` has one entry for each direct child of the tree.
  Axes(std::initializer_list<Axes> parts) : is_list_(true), parts_(parts) {}
  /// A list that is made at run time, of the same `parts`.
  explicit Axes(std::vector<Axes> parts) : is_list_(true), parts_(std::move(parts)) {}

  /// Whether this is a list; else it is one dimension, or none, for all tensors.
  bool is_list() const { return is_list_; }
  /// The one dimension of all tensors; only where this is not a list.
  std::optional<int64_t> dim() const { return dim_; }
  /// The entries of a list, one for each direct child of the tree; only where this is a list.
  const std::vector<Axes>& parts() const { return parts_; }

 private:
  bool is_list_ = false;
  std::optional<int64_t> dim_;
  std::vector<Axes> parts_;
};

namespace detail {

/// What Axes are matched against: the shape of a tree, without its values.
struct TreeShape {
  enum class Kind { tensor, absent_tensor, static_value, container };
  Kind kind;
  std::vector<TreeShape> children = {};
  std::vector<std::string> keys = {};  // of a map's children

  std::size_t tensors() const;
  /// `where` with the index or key of a child behind it: "argument 0[\"bias\"]".
  std::string child_name(const std::string& where, std::size_t child) const;
};

template <class T>
TreeShape shape_of(const T& tree) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return {tree.defined() ? TreeShape::Kind::tensor : TreeShape::Kind::absent_tensor};
  } else if constexpr (TensorTree<T>) {
    TreeShape shape{TreeShape::Kind::container};
    if constexpr (requires { Tree<T>::keys(tree); }) shape.keys = Tree<T>::keys(tree);
    Tree<T>::children(tree, [&](const auto& child) { shape.children.push_back(shape_of(child)); });
    return shape;
  } else {
    return {TreeShape::Kind::static_value};
  }
}

/// Appends the dimension of each tensor of argument `index` of `count`; `in_dims` is a list. Throws ArgumentError where
/// it does not fit the arguments.
void append_in_dims(const Axes& in_dims, const TreeShape& argument, std::size_t index, std::size_t count,
                    dynamic::Dims& dims);
/// The dimension of each tensor of the output. Throws ArgumentError where `axes` do not fit it.
dynamic::Dims out_dims_for(const Axes& axes, const TreeShape& output);

/// The name of tensor `index` among all those of the arguments, for messages: "argument 0[1]".
std::string name_of_tensor(const std::vector<TreeShape>& arguments, std::size_t index);

}  // namespace detail
}  // namespace tower
