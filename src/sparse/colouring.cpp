#include "sparse/colouring.h"

#include <algorithm>
#include <numeric>

namespace tower::sparse {

namespace {

Colouring greedy(const Sparsity& pattern, const Sparsity& by_columns, const std::vector<int64_t>& order) {
  Colouring result{std::vector<int64_t>(size_t(pattern.num_columns()), -1)};
  std::vector<int64_t> forbidden_by;  // for each colour, the last column that met it
  for (const int64_t column : order) {
    for (int64_t e = by_columns.starts()[size_t(column)]; e < by_columns.starts()[size_t(column) + 1]; ++e) {
      const auto row = size_t(by_columns.columns()[size_t(e)]);
      for (int64_t k = pattern.starts()[row]; k < pattern.starts()[row + 1]; ++k)
        if (const int64_t met = result.colours[size_t(pattern.columns()[size_t(k)])]; met >= 0)
          forbidden_by[size_t(met)] = column;
    }
    size_t colour = 0;
    while (colour < forbidden_by.size() && forbidden_by[colour] == column) ++colour;
    if (colour == forbidden_by.size()) forbidden_by.push_back(-1);
    result.colours[size_t(column)] = static_cast<int64_t>(colour);
  }
  result.count = static_cast<int64_t>(forbidden_by.size());
  return result;
}

}  // namespace

Colouring colour_columns(const Sparsity& pattern) {
  const Sparsity by_columns = pattern.transposed();
  std::vector<int64_t> order(size_t(pattern.num_columns())), neighbours(order.size(), 0);
  std::iota(order.begin(), order.end(), 0);
  for (size_t c = 0; c < order.size(); ++c)
    for (int64_t e = by_columns.starts()[c]; e < by_columns.starts()[c + 1]; ++e) {
      const auto row = size_t(by_columns.columns()[size_t(e)]);
      neighbours[c] += pattern.starts()[row + 1] - pattern.starts()[row];
    }
  Colouring as_they_come = greedy(pattern, by_columns, order);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return neighbours[size_t(a)] > neighbours[size_t(b)]; });
  Colouring largest_first = greedy(pattern, by_columns, order);
  return largest_first.count < as_they_come.count ? largest_first : as_they_come;
}

}  // namespace tower::sparse
