// Random number generators that a function has from outside. C++ cannot see what a function captured; a binding can.
#pragma once

#include <ATen/core/Generator.h>

#include <vector>

namespace tower::detail {

/// While it is alive on this thread, functions that are traced are known to have these generators, and LibTorch's own.
/// One that draws from another has made that itself, which is an error.
class KnownGenerators {
 public:
  explicit KnownGenerators(std::vector<at::Generator> generators);
  KnownGenerators(const KnownGenerators&) = delete;
  KnownGenerators& operator=(const KnownGenerators&) = delete;
  ~KnownGenerators();

  /// The innermost one; null: nothing is known.
  static const KnownGenerators* innermost();
  /// Whether this one, or one around it, has the generator.
  bool has(const at::Generator& generator) const;
  const std::vector<at::Generator>& generators() const { return generators_; }

 private:
  std::vector<at::Generator> generators_;
  const KnownGenerators* outer_;
};

}  // namespace tower::detail
