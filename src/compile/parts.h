// Graphs taken apart, so that a transform can put an operator in the place of one.
//
//   split_effects   y = f(x) and writes to x, views of x or of y   →   y = inside(x), and the rest outside
//   split_linear    z = f(x, t), y = g(x)                          →   (y, r) = first(x), z = second(r, t)
#pragma once

#include <optional>

#include "compile/graph.h"

namespace tower::compiler {

/// An operand of what was taken out: an argument of the graph, or a tensor that it captured.
struct Operand {
  size_t argument;
  Tensor captured;  // undefined: the argument
};

struct WithoutEffects {
  std::vector<Operand> operands;
  Graph inside;   // a function of them that only computes: captures nothing, and gives no views of what it was given
  Graph outside;  // of the graph's arguments, and the results of `inside` behind them
};
/// None where calls do what a transform must see in their order: they draw random numbers, run a user's code, or write
/// to captured tensors; and where nothing is computed.
std::optional<WithoutEffects> split_effects(const Graph& graph);

struct Halves {
  Graph first;                         // of x: the results y, then values that the second half reads
  std::vector<ValueId> from_operands;  // which elements of x it reads besides, those first
  Graph second;                        // of those, of the values, and of t
};
/// `graph`: a function without effects of `operands` tensors x and of others, t. Its first `outs` results, y, do not
/// depend on t.
Halves split_linear(const Graph& graph, size_t operands, size_t outs);

/// The graph without its first results, and without what only they need.
Graph without_results(const Graph& graph, size_t count);

}  // namespace tower::compiler
