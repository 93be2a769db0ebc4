// A function of float64 tensors under the transforms and pairs of them, held against what Tower did not compute: the
// loop over examples, difference quotients, and LibTorch's autograd.
#pragma once

#include <string>

#include "support/compare.h"
#include "tower/dynamic.h"

namespace support {

struct Compositions {
  /// Whether LibTorch's autograd can differentiate the function too: it refuses some writes to views.
  bool libtorch = true;
  /// Also pairs of transforms.
  bool pairs = true;
};

/// Runs `f` under every transform, and pairs of them, on the batch `examples` (batch first, examples that differ); the
/// function may write to its arguments. Empty if all agree, else what differs, from what, and by how much.
std::string disagreement(const tower::dynamic::Function& f, const Tensors& examples, Compositions which = {});

}  // namespace support
