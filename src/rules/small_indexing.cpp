// Reading by index, and putting where indices of several dimensions point to: see rules/small_places.h for what an
// index costs.
#include "rules/small_indexing.h"

#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "rules/small_places.h"

namespace tower::rules::small {

using namespace compiler;

namespace {

// x[i, :, j]: the indices of some dimensions, broadcast together, and what they show of x.
class Shown {
 public:
  // `indices`: argument of the list.
  Shown(const SmallCall& c, Indexing& by, size_t indices) : by_(by), x_(c.operands[0]->sizes) {
    std::vector<std::pair<size_t, const Small*>> lists;
    for (size_t k = 0; k < c.operands.size(); ++k)
      if (c.places[k].arg == indices) lists.emplace_back(c.places[k].element, c.operands[k]);
    if (lists.empty() || lists.back().first >= x_.size()) return;
    std::vector<int64_t> together;
    for (const auto& [d, t] : lists) together = at::infer_size(together, t->sizes);
    const Sizes of_indices(together);
    for (const auto& [d, t] : lists) {
      const std::vector<Place> own = by.places(*t, x_[d], Negative::from_the_end);
      if (!by.works()) return;
      auto& all = places_.emplace_back(d, std::vector<Place>()).second;
      for (const size_t i : broadcast(t->sizes, of_indices)) all.push_back(own[i]);
    }
    // They come out where they stand, if they stand together; else in front.
    const size_t first = lists.front().first;
    first_ = lists.back().first - first + 1 == lists.size() ? first : 0;
    size_t next = 0;
    for (size_t d = 0; d < x_.size(); ++d) {
      if (next < lists.size() && lists[next].first == d) ++next;
      else whole_.push_back(d);
    }
    for (size_t k = 0; k <= whole_.size(); ++k) {
      if (k == first_) sizes.append(of_indices.begin(), of_indices.end());
      if (k < whole_.size()) sizes.push_back(x_[whole_[k]]);
    }
    index_sizes_ = of_indices;
    works = true;
  }

  // Element i of what is shown.
  E chosen(const Small& x, size_t i) const {
    const auto [in_x, index] = of_result(i);
    std::vector<Indexing::Step> steps;
    for (const auto& [d, places] : places_) {
      size_t stride = 1;
      for (size_t inner = d + 1; inner < x_.size(); ++inner) stride *= static_cast<size_t>(x_[inner]);
      steps.push_back({places[index], x_[d], stride});
    }
    return by_.chosen(x, number_of(in_x, x_), steps);
  }
  // For each element of x that element i of the result may be: `f(its number, whether it is)`.
  template <class F>
  void each_candidate(size_t i, const F& f) const {
    const auto [coordinates, index] = of_result(i);
    each_from(0, coordinates, index, {}, f);
  }

  Sizes sizes;
  bool works = false;

 private:
  // Of an element of the result: where it is in x as far as that is known, and which of the indices it has.
  std::pair<std::vector<size_t>, size_t> of_result(size_t i) const {
    const std::vector<size_t> place = coordinates(i, sizes);
    std::vector<size_t> in_x(x_.size()), of_index(index_sizes_.size());
    size_t d = 0;
    for (size_t k = 0; k <= whole_.size(); ++k) {
      if (k == first_)
        for (size_t& at : of_index) at = place[d++];
      if (k < whole_.size()) in_x[whole_[k]] = place[d++];
    }
    return {in_x, number_of(of_index, index_sizes_)};
  }
  template <class F>
  void each_from(size_t list, std::vector<size_t> in_x, size_t index, std::optional<E> is, const F& f) const {
    if (list == places_.size()) return f(number_of(in_x, x_), is);
    const auto& [d, places] = places_[list];
    const Place& place = places[index];
    for (int64_t k = 0; k < x_[d]; ++k) {
      if (!place.may_be(k)) continue;
      in_x[d] = static_cast<size_t>(k);
      std::optional<E> here = is;
      if (!place.known) here = is ? *is & (place.index == k) : place.index == k;
      each_from(list + 1, in_x, index, here, f);
    }
  }

