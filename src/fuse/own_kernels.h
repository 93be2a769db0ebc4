// For reports: calls that are made of kernels, without being kernels of the graph that they are in.
#pragma once

#include <cstddef>
#include <optional>

namespace tower::compiler {

/// Of how many kernels, and of how many operators these are.
struct OwnKernels {
  size_t kernels, operators;
};

/// Code of a call (operators/known_code.h) that may be such.
class HasOwnKernels {
 public:
  virtual ~HasOwnKernels() = default;
  /// None where it is not, or not yet.
  virtual std::optional<OwnKernels> own_kernels() const = 0;
};

}  // namespace tower::compiler
