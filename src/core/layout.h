// How the elements of one example lie in memory.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace tower {

// NOTE [Strides of one example]
// An example of a batch has no memory of its own, but functions ask for strides, and as_strided takes them. Both mean
// the strides that an example would have if it were alone in memory, with its dimensions in the order that they have
// in the batch: the batch dimension taken out. A batch with gaps between its elements keeps its strides.
struct Layout {
  c10::SmallVector<int64_t, 5> sizes, strides;

  Layout(c10::IntArrayRef of_sizes, c10::IntArrayRef of_strides) : sizes(of_sizes), strides(of_strides) {}
  /// Removes the batch dimension.
  void take_out(int64_t dim);

 private:
  bool leaves_no_gaps() const;
};

/// The dimensions as they lie in memory, those whose elements lie farthest apart first; those of equal strides as they
/// are numbered.
c10::SmallVector<int64_t, 5> farthest_first(c10::IntArrayRef strides);

}  // namespace tower
