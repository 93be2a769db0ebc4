// What kernels of rows compute again rather than read: fuse/recompute.h for them. A product of what some examples share
// by what others do, or rows that an index repeats, is larger than all that it is made of, by few operations; what
// reads it, which may be far away, has its own of it, and passes over less memory.
#pragma once

#include <vector>

#include "fuse/regions.h"

namespace tower::compiler {

/// Puts copies of calls into the groups that read what they give. `groups`, in an order in which each finds what it
/// reads, are renumbered with the graph's calls; those of which `of_rows` holds are kernels of rows, and `joining` says
/// which calls can be in one. Of each call: the one that it was, or is a copy of, and stands behind.
std::vector<size_t> compute_rows_again(Graph& graph, const Joining& joining, std::vector<Regions::Calls>& groups,
                                       const std::vector<bool>& of_rows);
/// From that, where each call of before now stands. One that is not needed any more has no such place.
std::vector<size_t> places_now(const std::vector<size_t>& origin, size_t calls_before);

}  // namespace tower::compiler
