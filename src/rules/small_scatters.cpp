// Writes by an index along one dimension, one after the other as LibTorch's kernels make them: what comes last stays,
// and sums are in this order. An index costs a select for each element that it may point to (rules/small_places.h).
#include "rules/small_scatters.h"

#include <limits>
#include <string>
#include <utility>

#include "rules/small_places.h"

namespace tower::rules::small {

using namespace compiler;

namespace {

// scatter(x, dim, index, source): each element of the index says where along `dim` it goes.
class EachElement {
 public:
  EachElement(const SmallCall& c, Indexing& by)
      : sizes_(as_rows(c.operands[0]->sizes)),
        of_index_(as_rows(c.operands[1]->sizes)),
        along_(sizes_, c.arg(1).toInt()),
        places_(by.places(*c.operands[1], along_.n(), Negative::refused)) {}

  // `change(old, at)` is what becomes of an element; `at`: where the index stands, in a source.
  template <class F>
  void write(std::vector<E>& elements, const F& change) const {
    for (size_t j = 0; j < places_.size(); ++j) {
      const std::vector<size_t> from = coordinates(j, of_index_);
      std::vector<size_t> to = from;
      for (int64_t k = 0; k < along_.n(); ++k) {
        to[along_.dim] = static_cast<size_t>(k);
        E& old = elements[number_of(to, sizes_)];
        old = Indexing::changed_at(places_[j], k, old, [&](const E& e) { return change(e, from); });
      }
    }
  }

 private:
  Sizes sizes_, of_index_;
  Along along_;
  std::vector<Place> places_;
};

// index_add(x, dim, index, source): a number for each slice of the source along `dim`.
class EachSlice {
 public:
  EachSlice(const SmallCall& c, Indexing& by, Negative negative)
      : sizes_(as_rows(c.operands[0]->sizes)),
        along_(sizes_, c.arg(1).toInt()),
        places_(by.places(*c.operands[1], along_.n(), negative)) {}

  // The number of slices is that of the indices, and else it is as large as x.
  bool fits(const Small& source) const {
    const Sizes given = as_rows(source.sizes);
    bool fits = given.size() == sizes_.size();
    for (size_t d = 0; fits && d < given.size(); ++d)
      fits = given[d] == (d == along_.dim ? static_cast<int64_t>(places_.size()) : sizes_[d]);
    return fits;
  }
  template <class F>
  void write(std::vector<E>& elements, const F& change) const {
    for (size_t j = 0; j < places_.size(); ++j)
      for (size_t i = 0; i < elements.size(); ++i) {
        std::vector<size_t> at = coordinates(i, sizes_);
        const auto k = static_cast<int64_t>(at[along_.dim]);
        at[along_.dim] = j;
        elements[i] = Indexing::changed_at(places_[j], k, elements[i], [&](const E& e) { return change(e, at); });
      }
  }

 private:
  Sizes sizes_;
  Along along_;
  std::vector<Place> places_;
};

// Elements of a source, in the type of the result.
class Source {
 public:
  Source(const SmallCall& c, size_t operand) : c_(c), t_(*c.operands[operand]), sizes_(as_rows(t_.sizes)) {}
  E operator()(const std::vector<size_t>& at) const { return c_.at(t_, number_of(at, sizes_), 0); }

