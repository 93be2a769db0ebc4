// What passes over graphs and patterns know of an operator: facts, stated in its record once (records/op.h), so that no
// pass asks for a name.
#pragma once

#include <cstdint>
#include <string>

namespace tower {

/// What an operator does with the elements of its operands, where it computes nothing with them.
enum class Moves : uint8_t {
  no,
  elements,           // each of a result's is one of an operand's: select, cat, flip, …
  broadcast,          // each of a result's is the operand's that pointwise operators would read for it: expand
  elements_or_zero,   // or zero: tril, the backward of select, …
  elements_or_value,  // or the number in the argument `value`: constant_pad_nd
  in_order,           // each of the first operand's, in their order, in another shape: view, unsqueeze, …
  nothing             // each of the first operand's where it is: clone, alias, …
};

/// A product of two operands, in the notation of einsum, for one example. Letters of the operands that the result lacks
/// are summed over.
struct Contraction {
  std::string a, b, result;
  bool adds;  // the operands are the second and the third; the first is added, broadcast, with factors beta and alpha
};

/// Which elements of the arguments an element of a result depends on, for patterns of sparsity (sparse/rules.cpp has
/// how). What moves, contracts or is pointwise need not say it.
enum class Depends : uint8_t {
  unsaid,
  on_all,        // whatever else the record says
  on_its_place,  // the first argument's element in the same place, whatever its dtype and layout
  on_second,     // the second argument's element in the same place
  on_moved,      // what the operator puts there, when it is run on what its operands depend on: gather, embedding, …
  on_shown,      // as elements that move do, where an argument that is a mask does not vary; else on its place in all
  on_reduced,    // what the argument `dim` (without it: all dimensions) reduces
  on_dim,        // all along the argument `dim`
  on_other_two,  // of three components along `dim`, the two others
  on_halves,     // its place in both halves along `dim`
  on_last_dims,  // all of its row, which has as many dimensions as argument 1 names; and weight and bias there
  on_plane,      // all of its plane: its last dimensions, as many as the argument `output_size` has
  on_matrices,   // all matrices of its example in a batch of them
  by_indices,    // index_put and its kin
  by_scatter,    // scatter_add and its kin
  by_index_along,   // index_add
  on_window,        // of a convolution
  on_pooled_window  // of a pooling
};

}  // namespace tower
