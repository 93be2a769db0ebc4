// What lies between kernels: values that one writes and another reads. What is cheap is not written at all: the kernel
// that reads it computes it again, from what the other one read. So the way back through an integrator's steps has its
// states between kernels, and nothing of what each step was made of.
#pragma once

#include <functional>

#include "fuse/regions.h"

namespace tower::compiler {

/// Of a graph whose calls are put into groups that become kernels of one lane an example.
struct Costs {
  std::function<int64_t(size_t call)> operations;
  std::function<int64_t(ValueId)> elements;  // of one lane
  /// Whether the operand's maker could be in the call's group.
  std::function<bool(size_t call, size_t operand)> reads_inside;
};

/// Puts copies of calls into the groups that read what they give, where that is cheaper than to write and read it.
/// Regions are renumbered with the graph's calls. Of each call: the one that it was, or is a copy of.
std::vector<size_t> compute_again(Graph& graph, std::vector<Regions::Calls>& groups, const Costs& costs);

}  // namespace tower::compiler
