// NOTE [Sums over lanes]
// An output that is summed over all lanes: the machine code adds each vector of lanes to a vector of sums, in double
// precision. A block of vectors is summed, then the blocks of a piece, and the pieces by halves, so that an error does
// not grow with the number of lanes. What a piece is depends on nothing but the kernel: on any number of threads the
// sum has the same bits.
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "kernels/kernel.h"

namespace tower::compiler {
namespace {

constexpr int64_t kVectorsOfBlock = 32, kBlocksOfPiece = 16;

double by_halves(const double* terms, size_t stride, int64_t count) {
  if (count <= 8) {
    double sum = 0;
    for (int64_t k = 0; k < count; ++k) sum += terms[static_cast<size_t>(k) * stride];
    return sum;
  }
  const int64_t half = count / 2;
  return by_halves(terms, stride, half) + by_halves(terms + static_cast<size_t>(half) * stride, stride, count - half);
}

// The vectors that machine code adds to, one for each output that is summed.
class Sums {
 public:
  Sums(size_t outputs, int64_t lanes) : lanes_(lanes), memory_(outputs * static_cast<size_t>(lanes)) {}

  void* of(size_t k) { return memory_.data() + k * static_cast<size_t>(lanes_); }
  /// The sum over the first lanes, which are then zeros again.
  double take(size_t k, int64_t lanes) {
    double* const begin = memory_.data() + k * static_cast<size_t>(lanes_);
    const double sum = std::accumulate(begin, begin + lanes, 0.0);
    std::fill_n(begin, lanes_, 0.0);
    return sum;
  }

 private:
  int64_t lanes_;
  std::vector<double> memory_;
};

}  // namespace

void Kernel::run_summed(int64_t lanes, c10::ArrayRef<Source> inputs, c10::ArrayRef<Target> outputs) const {
  const int64_t vector = facts_.vector_lanes, block = kVectorsOfBlock * vector, piece = kBlocksOfPiece * block;
  const int64_t pieces = (lanes + piece - 1) / piece;
  const size_t count = summed_.size();
  std::vector<double> of_pieces(static_cast<size_t>(pieces) * count);
  share(pieces, piece, [&](int64_t first, int64_t last, uint8_t* fault) {
    Sums sums(count, vector);
    c10::SmallVector<Target, 64> targets(outputs.begin(), outputs.end());
    for (size_t k = 0; k < count; ++k) targets[summed_[k]].memory = sums.of(k);
    with_room(fault, [&](const void** from, void** to, char* columns, int64_t together) {
      for (int64_t p = first; p < last; ++p) {
        double* found = of_pieces.data() + static_cast<size_t>(p) * count;
        const auto add = [&](int64_t begin, int64_t end, int64_t counts) {
          run_lanes(&lane_code_, begin, end, together, inputs.data(), targets.data(), from, to, columns, fault);
          for (size_t k = 0; k < count; ++k) found[k] += sums.take(k, counts);
        };
        const int64_t end = std::min((p + 1) * piece, lanes), whole = end / vector * vector;
        for (int64_t begin = p * piece; begin < whole; begin += block)
          add(begin, std::min(begin + block, whole), vector);
        // The lanes that are missing in the last vector repeat the last one.
        if (whole < end) add(whole, end, end - whole);
      }
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
