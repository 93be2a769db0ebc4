// NOTE [A shared operand is not copied]
// Where all examples meet the same matrix, their own operands are further columns (or rows) of one: L·x₁, L·x₂, … is
// L·[x₁ x₂ …]. So the matrix is read once, factored once and never copied for the examples; and, as the examples are
// inside of one product when levels below see it, the gradient with respect to the matrix is one product as well, not a
// sum of as many as there are examples. What is copied, if it does not lie so already, are the operands that the
// examples have anyway.
#pragma once

#include <ATen/Functions.h>

#include "core/operator.h"

namespace tower::rules {

/// Matrices of examples, which number the first dimension, side by side: [N, …, m, n] as […, m, N·n].
inline Tensor side_by_side(const Tensor& t) { return t.movedim(0, -2).flatten(-2, -1); }
/// Below each other: [N, …, m, n] as […, N·m, n].
inline Tensor stacked_up(const Tensor& t) { return t.movedim(0, -3).flatten(-3, -2); }

/// The way back, with the examples in front, for results of `columns` (`rows`) for each of `n` examples. Of batches of
/// matrices, whose examples lie within each other, it is a copy: an example's result lies as it would on its own.
inline Tensor from_side_by_side(const Tensor& t, int64_t n, int64_t columns) {
  return t.unflatten(-1, {n, columns}).movedim(-2, 0).contiguous();
}
inline Tensor from_stacked_up(const Tensor& t, int64_t n, int64_t rows) {
  return t.unflatten(-2, {n, rows}).movedim(-3, 0).contiguous();
}

/// Right-hand sides of examples that have the matrix of a linear system in common, as those of one system. `left`: the
/// matrix is on the left of what is sought.
class SharedSystem {
 public:
  /// `b` are matrices with the examples in front. Its dimensions come to as many as the matrix has, so that no kernel
  /// takes it for vectors.
  SharedSystem(const Tensor& b, int64_t rank_of_matrix, bool left)
      : examples_(b.size(0)), each_(b.size(left ? -1 : -2)), left_(left), b_(left ? side_by_side(b) : stacked_up(b)) {
    while (b_.dim() < rank_of_matrix) b_ = b_.unsqueeze(0);
  }
  const Tensor& right_hand_sides() const { return b_; }
  /// The examples' solutions, with the examples in front. Each lies by columns where the kernel has left all so.
  Tensor solutions(const Tensor& x) const {
    const Tensor each =
        left_ ? x.unflatten(-1, {examples_, each_}).movedim(-2, 0) : x.unflatten(-2, {examples_, each_}).movedim(-3, 0);
    return x.stride(-2) == 1 ? each.mT().contiguous().mT() : each.contiguous();
  }

 private:
  int64_t examples_, each_;
  bool left_;
  Tensor b_;
};

/// Calls an operator of which no other argument is mapped than the right-hand sides, argument `b`. Argument 0 is the
/// matrix, and argument `left` whether it is on the left.
inline void solve_shared_system(VmapFrame& f, size_t b, size_t left) {
  f.to_front(b, false);
  const SharedSystem system(f.tensor(b), f.logical_dim(0), f.stack[left].toBool());
  f.stack[b] = system.right_hand_sides();
  f.call();
  f.result(system.solutions(f.tensor(0)));
}

}  // namespace tower::rules
