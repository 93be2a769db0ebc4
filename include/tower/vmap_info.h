// What the batching rule of a user's operator or function is told of the vmap that runs it.
#pragma once

#include <cstdint>

#include "tower/dynamic.h"

namespace tower {

/// The vmap that a batching rule is for.
struct VmapInfo {
  int64_t batch_size;     ///< how many examples
  Randomness randomness;  ///< what a random operator means in it
};

}  // namespace tower
