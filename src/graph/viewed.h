// Where a view is in the memory of what it views, found out without a value of it: so views between kernels need not be
// made, and cost nothing when a plan runs.
//
// Of `x.slice(1, 2, 4)` of a contiguous x of 3 × 5 numbers: sizes 3 × 2, strides 5 and 1, 2 elements behind x's first.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.h"

namespace tower::compiler {

/// How a value lies in memory, and how many elements behind the first one of what it is seen of.
struct Lies {
  Sizes sizes, strides;
  at::ScalarType dtype;
  int64_t offset = 0;

  bool operator==(const Lies&) const = default;
};

/// How the results of a view lie (those that are kNoValue: not at all), where its only operand lies so. None where it
/// copies what it would view.
std::optional<std::vector<Lies>> lie_in_operand(const Graph& graph, const Call& call, const Lies& operand);

/// Which views of a graph kernels can read where what they view lies.
///
/// `lies`: of what has a known place before anything is computed, or is computed to one; undefined of the rest.
/// `takes_memory`: of each call, whether it reads operands by their place. All of a view's readers do, or are such
/// views.
struct Viewed {
  ValueId of;  // no view itself
  Lies lies;   // offset: in that
};
ById<ValueId, std::optional<Viewed>> views_in_memory(const Graph& graph, const ById<ValueId, std::optional<Lies>>& lies,
                                                     const std::vector<bool>& takes_memory);

}  // namespace tower::compiler
