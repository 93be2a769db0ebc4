// What the arguments of index and index_put mean, dimension by dimension.
#pragma once

#include <vector>

#include "core/operator.h"

namespace tower::rules {

using OptionalTensors = c10::List<std::optional<Tensor>>;

OptionalTensors optional_list(const std::vector<Tensor>& tensors);

/// The indices of a batched index or index_put, ready to be used behind a batch dimension.
struct IndexPlan {
  std::vector<int64_t> dims;    // the indexed dimensions of an example, ascending
  std::vector<Tensor> indices;  // for each of these; the batch in front where batched
  bool any_batched = false;     // among the indices
  bool adjacent = false;        // one indexed dimension follows the other: the result has them in their place
  int64_t rank = 0;             // of the indices of one example, broadcast

  /// Reads the indices (argument 1) of `f`; masks become the places where they are true.
  /// Throws UnsupportedError for a mask that differs between examples.
  IndexPlan(const VmapFrame& f, int64_t logical_rank);

  /// Where the indices' dimensions are in the result of one example.
  int64_t place() const { return adjacent && !dims.empty() ? dims[0] : 0; }
};

}  // namespace tower::rules
