// What a mapped function says to the other examples of its batch. vmap gives its axis a name, and inside it
//
//   const auto normalize = [](const at::Tensor& x) { return x / tower::psum(x, "batch"); };
//   tower::vmap(normalize, {.axis = "batch"})(xs);
//
// sums over all examples. Names and meanings are those of JAX: each collective is an operator with rules for every
// transform, and what it is to the derivative of the mapped function is in docs/processes.md. They take trees
// (tower/tree.h); the tensors of one go together.
//
// An axis is found by its name among the vmaps that are running; the innermost of that name is meant.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <utility>
#include <vector>

#include "tower/mesh.h"
#include "tower/tree.h"

namespace tower {

namespace dynamic {
/// vmap whose examples have a name.
Function vmap(Function f, Dims in_dims, Dims out_dims, VmapOptions options, NamedExamples examples);

Tensors psum(const Tensors& tensors, std::string_view axis);
Tensors pmean(const Tensors& tensors, std::string_view axis);
Tensors pmax(const Tensors& tensors, std::string_view axis);
Tensors pmin(const Tensors& tensors, std::string_view axis);
Tensors all_gather(const Tensors& tensors, std::string_view axis, int64_t dim = 0);
Tensors psum_scatter(const Tensors& tensors, std::string_view axis, int64_t dim = 0);
Tensors ppermute(const Tensors& tensors, std::string_view axis, const std::vector<std::pair<int64_t, int64_t>>& pairs);
Tensors all_to_all(const Tensors& tensors, std::string_view axis, int64_t split_dim, int64_t concat_dim);
}  // namespace dynamic

/// The number of examples.
int64_t axis_size(std::string_view axis);
/// Which of them this is, an int64 scalar that differs between examples.
at::Tensor axis_index(std::string_view axis);

/// The sum over the examples, the same for all of them.
template <TensorTree T>
T psum(const T& tree, std::string_view axis) {
  return with_leaves(tree, dynamic::psum(leaves_of(tree), axis));
}

/// The mean over the examples.
template <TensorTree T>
T pmean(const T& tree, std::string_view axis) {
  return with_leaves(tree, dynamic::pmean(leaves_of(tree), axis));
}

/// The largest, elementwise. Where several are, they share the derivative evenly, as with at::amax.
template <TensorTree T>
T pmax(const T& tree, std::string_view axis) {
  return with_leaves(tree, dynamic::pmax(leaves_of(tree), axis));
}

/// The smallest, elementwise.
template <TensorTree T>
T pmin(const T& tree, std::string_view axis) {
  return with_leaves(tree, dynamic::pmin(leaves_of(tree), axis));
}

/// All examples' tensors, stacked along a new dimension `dim`.
template <TensorTree T>
T all_gather(const T& tree, std::string_view axis, int64_t dim = 0) {
  return with_leaves(tree, dynamic::all_gather(leaves_of(tree), axis, dim));
}

/// The sum, of which example i gets element i along `dim`, a dimension of the axis's size, which goes.
template <TensorTree T>
T psum_scatter(const T& tree, std::string_view axis, int64_t dim = 0) {
  return with_leaves(tree, dynamic::psum_scatter(leaves_of(tree), axis, dim));
}

/// For each pair {from, to} example `to` gets what example `from` has; one that is no `to` gets zeros. No two pairs
/// have the same `from`, or the same `to`.
template <TensorTree T>
T ppermute(const T& tree, std::string_view axis, const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  return with_leaves(tree, dynamic::ppermute(leaves_of(tree), axis, pairs));
}

/// Example i gets element i along `split_dim`, a dimension of the axis's size, of every example, stacked along
/// `concat_dim` of the result.
template <TensorTree T>
T all_to_all(const T& tree, std::string_view axis, int64_t split_dim, int64_t concat_dim) {
  return with_leaves(tree, dynamic::all_to_all(leaves_of(tree), axis, split_dim, concat_dim));
}

}  // namespace tower
