#include "sparse/groups.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "sparse/index.h"
#include "tower/errors.h"

namespace tower::sparse {

namespace {

constexpr int64_t kCostOfVjp = 2;  // in jvps

template <class F>
void for_entries(const Sparsity& pattern, F&& f) {
  for (int64_t r = 0; r < pattern.num_rows(); ++r)
    for (int64_t k = pattern.starts()[index(r)]; k < pattern.starts()[index(r) + 1]; ++k)
      f(r, pattern.columns()[index(k)]);
}

// The entries that `keep` says, in a matrix of the same size.
template <class F>
Sparsity part_of(const Sparsity& pattern, F&& keep) {
  std::vector<int64_t> starts(index(pattern.num_rows()) + 1, 0), columns;
  for_entries(pattern, [&](int64_t r, int64_t c) {
    if (!keep(r, c)) return;
    ++starts[index(r) + 1];
    columns.push_back(c);
  });
  for (size_t r = 0; r + 1 < starts.size(); ++r) starts[r + 1] += starts[r];
  return {pattern.num_columns(), std::move(starts), std::move(columns)};
}

std::vector<int64_t> row_lengths(const Sparsity& pattern) {
  std::vector<int64_t> lengths;
  for (int64_t r = 0; r < pattern.num_rows(); ++r)
    lengths.push_back(pattern.starts()[index(r) + 1] - pattern.starts()[index(r)]);
  return lengths;
}
int64_t largest(const std::vector<int64_t>& numbers) {
  return numbers.empty() ? 0 : *std::max_element(numbers.begin(), numbers.end());
}

// Rows of more than `limit` entries by themselves, the others by columns.
struct Cut {
  bool mirrored;  // of the transposed matrix
  int64_t limit, lower_bound;
};

struct Choice {
  int64_t cost = std::numeric_limits<int64_t>::max();
  bool mirrored = false;
  Colouring columns = {}, rows = {};  // of the matrix, or of the transposed one
};

}  // namespace

Groups jacobian_groups(const Sparsity& pattern) {
  const Sparsity both[] = {pattern, pattern.transposed()};
  const std::vector<int64_t> lengths[] = {row_lengths(both[0]), row_lengths(both[1])};
  std::vector<Cut> cuts;
  for (const bool mirrored : {false, true}) {
    const int64_t by_column = mirrored ? kCostOfVjp : 1, by_row = mirrored ? 1 : kCostOfVjp;
    const int64_t longest = largest(lengths[mirrored]);
    for (int64_t limit = 0;; limit = limit == 0 ? 1 : 2 * limit) {
      int64_t longest_left = 0;
      std::vector<int64_t> in_long_rows(index(both[mirrored].num_columns()), 0);
      for (const int64_t length : lengths[mirrored])
        if (length <= limit) longest_left = std::max(longest_left, length);
      for_entries(both[mirrored], [&](int64_t r, int64_t c) {
        if (lengths[mirrored][index(r)] > limit) ++in_long_rows[index(c)];
      });
      cuts.push_back({mirrored, limit, longest_left * by_column + largest(in_long_rows) * by_row});
      if (limit >= longest) break;
    }
  }
  std::stable_sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) { return a.lower_bound < b.lower_bound; });
  Choice best;
  for (const Cut& cut : cuts) {
    if (cut.lower_bound >= best.cost) continue;
    const auto is_long = [&](int64_t r) { return lengths[cut.mirrored][index(r)] > cut.limit; };
    const Sparsity& matrix = both[cut.mirrored];
    Choice choice;
    choice.mirrored = cut.mirrored;
    choice.columns = colour_columns(part_of(matrix, [&](int64_t r, int64_t) { return !is_long(r); }));
    choice.rows = colour_columns(part_of(matrix, [&](int64_t r, int64_t) { return is_long(r); }).transposed());
    choice.cost =
        choice.columns.count * (cut.mirrored ? kCostOfVjp : 1) + choice.rows.count * (cut.mirrored ? 1 : kCostOfVjp);
    if (choice.cost < best.cost) best = std::move(choice);
  }
  Groups groups{std::move(best.columns), std::move(best.rows), {}};
  if (best.mirrored) std::swap(groups.columns, groups.rows);
  const int64_t of_columns = groups.columns.count * pattern.num_rows();
  for_entries(pattern, [&](int64_t r, int64_t c) {
    const int64_t column = groups.columns.colours[index(c)], row = groups.rows.colours[index(r)];
    const bool by_row = best.mirrored ? column < 0 : row >= 0;
    groups.places.push_back(by_row ? of_columns + row * pattern.num_columns() + c : column * pattern.num_rows() + r);
  });
  return groups;
}

Groups hessian_groups(const Sparsity& pattern) {
  if (pattern.num_rows() != pattern.num_columns())
    throw ArgumentError("sparse_hessian: the pattern is " + std::to_string(pattern.num_rows()) + " × " +
                        std::to_string(pattern.num_columns()) + ", but that of a Hessian is square.");
  const Sparsity mirrored = pattern.transposed();
  std::vector<int64_t> starts{0}, columns;
  for (size_t r = 0; r < index(pattern.num_rows()); ++r) {
    const auto row = [&](const Sparsity& p) {
      return std::pair(p.columns().begin() + p.starts()[r], p.columns().begin() + p.starts()[r + 1]);
    };
    const auto [a, a_end] = row(pattern);
    const auto [b, b_end] = row(mirrored);
    std::set_union(a, a_end, b, b_end, std::back_inserter(columns));
    starts.push_back(static_cast<int64_t>(columns.size()));
  }
  const Sparsity symmetric(pattern.num_columns(), std::move(starts), std::move(columns));
  Colouring stars = colour_stars(symmetric), by_columns = colour_columns(symmetric);
  const int64_t n = pattern.num_columns();
  Groups groups{std::move(by_columns.count <= stars.count ? by_columns : stars), {}, {}};
  const std::vector<int64_t>& colours = groups.columns.colours;
  std::vector<int64_t> how_many(index(groups.columns.count), 0);
  for (int64_t r = 0; r < n; ++r) {
    const auto for_row = [&](const Sparsity& p, auto&& f) {
      for (int64_t k = p.starts()[index(r)]; k < p.starts()[index(r) + 1]; ++k) f(p.columns()[index(k)]);
    };
    for_row(symmetric, [&](int64_t c) { ++how_many[index(colours[index(c)])]; });
    for_row(pattern, [&](int64_t c) {
      const int64_t of_column = colours[index(c)], of_row = colours[index(r)];
      groups.places.push_back(how_many[index(of_column)] == 1 ? of_column * n + r : of_row * n + c);
    });
    for_row(symmetric, [&](int64_t c) { how_many[index(colours[index(c)])] = 0; });
  }
  return groups;
}

}  // namespace tower::sparse
