// Graphs taken apart, so that a transform can put an operator in the place of one.
//
//   with_parts     calls of which some have to be seen in their order   →   these, and between them parts that only
//                  compute, a call each
//   split_linear    z = f(x, t), y = g(x)                          →   (y, r) = first(x), z = second(r, t)
#pragma once

#include <functional>
#include <optional>

#include "graph/graph.h"

namespace tower::compiler {

/// Calls that can stand as one operator: a function without effects that captures nothing and gives no views of what it
/// was given.
struct ComputingPart {
  Graph graph;
  std::vector<ValueId> operands, results;  // as the whole graph numbers them
};
/// The graph with the call that `make` gives in the place of each part of `fewest` calls or more. Calls that draw
/// random numbers, run a user's code or write to arguments and captured tensors stay, and so do views that somebody
/// outside sees. None where there is no such part.
std::optional<Graph> with_parts(const Graph& graph, size_t fewest, const std::function<Call(ComputingPart)>& make);

struct Halves {
  Graph first;                        // of x: the results y, then values that the second half reads
  std::vector<size_t> from_operands;  // elements of x that the second half reads: its first arguments
  Graph second;                       // of those elements of x, of the values, and of t
};
/// `graph`: a function without effects of `operands` tensors x and of others, t. Its first `outs` results, y, do not
/// depend on t.
Halves split_linear(const Graph& graph, size_t operands, size_t outs);

/// Of each result of a function without effects, which arguments it may have a derivative by: one has none where all
/// ways lead through detach(), what was called without grad mode, or operators that have none.
std::vector<std::vector<bool>> differentiable_by(const Graph& graph);

/// The graph without its first results, and without what only they need.
Graph without_results(const Graph& graph, size_t count);

}  // namespace tower::compiler
