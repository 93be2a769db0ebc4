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
/// dynamic::vmap whose examples have a name and may be those of several processes, as `examples` says. Throws
/// ArgumentError, too, for a mesh without the name of an axis and for chunks, and MeshError where the mesh has no such
/// axis.
Function vmap(Function f, Dims in_dims, Dims out_dims, VmapOptions options, NamedExamples examples);

// The collectives below (tower::psum and so on) on lists of tensors, which are sent together.

/// tower::psum of each of `tensors`.
Tensors psum(const Tensors& tensors, std::string_view axis);
/// tower::pmean of each of `tensors`.
Tensors pmean(const Tensors& tensors, std::string_view axis);
/// tower::pmax of each of `tensors`.
Tensors pmax(const Tensors& tensors, std::string_view axis);
/// tower::pmin of each of `tensors`.
Tensors pmin(const Tensors& tensors, std::string_view axis);
/// tower::all_gather of each of `tensors`.
Tensors all_gather(const Tensors& tensors, std::string_view axis, int64_t dim = 0);
/// tower::psum_scatter of each of `tensors`.
Tensors psum_scatter(const Tensors& tensors, std::string_view axis, int64_t dim = 0);
/// tower::ppermute of each of `tensors`.
Tensors ppermute(const Tensors& tensors, std::string_view axis, const std::vector<std::pair<int64_t, int64_t>>& pairs);
/// tower::all_to_all of each of `tensors`.
Tensors all_to_all(const Tensors& tensors, std::string_view axis, int64_t split_dim, int64_t concat_dim);
}  // namespace dynamic

/// The number of examples of the innermost running vmap whose axis is called `axis`, those of other processes included.
/// Throws ArgumentError where there is none, as all collectives do.
int64_t axis_size(std::string_view axis);
/// Which example of `axis` this is: an int64 scalar, from 0 to axis_size(axis) − 1, that differs between examples.
at::Tensor axis_index(std::string_view axis);

/// The sum over the examples of `axis`, the same for all of them: a tree like `tree`, of the same shapes and dtypes.
template <TensorTree T>
T psum(const T& tree, std::string_view axis) {
  return with_leaves(tree, dynamic::psum(leaves_of(tree), axis));
}

/// The mean over the examples of `axis`: the sum of `tree`, as of psum, divided by their number. Integers give floats.
template <TensorTree T>
T pmean(const T& tree, std::string_view axis) {
  return with_leaves(tree, dynamic::pmean(leaves_of(tree), axis));
}

/// The largest of the examples of `axis`, element by element of `tree`. Where several are, they share the derivative
/// evenly, as with at::amax.
template <TensorTree T>
T pmax(const T& tree, std::string_view axis) {
  return with_leaves(tree, dynamic::pmax(leaves_of(tree), axis));
}

/// The smallest, with the same `tree`, `axis` and derivative as in pmax.
template <TensorTree T>
T pmin(const T& tree, std::string_view axis) {
  return with_leaves(tree, dynamic::pmin(leaves_of(tree), axis));
}

/// The tensors that all examples of `axis` have, stacked along a new dimension: each tensor of `tree` gets one more
/// dimension, of axis_size(axis) elements, in the place `dim` of the result.
template <TensorTree T>
T all_gather(const T& tree, std::string_view axis, int64_t dim = 0) {
  return with_leaves(tree, dynamic::all_gather(leaves_of(tree), axis, dim));
}

/// The sum of `tree` over the examples, of which example i gets element i along `dim`: a dimension that the result no
/// longer has. Throws ArgumentError where its size is not axis_size(axis).
template <TensorTree T>
T psum_scatter(const T& tree, std::string_view axis, int64_t dim = 0) {
  return with_leaves(tree, dynamic::psum_scatter(leaves_of(tree), axis, dim));
}

/// For each of `pairs`, {from, to}, example `to` of `axis` gets what example `from` has in `tree`; one that is no `to`
/// gets zeros. Throws ArgumentError where two pairs have the same `from` or `to`, or there is no such example.
template <TensorTree T>
T ppermute(const T& tree, std::string_view axis, const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  return with_leaves(tree, dynamic::ppermute(leaves_of(tree), axis, pairs));
}

/// Example i gets element i along `split_dim` of the `tree` of every example, stacked along `concat_dim` of the result.
/// Throws ArgumentError where the size of `split_dim` is not axis_size(axis).
template <TensorTree T>
T all_to_all(const T& tree, std::string_view axis, int64_t split_dim, int64_t concat_dim) {
  return with_leaves(tree, dynamic::all_to_all(leaves_of(tree), axis, split_dim, concat_dim));
}

}  // namespace tower
