// What Tower knows of every operator: which rule serves it under which transform.
#pragma once

#include <string>
#include <vector>

namespace tower {

/// How one operator is served under one transform.
struct CoverageRow {
  std::string op;         ///< "aten::add.Tensor"
  std::string transform;  ///< "vmap", "vjp" or "jvp"
  /// "own rule", "family: pointwise", "decomposition", "composite", "implementation", "loop", "LibTorch autograd",
  /// "transposed vjp", "transposed jvp", "no derivative", "in-place form of aten::add.Tensor", "random", "refused: …",
  /// or "error: …"
  std::string served;
};

/// One row for each operator that LibTorch's dispatcher knows now, and each transform; sorted by operator.
std::vector<CoverageRow> coverage();

/// With `yes`, an operator that has no batching rule is an UnsupportedError under vmap; without, as in the beginning, a
/// loop over the examples with a warning. For the whole process; returns what was set before.
bool set_fallback_is_error(bool yes);

}  // namespace tower