  const Indexing& by_;
  const Sizes x_;
  std::vector<std::pair<size_t, std::vector<Place>>> places_;  // by dimension: of each combination of indices
  std::vector<size_t> whole_;                                  // dimensions that have no index
  size_t first_ = 0;                                           // of those that are before the indices'
  Sizes index_sizes_;
};

}  // namespace

// ---- reading ----

SmallResults index(const SmallCall& c) {
  Indexing by(c);
  const Shown shown(c, by, 1);
  if (!shown.works) return {};
  std::vector<E> elements;
  for (size_t i = 0; i < count(shown.sizes); ++i) elements.push_back(shown.chosen(*c.operands[0], i));
  return by.give(shown.sizes, elements);
}

SmallResults index_select(const SmallCall& c) {
  const Small &x = *c.operands[0], &index = *c.operands[1];
  if (index.sizes.size() > 1) return {};
  const Along along(as_rows(x.sizes), c.arg(1).toInt());
  Indexing by(c);
  const std::vector<Place> places = by.places(index, along.n(), Negative::refused);
  if (!by.works()) return {};
  Sizes sizes = x.sizes;
  if (!sizes.empty()) sizes[along.dim] = static_cast<int64_t>(places.size());
  std::vector<E> elements;
  for (size_t o = 0; o < along.outer; ++o)
    for (const Place& place : places)
      for (size_t i = 0; i < along.inner; ++i)
        elements.push_back(by.chosen(x, along.at(o, 0, i), Indexing::Step{place, along.n(), along.inner}));
  return by.give(sizes, elements);
}

SmallResults gather(const SmallCall& c) {
  const Small &x = *c.operands[0], &index = *c.operands[1];
  const Sizes sizes = as_rows(x.sizes), of_index = as_rows(index.sizes);
  if (sizes.size() != of_index.size()) return {};
  const Along along(sizes, c.arg(1).toInt());
  Indexing by(c);
  const std::vector<Place> places = by.places(index, along.n(), Negative::refused);
  if (!by.works()) return {};
  std::vector<E> elements;
  for (size_t i = 0; i < places.size(); ++i) {
    std::vector<size_t> at = coordinates(i, of_index);
    at[along.dim] = 0;
    elements.push_back(by.chosen(x, number_of(at, sizes), Indexing::Step{places[i], along.n(), along.inner}));
  }
  return by.give(index.sizes, elements);
}

SmallResults take(const SmallCall& c) {
  const Small &x = *c.operands[0], &index = *c.operands[1];
  const int64_t n = c10::multiply_integers(x.sizes);
  Indexing by(c);
  const std::vector<Place> places = by.places(index, n, Negative::from_the_end);
  if (!by.works()) return {};
  std::vector<E> elements;
  for (const Place& place : places) elements.push_back(by.chosen(x, 0, Indexing::Step{place, n, 1}));
  return by.give(index.sizes, elements);
}

SmallResults embedding(const SmallCall& c) {
  const Small &table = *c.operands[0], &index = *c.operands[1];
  if (table.sizes.size() != 2) return {};
  Indexing by(c);
  const std::vector<Place> places = by.places(index, table.sizes[0], Negative::refused);
  if (!by.works()) return {};
  Sizes sizes = index.sizes;
  sizes.push_back(table.sizes[1]);
  std::vector<E> elements;
  for (const Place& place : places)
    for (size_t i = 0; i < table.size(1); ++i)
      elements.push_back(by.chosen(table, i, Indexing::Step{place, table.sizes[0], table.size(1)}));
  return by.give(sizes, elements);
}

// ---- writing ----

// One after the other, as LibTorch does it: what comes last stays, and sums are in this order.
SmallResults index_put(const SmallCall& c) {
  const Small &x = *c.operands[0], *values = c.tensor(2);
  const bool accumulate = c.arg(3).toBool();
  Indexing by(c);
  const Shown shown(c, by, 1);
  if (!shown.works || (accumulate && !adds(c))) return {};
  std::vector<E> elements = elements_of(c, x);
  const std::vector<size_t> read = broadcast(values->sizes, shown.sizes);
  for (size_t i = 0; i < count(shown.sizes); ++i) {
    const E value = c.at(*values, read[i], 0);
    shown.each_candidate(i, [&](size_t number, const std::optional<E>& is) {
      E& old = elements[number];
      const E changed = accumulate ? old + value : value;
      old = is ? where(*is, changed, old) : changed;
    });
  }
  return by.give(x.sizes, elements);
}

// The row of `padding` gets nothing, and what is out of range goes nowhere.
SmallResults embedding_dense_backward(const SmallCall& c) {
  const Small &cotangent = *c.operands[0], &index = *c.operands[1];
  const int64_t rows = c.arg(2).toInt(), padding = c.arg(3).toInt();
  if (c.arg(4).toBool() || cotangent.sizes.empty()) return {};
  const auto columns = static_cast<size_t>(cotangent.sizes.back());
  std::vector<E> elements(static_cast<size_t>(rows) * columns, c.constant(c.type(0), 0));
  for (size_t j = 0; j < index.ids.size(); ++j) {
    const E place = c.at(index, j);
    const auto known = c.graph.value(place.id());
    for (int64_t k = 0; k < rows; ++k) {
      if (k == padding || (known && *known != static_cast<double>(k))) continue;
      for (size_t i = 0; i < columns; ++i) {
        E& old = elements[static_cast<size_t>(k) * columns + i];
        const E sum = old + c.at(cotangent, j * columns + i, 0);
        old = known ? sum : where(place == k, sum, old);
      }
    }
  }
  return c.give({rows, static_cast<int64_t>(columns)}, elements);
}

// ---- in planes ----

namespace {

// Images of `sizes` with planes of so many dimensions, zero but for where the indices of `values` point to: `change`
// says what an element there becomes.
template <class F>
SmallResults in_planes(const SmallCall& c, size_t dims, const Small& values, const Small& indices, const Sizes& sizes,
                       const F& change) {
  if (sizes.size() < dims || values.sizes != indices.sizes || values.sizes.size() != sizes.size()) return {};
  const auto first_of_plane = sizes.end() - static_cast<int64_t>(dims);
  if (!std::equal(sizes.begin(), first_of_plane, values.sizes.begin())) return {};
  const auto plane = static_cast<size_t>(c10::multiply_integers(first_of_plane, sizes.end()));
  const size_t planes = count(sizes) / plane, of_plane = count(values.sizes) / planes;
  Indexing by(c);
  const std::vector<Place> places = by.places(indices, static_cast<int64_t>(plane), Negative::refused);
  if (!by.works()) return {};
  std::vector<E> elements(count(sizes), c.constant(c.type(0), 0));
  for (size_t i = 0; i < places.size(); ++i) {
    const E value = c.at(values, i, 0);
    for (size_t k = 0; k < plane; ++k) {
      E& old = elements[i / of_plane * plane + k];
      old = Indexing::changed_at(places[i], static_cast<int64_t>(k), old, [&](const E& e) { return change(e, value); });
    }
  }
  return by.give(sizes, elements);
}

}  // namespace

SmallRule added_in_planes(size_t dims) {
  return [dims](const SmallCall& c) -> SmallResults {
    if (!is_float(c.type(0))) return {};
    return in_planes(c, dims, *c.operands[0], *c.operands[2], c.operands[1]->sizes,
                     [](const E& old, const E& value) { return old + value; });
  };
}

SmallRule put_in_planes(size_t dims) {
  return [dims](const SmallCall& c) {
    const std::vector<int64_t> plane = c.arg(2).toIntVector();
    Sizes sizes = c.operands[0]->sizes;
    for (size_t d = 0; d < dims && d < plane.size(); ++d) sizes[sizes.size() - plane.size() + d] = plane[d];
    return in_planes(c, dims, *c.operands[0], *c.operands[1], sizes, [](const E&, const E& value) { return value; });
  };
}

}  // namespace tower::rules::small
