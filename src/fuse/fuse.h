// Calls of a graph that go over the same lanes become one call of a kernel. A pass over graphs: what comes out is a
// graph that a plan runs as any other, on plain tensors that nothing follows.
//
// There are two kinds of regions. Calls on tensors that are small for one example of a vmap have the examples as lanes,
// and are unrolled (fuse/unrolled.h); what is left of pointwise calls has all elements as lanes (fuse/rows.h).
//
// What comes into this room is a graph as it was traced, and the kernels that the function has; what goes out is
// another graph, which computes the same, and for reports what its kernels are. In the order of fuse():
//
//   vmaps_of_one.h                      vmaps over one example are left out
//   sums_as_products.h, contraction.h   products that are made only to be summed: one product of matrices
//   scaled_products.h                   a scale of rows comes out of a product: it is made once for many scales
//   weighted_sums.h                     a sum with weights goes before a product: the same, backwards
//   known_lookups.h                     what is looked up where all is the same
//   unrolled.h                          an example a lane, lane_axes.h says of which vmap; small.h has what operators
//                                       come to, small_graph.h calls, lane_kernel.h the kernel
//   recompute.h                         what one such kernel need not leave in memory for the next one
//   rows.h, row_kernel.h                an element a lane; numbers/fold.h has what rows come to
//   row_recompute.h                     what one of these computes again rather than read what another one has
//   matrix_products.h                   the products that are left, on tensors as they lie; rows_by_index.h rows that
//                                       an index points to, short_sums.h sums of rows that are too short for kernels
//   products_of_one.h                   those with the same matrix, as one call
//
// Where calls over many examples hand on more than a cache has, they are made block by block (example_blocks.h).
//
// Operators that no kernel computes are opened first (opened.h), where kernels take all that they are made of; report.h
// tells people what became of it all. pointer_program.h makes what runs without tensors, of a graph that is kernels
// alone, and one_function.h has a small graph run so. tiled_loop.h makes all steps of a loop over large tensors for a
// part of them, and then for the next one: step_in_tiles.h is its step, and row_reach.h says where such kernels read.
//
// For both kinds of kernels, regions.h puts calls into groups, and kernel_calls.h notes who reads which value.
// fused_plan.h says when all this is done: when a graph is first run and nobody looks on.
//
// What always holds:
//
// - The graph that comes in is not changed. It is what runs where somebody looks on.
// - Results have the sizes and dtypes that they had when they were traced, and lie in memory in the same order. What is
//   a view of an argument or of a captured tensor remains one.
// - A pass leaves alone what it does not know, so an operator without a rule costs its own call, not the kernels around
//   it. A rule says that it does not know a call by being null, or by giving nothing.
// - Calls that write, draw random numbers or are of unknown code are in no group, and stay in their order. No group has
//   calls from before a write and from after it.
// - No group waits for itself by way of others: groups can run one after the other.
// - A kernel is made for the sizes in its graph, and compares its operands' with these at each call
//   (graph/kernel_operator.h): another size is an error, never another result.
// - A graph is fused once, by the thread that comes first; others that would run it wait. Nothing of the user's runs
//   meanwhile, and no mutex of a table of kernels is held while LLVM works.
#pragma once

#include <memory>

#include "fuse/kernel_calls.h"
#include "fuse/report.h"
#include "numbers/thresholds.h"

namespace tower::compiler {

/// The graph with calls of kernels in the place of regions, and what these are.
struct FusedGraph {
  Graph graph;
  std::vector<Fused> kernels;
  struct Blocks;
  std::shared_ptr<const Blocks> blocks = nullptr;  // fuse/example_blocks.h; null: there are none

  /// What is in kernels, one line for each (operators, lanes, instructions, bytes, milliseconds to compile), and what
  /// is not.
  Report report() const;
};
/// What calls for a part of all examples have become.
struct FusedGraph::Blocks {
  int64_t examples;
  FusedGraph fused;
};
/// `worth`: of which calls kernels are made; those of examples have `most_operations` at most. Throws a CompileError
/// where LLVM fails, or where there is none.
FusedGraph fuse(const Graph& graph, Kernels& kernels, Worth worth = Worth::joined,
                int64_t most_operations = thresholds().most_operations);

}  // namespace tower::compiler
