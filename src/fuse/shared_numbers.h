// Numbers of a kernel that are the same in all of its lanes, apart from those that are not.
//
// Along the directions of a derivative, the function itself and its gradient are the same: in kernels whose lanes are
// directions, that is half of what there is, or all. Where there are many lanes, LLVM computes it once before them. In
// places (NOTE [Lanes in places]) there are few, and values that wait for them would fill the registers: so it is a
// kernel of one lane, of single numbers, which leaves in memory what the other one reads.
#pragma once

#include <optional>

#include "kernels/emit.h"

namespace tower::compiler {

struct SharedApart {
  Region shared;                // of one lane
  std::optional<Region> lanes;  // none: all is shared
  int64_t bytes;                // of what the first hands on
};
/// A region that is placed, as two; none where that gains nothing, or what is to be handed on is not a plain number.
/// `memory`, `offset`: where what is handed on may be. For Math::strict: with Math::fast, LLVM could no longer round a
/// product on one side together with a sum on the other, and results would not be the process's to the bit.
std::optional<SharedApart> shared_apart(const Region& placed, int64_t memory, int64_t offset);

}  // namespace tower::compiler
