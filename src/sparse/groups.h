// Which directional derivatives give all entries of a pattern, and where among them each entry is found.
#pragma once

#include "sparse/colouring.h"

namespace tower::sparse {

/// Groups of columns, each a jvp, and groups of rows, each a vjp; either may have none.
struct Groups {
  Colouring columns, rows;
  /// Of each entry in the pattern's order: its place in the derivatives along the groups of columns, one after the
  /// other, and then those along the groups of rows.
  std::vector<int64_t> places;
};

/// The cheapest of: columns, rows, long rows by themselves and the rest by columns, long columns by themselves and the
/// rest by rows.
Groups jacobian_groups(const Sparsity& pattern);
/// Of a symmetric matrix, whose entries may be found as the mirrored ones. The pattern need not be symmetric.
Groups hessian_groups(const Sparsity& pattern);

}  // namespace tower::sparse
