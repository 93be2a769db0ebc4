#include "core/layout.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace tower {

bool Layout::leaves_no_gaps() const {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  for (size_t d : order) {
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

void Layout::take_out(int64_t dim) {
  const int64_t stride = strides[static_cast<size_t>(dim)], size = sizes[static_cast<size_t>(dim)];
  const auto outside = [&](int64_t s) { return s > stride; };
  if (size > 1 && std::any_of(strides.begin(), strides.end(), outside) && leaves_no_gaps())
    for (int64_t& s : strides)
      if (outside(s)) s /= size;
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
}

c10::SmallVector<int64_t, 5> farthest_first(c10::IntArrayRef strides) {
  c10::SmallVector<int64_t, 5> order(strides.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return strides[static_cast<size_t>(a)] > strides[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace tower
