// Places in small tensors of one example: rows of elements, and indices that each lane has for itself.
//
// Where what an index may point to are numbers of the lane, it chooses among all of them, one select for each; where
// something is written or added, each of them chooses. An index that is a constant costs nothing, and one that was
// itself chosen among constants points to no others. Where it points into a table that all lanes share, the element is
// looked up there. What is out of range is reported, and LibTorch says then which index it was (fuse/fused_plan.cpp).
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "numbers/small.h"

namespace tower::rules::small {

using compiler::E;
using compiler::Small;
using compiler::SmallCall;
using compiler::SmallResults;

/// One of 0 … n − 1.
struct Place {
  E index;
  std::optional<std::set<int64_t>> among = std::nullopt;  // if it is one of these alone
  std::optional<int64_t> known = std::nullopt;

  bool may_be(int64_t k) const { return !among || among->count(k) > 0; }
};
enum class Negative : bool { refused, from_the_end };

class Indexing {
 public:
  explicit Indexing(const SmallCall& c) : c_(c) {}

  Place place(const E& index, int64_t n, Negative negative);
  std::vector<Place> places(const Small& indices, int64_t n, Negative negative);
  bool works() const { return works_; }
  /// Reports where `fails` holds; LibTorch's call raises then.
  void report(const E& fails);

  // Of x, the element that has the number `first` + Σ place · step.
  struct Step {
    const Place& place;
    int64_t n;      // places
    size_t stride;  // elements from one to the next
  };
  E chosen(const Small& x, size_t first, c10::ArrayRef<Step> steps) const;
  // What `old` becomes if the place is k, else itself.
  template <class F>
  static E changed_at(const Place& place, int64_t k, const E& old, const F& change) {
    if (!place.may_be(k)) return old;
    return place.known ? change(old) : where(place.index == k, change(old), old);
  }

  SmallResults give(const Sizes& sizes, const std::vector<E>& elements) const;
  /// The same of several results, after what is reported.
  SmallResults checked(SmallResults results) const;

 private:
  E looked_up(const Small& x, size_t first, c10::ArrayRef<Step> steps) const;

  const SmallCall& c_;
  std::optional<E> failed_;
  bool works_ = true;  // else no kernel is to compute the call
};

/// A number is a row of one.
Sizes as_rows(const Sizes& sizes);

/// Elements row by row, with those along one dimension in between.
struct Along {
  Along(const Sizes& sizes, int64_t dim);
  size_t at(size_t o, size_t k, size_t i) const { return (o * length + k) * inner + i; }
  int64_t n() const { return static_cast<int64_t>(length); }
  size_t dim, outer = 1, length = 1, inner = 1;
};

std::vector<size_t> coordinates(size_t i, const Sizes& sizes);
size_t number_of(const std::vector<size_t>& coordinates, const Sizes& sizes);
size_t count(const Sizes& sizes);

/// The elements of `t` in the type of the first result.
std::vector<E> elements_of(const SmallCall& c, const Small& t);
/// Sums of booleans are no sums.
bool adds(const SmallCall& c);

}  // namespace tower::rules::small
