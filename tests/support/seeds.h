// Which random programs a test tries.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <ranges>
#include <string>

namespace support {

/// The numbers that programs are drawn by: for (const uint64_t seed : seeds("TOWER_PROGRAMS", 300)) …
struct Seeds {
  uint64_t from = 0, count = 0;
  bool wanted = false;  // by somebody, who may like to know more

  auto begin() const { return std::views::iota(from, from + count).begin(); }
  auto end() const { return std::views::iota(from, from + count).end(); }
  /// One of `parts` equal ones, for tests that run side by side.
  Seeds part(uint64_t which, uint64_t parts) const { return {from + which * (count / parts), count / parts, wanted}; }
};

/// Whether tests try all that they could (TOWER_WHOLE=1, once a week), also what has seldom anything to say of its own.
inline bool whole() { return std::getenv("TOWER_WHOLE") != nullptr; }

/// The first `usual` ones where tests are whole, and half of them else, unless the environment's `variable` says
/// otherwise: a count, or first:count.
inline Seeds seeds(const char* variable, uint64_t usual) {
  const char* wanted = std::getenv(variable);
  if (!wanted) return {0, whole() ? usual : (usual + 1) / 2};
  const std::string text = wanted;
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return {0, std::stoull(text), true};
  return {std::stoull(text), std::stoull(text.substr(colon + 1)), true};
}

}  // namespace support
