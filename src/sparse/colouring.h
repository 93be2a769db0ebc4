// Groups of columns that one directional derivative serves.
#pragma once

#include "tower/sparse.h"

namespace tower::sparse {

struct Colouring {
  std::vector<int64_t> colours = {};  // of each column; -1: it has no entries
  int64_t count = 0;
};

/// No two columns of a colour have an entry in the same row.
Colouring colour_columns(const Sparsity& pattern);

/// Of a symmetric pattern: of two columns that share an entry off the diagonal, one is the only one of its colour in
/// the other's row (a star colouring). Each entry is then found at its place or at the mirrored one.
Colouring colour_stars(const Sparsity& symmetric);

}  // namespace tower::sparse
