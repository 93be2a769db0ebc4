// NOTE [Colourings]
// Greedy, in several orders, of which the best is taken: as columns come, those with many neighbours first, and always
// the one next whose neighbours have the most colours (Brélaz 1979). Why not ColPack (1.0.10, measured on grids, random
// graphs and arrows): the best of its four orders needs as many colours or more (five points of a periodic grid 8, here
// 5; two coupled fields 10, here 7; three long rows and columns from two sides 8, here 7), one order takes longer than
// all of ours, and it reports mistakes by printing. Its star colourings are equal to within a tenth.
#include "sparse/colouring.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "sparse/index.h"

namespace tower::sparse {

namespace {

// A set of colours for each of many rows.
class ColourSets {
 public:
  explicit ColourSets(size_t rows) : rows_(rows), bits_(rows, 0) {}

  bool has(size_t row, int64_t colour) const {
    const auto word = static_cast<size_t>(colour) / 64;
    return word < words_ && (bits_[row * words_ + word] >> (static_cast<size_t>(colour) % 64) & 1);
  }
  void add(size_t row, int64_t colour) {
    const auto word = static_cast<size_t>(colour) / 64;
    while (word >= words_) widen();
    bits_[row * words_ + word] |= uint64_t{1} << (static_cast<size_t>(colour) % 64);
  }
  void add_to(std::vector<uint64_t>& set, size_t row) const {
    set.resize(std::max(set.size(), words_));
    for (size_t w = 0; w < words_; ++w) set[w] |= bits_[row * words_ + w];
  }

 private:
  void widen() {
    std::vector<uint64_t> wider(rows_ * words_ * 2, 0);
    for (size_t row = 0; row < rows_; ++row)
      for (size_t w = 0; w < words_; ++w) wider[row * words_ * 2 + w] = bits_[row * words_ + w];
    bits_ = std::move(wider);
    words_ *= 2;
  }

  size_t rows_, words_ = 1;
  std::vector<uint64_t> bits_;
};

int64_t first_not_in(const std::vector<uint64_t>& set) {
  size_t w = 0;
  while (w < set.size() && set[w] == ~uint64_t{0}) ++w;
  return static_cast<int64_t>(w * 64) + (w < set.size() ? std::countr_one(set[w]) : 0);
}

c10::ArrayRef<int64_t> row_of(const Sparsity& pattern, size_t r) {
  return {pattern.columns().data() + pattern.starts()[r],
          static_cast<size_t>(pattern.starts()[r + 1] - pattern.starts()[r])};
}

struct Columns {
  const Sparsity& pattern;
  Sparsity by_columns = pattern.transposed();

  c10::ArrayRef<int64_t> rows_of(size_t column) const { return row_of(by_columns, column); }

  // The colours that `column` meets.
  int64_t colour_for(const ColourSets& met, size_t column, std::vector<uint64_t>& scratch) const {
    std::fill(scratch.begin(), scratch.end(), 0);
    for (const int64_t r : rows_of(column)) met.add_to(scratch, index(r));
    return first_not_in(scratch);
  }

  Colouring in_order(const std::vector<int64_t>& order) const {
    Colouring result{std::vector<int64_t>(index(pattern.num_columns()), -1)};
    ColourSets met(index(pattern.num_rows()));
    std::vector<uint64_t> scratch;
    for (const int64_t c : order) {
      const int64_t colour = colour_for(met, index(c), scratch);
      result.colours[index(c)] = colour;
      result.count = std::max(result.count, colour + 1);
      for (const int64_t r : rows_of(index(c))) met.add(index(r), colour);
    }
    return result;
  }

  // Next comes the column whose neighbours have the most colours.
  Colouring by_saturation(const std::vector<int64_t>& order) const {
    Colouring result{std::vector<int64_t>(index(pattern.num_columns()), -1)};
    ColourSets met(index(pattern.num_rows())), seen(index(pattern.num_columns()));
    std::vector<uint64_t> scratch;
    std::vector<size_t> saturation(index(pattern.num_columns()), 0);
    // By saturation; a column stays in the lists that it was in before.
    std::vector<std::vector<int64_t>> waiting{{order.rbegin(), order.rend()}};
    for (size_t most = 0;;) {
      while (most > 0 && waiting[most].empty()) --most;
      if (waiting[most].empty()) return result;
      const auto c = index(waiting[most].back());
      waiting[most].pop_back();
      if (result.colours[c] >= 0 || saturation[c] != most) continue;
      const int64_t colour = colour_for(met, c, scratch);
      result.colours[c] = colour;
      result.count = std::max(result.count, colour + 1);
      for (const int64_t r : rows_of(c)) {
        met.add(index(r), colour);
        for (const int64_t neighbour : row_of(pattern, index(r))) {
          const auto n = index(neighbour);
          if (result.colours[n] >= 0 || seen.has(n, colour)) continue;
          seen.add(n, colour);
          if (++saturation[n] == waiting.size()) waiting.emplace_back();
          waiting[saturation[n]].push_back(neighbour);
          most = std::max(most, saturation[n]);
        }
      }
    }
  }
};

std::vector<int64_t> largest_first(std::vector<int64_t> order, const std::vector<int64_t>& sizes) {
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return sizes[index(a)] > sizes[index(b)]; });
  return order;
}

