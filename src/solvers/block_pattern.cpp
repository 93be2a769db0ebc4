#include "solvers/block_pattern.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tower::solvers {
namespace {

// Lists of what `each(add)` adds to them, add(k, value), in the order of its calls, of which there are two rounds.
template <class T, class Each>
Lists<T> listed(int64_t count, const Each& each) {
  Lists<T> lists;
  lists.starts.assign(static_cast<size_t>(count) + 1, 0);
  each([&](int64_t k, const T&) { ++lists.starts[static_cast<size_t>(k) + 1]; });
  std::partial_sum(lists.starts.begin(), lists.starts.end(), lists.starts.begin());
  lists.all.resize(static_cast<size_t>(lists.starts.back()));
  std::vector<int64_t> next = lists.starts;
  each([&](int64_t k, const T& value) { lists.all[static_cast<size_t>(next[static_cast<size_t>(k)]++)] = value; });
  return lists;
}

}  // namespace

BlockPattern::BlockPattern(std::vector<BlockKind> kinds, std::vector<BlockTerm> terms, std::optional<int64_t> eliminate,
                           bool fills)
    : kinds_(std::move(kinds)), terms_(std::move(terms)), eliminate_(eliminate) {
  offsets_ = {0};
  for (size_t k = 0; k < kinds_.size(); ++k) {
    if (eliminated(static_cast<int64_t>(k))) {
      firsts_.push_back(0);
      continue;
    }
    firsts_.push_back(static_cast<int64_t>(sizes_.size()));
    for (int64_t row = 0; row < kinds_[k].count; ++row) {
      sizes_.push_back(kinds_[k].size);
      offsets_.push_back(offsets_.back() + kinds_[k].size);
    }
  }
  find_places();
  find_ties();
  find_entries(fills);
}

void BlockPattern::find_places() {
  const auto each = [&](bool of_eliminated) {
    return [this, of_eliminated](const auto& add) {
      for (size_t t = 0; t < terms_.size(); ++t)
        for (size_t u = 0; u < terms_[t].uses.size(); ++u) {
          const BlockUse& use = terms_[t].uses[u];
          if (eliminated(use.kind) != of_eliminated) continue;
          for (int64_t b = 0; b < terms_[t].blocks; ++b)
            add(number(use.kind, use.rows[static_cast<size_t>(b)]),
                Place{static_cast<int32_t>(t), static_cast<int32_t>(u), b});
        }
    };
  };
  eliminated_places_ =
      listed<Place>(eliminate_ ? kinds_[static_cast<size_t>(*eliminate_)].count : 0, each(/*of_eliminated=*/true));
  other_places_ = listed<Place>(static_cast<int64_t>(sizes_.size()), each(/*of_eliminated=*/false));
}

void BlockPattern::find_ties() {
  ties_.starts = {0};
  std::vector<int64_t> others;
  for (int64_t e = 0; e < num_eliminated(); ++e) {
    others.clear();
    for (const Place& place : eliminated_places_.of(e))
      for (const BlockUse& use : terms_[static_cast<size_t>(place.term)].uses)
        if (!eliminated(use.kind)) others.push_back(number(use.kind, use.rows[static_cast<size_t>(place.block)]));
    std::sort(others.begin(), others.end());
    others.erase(std::unique(others.begin(), others.end()), others.end());
    for (const int64_t other : others) {
      ties_.all.push_back({e, other, tie_values_});
      tie_values_ += eliminated_size() * size(other);
    }
    ties_.starts.push_back(static_cast<int64_t>(ties_.all.size()));
  }
  ties_of_others_ = listed<int64_t>(num_others(), [this](const auto& add) {
    for (size_t k = 0; k < ties_.all.size(); ++k) add(ties_.all[k].other, static_cast<int64_t>(k));
  });
}

void BlockPattern::find_entries(bool fills) {
  entries_.starts = {0};
  std::vector<int64_t> seen_for(static_cast<size_t>(num_others()), -1), columns;
  for (int64_t row = 0; row < num_others(); ++row) {
    columns = {row};
    seen_for[static_cast<size_t>(row)] = row;
    const auto see = [&](int64_t column) {
      if (column < row || std::exchange(seen_for[static_cast<size_t>(column)], row) == row) return;
      columns.push_back(column);
    };
    for (const Place& place : other_places_.of(row))
      for (const BlockUse& use : terms_[static_cast<size_t>(place.term)].uses)
        if (!eliminated(use.kind)) see(number(use.kind, use.rows[static_cast<size_t>(place.block)]));
    if (fills)
      for (const int64_t tie : ties_of_others_.of(row))
        for (const Tie& another : ties_.of(ties_.all[static_cast<size_t>(tie)].eliminated)) see(another.other);
    std::sort(columns.begin(), columns.end());
    for (const int64_t column : columns) {
      entries_.all.push_back({column, entry_values_});
      entry_values_ += size(row) * size(column);
    }
    entries_.starts.push_back(static_cast<int64_t>(entries_.all.size()));
  }
}

}  // namespace tower::solvers
