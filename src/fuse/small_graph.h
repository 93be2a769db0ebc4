// Calls and graphs as one lane sees them: results in numbers, made from operands in numbers.
#pragma once

#include "fuse/small.h"
#include "graph/operand_dims.h"

namespace tower::compiler {

/// Elements, for one lane, of a tensor that a loop reads or gives, or has inside, and of one of which each of its steps
/// has its own.
constexpr int64_t kMostOfLoop = 1024, kMostStacked = int64_t{1} << 18;

/// The lanes' dimension in the results of a call, where the dimensions of all vmaps come first.
int64_t lane_of_results(const Call& call, uint64_t axis);
Sizes without(const Sizes& sizes, int64_t lane);

/// Whether the tensor is small enough for one lane of a kernel; `lane` is the dimension of the lanes.
bool fits_lane(const Value& v, int64_t lane, int64_t most);
/// Puts the elements of a constant into `t`, which has its sizes; false for other values, and for constants that differ
/// between lanes.
bool add_constant(Expressions& expressions, const Value& v, int64_t lane, Small& t);
/// Whether it is a constant that is the same in all lanes.
bool is_constant_of_lanes(const Value& v, int64_t lane);
/// What a call gives for one lane, where that is known; else none.
SmallResults known_results(Expressions& expressions, const Graph& graph, const Call& call, uint64_t axis);

/// What a call gives for one lane, the examples of other vmaps in front; none if no kernel is to compute it.
/// `operands`: for one lane.
SmallResults results_of_lane(Expressions& expressions, const Graph& graph, const Call& call, uint64_t axis,
                             c10::ArrayRef<const Small*> operands);

/// The results of a graph that captures nothing, where all is the same lane's; none if no kernel is to compute it.
std::optional<SmallResults> results_of_graph(Expressions& expressions, const Graph& graph,
                                             c10::ArrayRef<const Small*> arguments);

}  // namespace tower::compiler