// A vertex of the graph sees its neighbours' colours. Edges between two colours make stars: a vertex with two
// neighbours of a colour is the centre of one, and these are its leaves, which no other vertex may be joined to in that
// colour.
Colouring stars_in_order(const Sparsity& graph, const std::vector<int64_t>& order) {
  const auto size = index(graph.num_rows());
  Colouring result{std::vector<int64_t>(size, -1)};
  ColourSets met(size), leaf_of(size), centre_of(size);
  std::vector<uint64_t> forbidden;
  std::vector<int64_t> how_many;
  for (const int64_t next : order) {
    const auto v = index(next);
    std::fill(forbidden.begin(), forbidden.end(), 0);
    how_many.assign(index(result.count) + 1, 0);
    const auto for_neighbours = [&](size_t of, auto&& f) {
      for (const int64_t w : row_of(graph, of))
        if (index(w) != of && result.colours[index(w)] >= 0) f(index(w), result.colours[index(w)]);
    };
    met.add_to(forbidden, v);
    for_neighbours(v, [&](size_t w, int64_t colour) {
      ++how_many[index(colour)];
      leaf_of.add_to(forbidden, w);
    });
    for_neighbours(v, [&](size_t w, int64_t colour) {
      if (how_many[index(colour)] > 1) met.add_to(forbidden, w);  // they become leaves of v
    });
    const int64_t mine = first_not_in(forbidden);
    for_neighbours(v, [&](size_t w, int64_t colour) {
      if (how_many[index(colour)] > 1) {
        leaf_of.add(w, mine);
        centre_of.add(v, colour);
      }
      if (!met.has(w, mine)) return;
      // w is the centre, of v and of those that it met in this colour.
      leaf_of.add(v, colour);
      if (centre_of.has(w, mine)) return;
      centre_of.add(w, mine);
      for_neighbours(w, [&](size_t leaf, int64_t of_leaf) {
        if (of_leaf == mine) leaf_of.add(leaf, colour);
      });
    });
    result.colours[v] = mine;
    result.count = std::max(result.count, mine + 1);
    for (const int64_t w : row_of(graph, v))
      if (index(w) != v) met.add(index(w), mine);
  }
  return result;
}

}  // namespace

Colouring colour_columns(const Sparsity& pattern) {
  const Columns columns{pattern};
  std::vector<int64_t> order, neighbours(index(pattern.num_columns()), 0);
  int64_t longest = 0, all_neighbours = 0;
  for (int64_t c = 0; c < pattern.num_columns(); ++c) {
    for (const int64_t r : columns.rows_of(index(c))) {
      const auto length = static_cast<int64_t>(row_of(pattern, index(r)).size());
      neighbours[index(c)] += length;
      longest = std::max(longest, length);
    }
    all_neighbours += neighbours[index(c)];
    if (!columns.rows_of(index(c)).empty()) order.push_back(c);
  }
  if (longest == static_cast<int64_t>(order.size())) {  // a full row: each for itself
    Colouring result{std::vector<int64_t>(index(pattern.num_columns()), -1)};
    for (const int64_t c : order) result.colours[index(c)] = result.count++;
    return result;
  }
  constexpr int64_t kMostNeighbours = 500'000'000;  // a second or two
  Colouring best = columns.in_order(order);
  const auto or_better = [&](auto&& attempt) {
    if (best.count == longest) return;  // a row's columns are all of different colours
    Colouring other = attempt();
    if (other.count < best.count) best = std::move(other);
  };
  or_better([&] { return columns.in_order(largest_first(order, neighbours)); });
  if (all_neighbours < kMostNeighbours) or_better([&] { return columns.by_saturation(order); });
  return best;
}

Colouring colour_stars(const Sparsity& symmetric) {
  std::vector<int64_t> order(index(symmetric.num_rows())), neighbours;
  std::iota(order.begin(), order.end(), 0);
  for (size_t v = 0; v < order.size(); ++v) neighbours.push_back(static_cast<int64_t>(row_of(symmetric, v).size()));
  Colouring as_they_come = stars_in_order(symmetric, order);
  Colouring most_first = stars_in_order(symmetric, largest_first(order, neighbours));
  return most_first.count < as_they_come.count ? most_first : as_they_come;
}

}  // namespace tower::sparse
