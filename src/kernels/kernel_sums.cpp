// NOTE [Sums over lanes]
// An output that is summed over all lanes: the machine code adds each vector of lanes to a vector of sums, in double
// precision. A block of vectors is summed, then the blocks of a piece, and the pieces by halves, so that an error does
// not grow with the number of lanes. What a piece is depends on nothing but the kernel: on any number of threads the
// sum has the same bits.
#include <c10/util/Exception.h>

#include <algorithm>

#include "kernels/kernel.h"

namespace tower::compiler {
namespace {

double by_halves(const double* terms, size_t stride, int64_t count) {
  if (count <= kFewTerms) {
    double sum = 0;
    for (int64_t k = 0; k < count; ++k) sum += terms[static_cast<size_t>(k) * stride];
    return sum;
  }
  const int64_t half = count / 2;
  return by_halves(terms, stride, half) + by_halves(terms + static_cast<size_t>(half) * stride, stride, count - half);
}

}  // namespace

void Kernel::run_summed(int64_t lanes, c10::ArrayRef<Source> inputs, c10::ArrayRef<Target> outputs) const {
  const int64_t vector = facts_.vector_lanes, piece = lanes_of_piece(&lane_code_);
  const int64_t pieces = (lanes + piece - 1) / piece;
  const size_t count = summed_.size();
  std::vector<double> of_pieces(static_cast<size_t>(pieces) * count);
  share(pieces, piece, [&](int64_t first, int64_t last, uint8_t* fault) {
    std::vector<double> vectors(count * static_cast<size_t>(vector));
    c10::SmallVector<Target, 64> targets(outputs.begin(), outputs.end());
    for (size_t k = 0; k < count; ++k) targets[summed_[k]].memory = vectors.data() + k * static_cast<size_t>(vector);
    with_room(fault, [&](const void** from, void** to, char* columns, int64_t block) {
      const RoomOfSums room{inputs.data(), targets.data(), from, to, columns, block};
      for (int64_t p = first; p < last; ++p)
        sum_piece(&lane_code_, p, lanes, &room, of_pieces.data() + static_cast<size_t>(p) * count, fault);
    });
  });
  for (size_t k = 0; k < count; ++k) {
    const double sum = by_halves(of_pieces.data() + k, count, pieces);
    void* target = outputs[summed_[k]].memory;
    if (outputs_[summed_[k]] == Type::f64) *static_cast<double*>(target) = sum;
    else *static_cast<float*>(target) = static_cast<float>(sum);
  }
}

}  // namespace tower::compiler
