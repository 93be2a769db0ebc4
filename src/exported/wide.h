// Arithmetic of integers whose results may need more than 64 bits.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace tower::exported {

using Wide = __int128;

/// None where it needs more than 64 bits.
inline std::optional<int64_t> narrow(Wide n) {
  if (n < std::numeric_limits<int64_t>::min() || n > std::numeric_limits<int64_t>::max()) return std::nullopt;
  return static_cast<int64_t>(n);
}

}  // namespace tower::exported
