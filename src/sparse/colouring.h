// Groups of columns no two of which have an entry in the same row: one directional derivative serves a group.
#pragma once

#include "tower/sparse.h"

namespace tower::sparse {

struct Colouring {
  std::vector<int64_t> colours;  // of each column
  int64_t count = 0;
};

/// Greedy, columns with many neighbours first (Curtis, Powell and Reid 1974; Gebremedhin, Manne and Pothen 2005).
Colouring colour_columns(const Sparsity& pattern);

}  // namespace tower::sparse
