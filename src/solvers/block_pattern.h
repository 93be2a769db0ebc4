// Which unknowns the blocks of a sparse fit tie to each other: what of the normal equations is the same for all values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tower::solvers {

/// Lists, one after the other: those of `of(k)` are from start to end.
template <class T>
struct Lists {
  std::vector<int64_t> starts;
  std::vector<T> all;

  struct Range {
    const T *first, *last;
    const T* begin() const { return first; }
    const T* end() const { return last; }
    int64_t size() const { return last - first; }
  };
  Range of(int64_t k) const {
    return {all.data() + starts[static_cast<size_t>(k)], all.data() + starts[static_cast<size_t>(k) + 1]};
  }
  int64_t count() const { return static_cast<int64_t>(starts.size()) - 1; }
};

/// One kind of unknowns: how many, how many numbers a step has for each, and which of them are held (empty: none).
struct BlockKind {
  int64_t count, size;
  std::vector<uint8_t> held;
};

/// What a block takes of a kind, for all blocks of a term.
struct BlockUse {
  int64_t kind;
  std::vector<int64_t> rows;
  int64_t column;  // where its columns start in the Jacobian of a block
};
struct BlockTerm {
  int64_t blocks, columns;
  std::vector<BlockUse> uses;
};

/// The pattern. Unknowns have numbers: of those that are eliminated first 0, 1, …, and so have all others, kind by
/// kind.
class BlockPattern {
 public:
  /// `fills`: whether the remaining matrix has the blocks that elimination brings, or those of blocks' uses alone.
  BlockPattern(std::vector<BlockKind> kinds, std::vector<BlockTerm> terms, std::optional<int64_t> eliminate,
               bool fills);

  /// A use of an unknown by a block.
  struct Place {
    int32_t term, use;
    int64_t block;
  };
  /// An eliminated unknown and another one that some block ties to it; the values of their matrix start at `values`.
  struct Tie {
    int64_t eliminated, other, values;
  };
  /// A block of the remaining matrix, on or above the diagonal.
  struct Entry {
    int64_t column, values;
  };

  const std::vector<BlockKind>& kinds() const { return kinds_; }
  const std::vector<BlockTerm>& terms() const { return terms_; }
  std::optional<int64_t> eliminate() const { return eliminate_; }
  bool eliminated(int64_t kind) const { return eliminate_ == kind; }
  /// The number of an unknown: of a kind the one in `row`.
  int64_t number(int64_t kind, int64_t row) const { return firsts_[static_cast<size_t>(kind)] + row; }

  int64_t num_eliminated() const { return eliminated_places_.count(); }
  int64_t num_others() const { return other_places_.count(); }
  /// How many numbers an eliminated unknown has, and another one.
  int64_t eliminated_size() const { return eliminate_ ? kinds_[static_cast<size_t>(*eliminate_)].size : 0; }
  int64_t size(int64_t other) const { return sizes_[static_cast<size_t>(other)]; }
  /// Where the numbers of another unknown start among those of all others, and how many these are.
  int64_t offset(int64_t other) const { return offsets_[static_cast<size_t>(other)]; }
  int64_t num_remaining() const { return offsets_.back(); }

  /// The blocks' uses of an eliminated unknown, or of another one.
  const Lists<Place>& eliminated_places() const { return eliminated_places_; }
  const Lists<Place>& other_places() const { return other_places_; }
  /// The ties of each eliminated unknown, by ascending `other`, and the numbers of those of each other one.
  const Lists<Tie>& ties() const { return ties_; }
  const Lists<int64_t>& ties_of_others() const { return ties_of_others_; }
  int64_t tie_values() const { return tie_values_; }
  /// The blocks of each row of the remaining matrix, by ascending column, the diagonal one first.
  const Lists<Entry>& entries() const { return entries_; }
  int64_t entry_values() const { return entry_values_; }

 private:
  void find_places();
  void find_ties();
  void find_entries(bool fills);

  std::vector<BlockKind> kinds_;
  std::vector<BlockTerm> terms_;
  std::optional<int64_t> eliminate_;
  std::vector<int64_t> firsts_, sizes_, offsets_;
  Lists<Place> eliminated_places_, other_places_;
  Lists<Tie> ties_;
  Lists<int64_t> ties_of_others_;
  Lists<Entry> entries_;
  int64_t tie_values_ = 0, entry_values_ = 0;
};

}  // namespace tower::solvers
