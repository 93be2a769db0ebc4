// A function under every nesting of three transforms, and under the same where a loop over the examples stands for
// vmap: then it is an oracle's turn to be transformed.
#pragma once

#include <string>
#include <vector>

#include "tower/dynamic.h"

namespace support {

/// Examples of every vmap.
inline constexpr int64_t kExamples = 3;

/// "vvv", "vvj", …: from the outermost, v for vmap, j for jvp, r for reverse mode.
std::vector<std::string> nestings();

/// Fixed directions, different for each of `like` and each phase.
tower::dynamic::Tensors directions(const tower::dynamic::Tensors& like, double phase);

/// The derivatives are along fixed directions, so that it takes and returns lists again.
tower::dynamic::Function transformed(const std::string& kinds, tower::dynamic::Function f, bool by_loop);

/// Arguments of these shapes, with a leading dimension for each vmap.
tower::dynamic::Tensors inputs_of(const std::vector<std::vector<int64_t>>& shapes, const std::string& kinds);

}  // namespace support
