// What the batching rule of a user's operator or function is told of the vmap that runs it.
#pragma once

#include <cstdint>

#include "tower/dynamic.h"

namespace tower {

struct VmapInfo {
  int64_t batch_size;
  Randomness randomness;
};

}  // namespace tower
