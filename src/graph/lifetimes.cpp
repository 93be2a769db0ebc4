#include "graph/lifetimes.h"

#include <algorithm>
#include <numeric>

namespace tower::compiler {
namespace {

constexpr size_t kLine = 64, kWidestNumber = 16;

size_t aligned(size_t place, size_t bytes) {
  const size_t to = bytes < kLine ? kWidestNumber : kLine;
  return (place + to - 1) / to * to;
}

}  // namespace

// The largest first, each in the first gap between those that are there at the same time ("greedy by size": Pisarchyk
// and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020).
Layout lay_out(const std::vector<Lifetime>& values) {
  std::vector<size_t> by_size(values.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return values[a].bytes > values[b].bytes; });
  Layout layout;
  layout.places.resize(values.size());
  std::vector<size_t> placed;  // by where they begin
  for (const size_t k : by_size) {
    const Lifetime& value = values[k];
    size_t place = 0;
    for (const size_t other : placed) {
      if (values[other].last < value.first || value.last < values[other].first) continue;
      if (place + value.bytes <= layout.places[other]) break;
      place = std::max(place, aligned(layout.places[other] + values[other].bytes, value.bytes));
    }
    layout.places[k] = place;
    layout.bytes = std::max(layout.bytes, place + value.bytes);
    const auto behind = std::upper_bound(placed.begin(), placed.end(), place,
                                         [&](size_t at, size_t other) { return at < layout.places[other]; });
    placed.insert(behind, k);
  }
  return layout;
}

}  // namespace tower::compiler