 private:
  const SmallCall& c_;
  const Small& t_;
  Sizes sizes_;
};

template <class Writes, class F>
SmallResults written(const SmallCall& c, const Indexing& by, const Writes& writes, const F& change) {
  if (!by.works()) return {};
  std::vector<E> elements = elements_of(c, *c.operands[0]);
  writes.write(elements, change);
  return by.give(c.operands[0]->sizes, elements);
}

// What a reduction without the elements that are there starts from.
E start_of(const E& like, const std::string& reduce) {
  if (reduce == "prod") return like.like(1.0);
  if (reduce != "amax" && reduce != "amin") return like.like(0.0);
  const bool least = reduce == "amax";
  if (like.floating()) return like.like((least ? -1 : 1) * std::numeric_limits<double>::infinity());
  const bool wide = like.type() == Type::i64;
  using Long = std::numeric_limits<int64_t>;
  using Int = std::numeric_limits<int32_t>;
  const int64_t limit = least ? (wide ? Long::min() : Int::min()) : (wide ? Long::max() : Int::max());
  return like.like(at::Scalar(limit));
}

// NaN that meets an extremum stays.
E reduced(const E& old, const E& next, const std::string& reduce) {
  if (reduce == "prod") return old * next;
  if (reduce != "amax" && reduce != "amin") return old + next;
  const E wins = reduce == "amax" ? old < next : next < old;
  return where(next.floating() ? isnan(next) | wins : wins, next, old);
}

}  // namespace

SmallResults scatter_src(const SmallCall& c) {
  Indexing by(c);
  const EachElement writes(c, by);
  const Source source(c, 2);
  return written(c, by, writes, [&](const E&, const std::vector<size_t>& at) { return source(at); });
}

SmallResults scatter_value(const SmallCall& c) {
  Indexing by(c);
  const EachElement writes(c, by);
  const at::Scalar value = c.arg(3).toScalar();
  return written(c, by, writes, [&](const E& old, const auto&) { return old.like(value); });
}

SmallResults scatter_add(const SmallCall& c) {
  if (!adds(c)) return {};
  Indexing by(c);
  const EachElement writes(c, by);
  const Source source(c, 2);
  return written(c, by, writes, [&](const E& old, const std::vector<size_t>& at) { return old + source(at); });
}

SmallResults scatter_reduce(const SmallCall& c) {
  const std::string& reduce = c.arg(4).toStringRef();
  const bool include_self = c.arg(5).toBool(), mean = reduce == "mean";
  if (!adds(c) || (mean && !is_float(c.type(0)))) return {};
  Indexing by(c);
  const EachElement writes(c, by);
  if (!by.works()) return {};
  const Source source(c, 2);
  std::vector<E> elements = elements_of(c, *c.operands[0]);
  if (!include_self) writes.write(elements, [&](const E& old, const auto&) { return start_of(old, reduce); });
  writes.write(elements, [&](const E& old, const std::vector<size_t>& at) { return reduced(old, source(at), reduce); });
  if (mean) {
    std::vector<E> parts(elements.size(), c.constant(c.type(0), include_self ? 1 : 0));
    writes.write(parts, [](const E& old, const auto&) { return old + 1; });
    for (size_t i = 0; i < elements.size(); ++i)
      elements[i] = elements[i] / (include_self ? parts[i] : where(parts[i] == 0, 1, parts[i]));
  }
  return by.give(c.operands[0]->sizes, elements);
}

SmallResults index_copy(const SmallCall& c) {
  Indexing by(c);
  const EachSlice writes(c, by, Negative::refused);
  if (!writes.fits(*c.operands[2])) return {};
  const Source source(c, 2);
  return written(c, by, writes, [&](const E&, const std::vector<size_t>& at) { return source(at); });
}

SmallResults index_fill(const SmallCall& c) {
  Indexing by(c);
  const EachSlice writes(c, by, Negative::from_the_end);
  const at::Scalar value = c.arg(3).toScalar();
  return written(c, by, writes, [&](const E& old, const auto&) { return old.like(value); });
}

// Slices are added as tensors are, with the factor in the same rounding; numbers are not.
SmallResults index_add(const SmallCall& c) {
  Indexing by(c);
  const EachSlice writes(c, by, Negative::refused);
  if (!adds(c) || !writes.fits(*c.operands[2])) return {};
  const Source source(c, 2);
  const at::Scalar alpha = c.arg(4).toScalar();
  const bool slices = c.operands[0]->sizes.size() > 1;
  return written(c, by, writes, [&](const E& old, const std::vector<size_t>& at) {
    const E added = source(at), factor = added.like(alpha);
    return slices ? fma(added, factor, old) : old + added * factor;
  });
}

}  // namespace tower::rules::small
