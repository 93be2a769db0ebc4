// Values that are there at different times can have the same memory: a block for all that a plan makes on its way, and
// in it a place for each.
//
//   const Layout layout = lay_out({{0, 1, 256}, {1, 2, 256}, {2, 3, 256}});
//   layout.places;   // 0, 256, 0: the last one comes where the first one was
//   layout.bytes;    // 512
#pragma once

#include <cstddef>
#include <vector>

namespace tower::compiler {

/// What has to be in memory from one step to another, both included.
struct Lifetime {
  size_t first, last;
  size_t bytes;
};

struct Layout {
  std::vector<size_t> places;  // of each value: where it begins in the block
  size_t bytes = 0;            // of the block, which begins at a line of the processor's cache
};

/// Places in which no two values that are there at one step share memory. What has a line of the processor's cache or
/// more begins at one, and what is smaller where any number may.
Layout lay_out(const std::vector<Lifetime>& values);

}  // namespace tower::compiler
