// Random programs of examples that speak to each other, and what they mean: an interpreter of plain tensors, which runs
// all examples in lock step. There a collective is a function of the list of all examples' values, a branch or a loop
// is an `if` or a `while` for each example, and derivatives are those of LibTorch's autograd.
//
// Examples have two axes, "data" and "inner": they are a grid, flat as a list.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tower/mesh.h"

namespace lockstep {

using at::Tensor;

/// How many examples there are along each axis.
struct Grid {
  int64_t data, inner;
  int64_t size(int axis) const { return axis == 0 ? data : inner; }
};

enum class Op {
  sin,
  add,
  multiply,
  psum,
  pmean,
  pmax,
  pmin,
  all_gather,
  psum_scatter,
  ppermute,
  all_to_all,
  axis_index,
  cond,
  while_loop,
  fori_loop,
  scan,
  checkpoint,
  grad,
};
constexpr int kOps = static_cast<int>(Op::grad) + 1;

/// A step of a program: an operator of earlier registers, which makes another. All registers have shape [2].
struct Step;
using Block = std::vector<Step>;
struct Step {
  Op op;
  size_t a = 0, b = 0;                                  ///< registers
  int axis = 0;                                         ///< that a collective speaks along
  std::vector<std::pair<int64_t, int64_t>> pairs = {};  ///< of ppermute
  double limit = 0;                                     ///< of a predicate
  int64_t count = 0;                                    ///< of a loop's steps
  int64_t checkpoints = 0;                              ///< 0: all is kept
  double compact = 0;
  Block body = {}, other = {};  ///< with one register more than there are around it; `other`: the second branch
};

struct Program {
  Grid grid;
  Block block;  ///< of the registers x, u, w
  std::string text() const;
};
Program draw(uint64_t seed);
/// Whether the program has such a step, also inside of others.
bool has(const Block& block, Op op);

/// x: [data, inner, 2], each example's own; u: [data, 2], the same along "inner"; w: [2], the same for all.
struct Arguments {
  Tensor x, u, w;
};
Arguments arguments(const Program& program);

/// The last register of each example, [data, inner, 2]: by the interpreter, and by Tower.
Tensor interpreted(const Program& program, const Arguments& arguments);
Tensor mapped(const Program& program, const Arguments& arguments);
/// The same of the sum over all examples, which each of them knows, weighted.
Tensor weighted(const Tensor& results);
Tensor weighted_sum(const Program& program, const Arguments& arguments, const tower::Mesh& across = {});
/// Of each example the gradient by its x of the sum of its own results. What it says to others counts in theirs.
Tensor gradients_inside(const Program& program, const Arguments& arguments);

}  // namespace lockstep
