// Orders of rows of small tensors, written out: an element is inserted among those before it by as many comparisons as
// these are, whatever the values, so that all lanes do the same. Equal elements stay in their order, as LibTorch's
// stable sort leaves them, and NaN is greater than all numbers.
#include "rules/small_orders.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "numbers/promotion.h"
#include "rules/small_places.h"

namespace tower::rules::small {

using namespace compiler;

namespace {

// An element of a row, and where it was.
struct Element {
  E value, place;
};
using Row = std::vector<Element>;

enum class Order : bool { ascending, descending };

// Whether x has to go before `a`, behind which it stands.
E goes_before(const E& x, const E& a, Order order) {
  if (!x.floating()) return order == Order::ascending ? x < a : x > a;
  return order == Order::ascending ? (!(a <= x)) & (x == x) : (!(x <= a)) & (a == a);
}

// `row` with x in front of the first element of which `passes` says so; all behind that say it, too. No longer than
// `most`.
void insert(Row& row, const Element& x, const std::vector<E>& passes, size_t most) {
  const size_t before = row.size();
  if (before < most) row.push_back(x);
  const auto moved = [&](size_t j, E Element::*part) {
    const E here = j < before ? where(passes[j], x.*part, row[j].*part) : x.*part;
    return j == 0 ? here : where(passes[j - 1], row[j - 1].*part, here);
  };
  for (size_t j = row.size(); j-- > 0;) row[j] = {moved(j, &Element::value), moved(j, &Element::place)};
}

// The first elements of a row in order.
Row first_in_order(const Row& row, size_t most, Order order) {
  Row sorted;
  for (const Element& x : row) {
    std::vector<E> passes;
    for (const Element& a : sorted) passes.push_back(goes_before(x.value, a.value, order));
    insert(sorted, x, passes, most);
  }
  return sorted;
}

// Comparisons of an example, of which each is some six operations: about as many as a kernel may have in all
// (thresholds().most_operations).
constexpr size_t kMostComparisons = 500;

// Whether the first `most` elements of all rows along `dim` are found by no more than that.
bool are_few(const SmallCall& c, int64_t dim, size_t most) {
  const Along along(as_rows(c.operands[0]->sizes), dim);
  size_t comparisons = 0;
  for (size_t k = 0; k < along.length; ++k) comparisons += std::min(k, most);
  return along.outer * along.inner * comparisons <= kMostComparisons;
}
// Of one row of all elements.
bool are_few(const SmallCall& c) {
  const size_t n = c.operands[0]->ids.size();
  return n * (n - 1) / 2 <= kMostComparisons;
}

// Of each row along `dim` what `of_row` makes of it, as many elements of each, along the same dimension. `keeps`: of
// one element, whether the dimension stays.
struct OfRows {
  Sizes sizes;
  std::vector<E> values, places;

  template <class F>
  OfRows(const SmallCall& c, int64_t dim, std::optional<bool> keeps, const F& of_row) : sizes(c.operands[0]->sizes) {
    const Small& t = *c.operands[0];
    const Along along(as_rows(t.sizes), dim);
    // Of one width with the values, so that both fill as many vectors.
    const Type counts = size_of(c.type(0)) == 8 ? Type::i64 : Type::i32;
    std::vector<Row> rows;
    for (size_t o = 0; o < along.outer; ++o)
      for (size_t i = 0; i < along.inner; ++i) {
        Row row;
        for (size_t k = 0; k < along.length; ++k)
          row.push_back({c.at(t, along.at(o, k, i)), c.constant(counts, static_cast<double>(k))});
        rows.push_back(of_row(row));
      }
    const size_t length = rows[0].size();
    for (size_t o = 0; o < along.outer; ++o)
      for (size_t k = 0; k < length; ++k)
        for (size_t i = 0; i < along.inner; ++i) {
          const Element& e = rows[o * along.inner + i][k];
          values.push_back(e.value);
          places.push_back(e.place.to(Type::i64));
        }
    if (sizes.empty()) return;
    if (keeps.value_or(true)) sizes[along.dim] = static_cast<int64_t>(length);
    else sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(along.dim));
  }

  SmallResults give(const SmallCall& c) const {
    const auto all = [&](const std::vector<E>& elements, at::ScalarType dtype) {
      Small t{sizes, {}, dtype};
      for (const E& e : elements) t.ids.push_back(e.id());
      return t;
    };
    return {all(values, c.dtypes[0]), all(places, c.dtypes[1])};
  }
};

size_t length_of(const SmallCall& c, int64_t dim) { return Along(as_rows(c.operands[0]->sizes), dim).length; }

SmallResults sorted(const SmallCall& c, int64_t dim, bool descending) {
  if (!are_few(c, dim, length_of(c, dim))) return {};
  const Order order = descending ? Order::descending : Order::ascending;
  return OfRows(c, dim, std::nullopt, [&](const Row& row) { return first_in_order(row, row.size(), order); }).give(c);
}

// ---- of each row one ----

E any_nan(const Row& row) {
  E any = isnan(row[0].value);
  for (size_t k = 1; k < row.size(); ++k) any = any | isnan(row[k].value);
  return any;
}

Element either(const E& first, const Element& a, const Element& b) {
  return {where(first, a.value, b.value), where(first, a.place, b.place)};
}

// The lower of two in the middle; of a row with NaN, the first NaN.
Element median_of(const Row& row) {
  const size_t half = (row.size() - 1) / 2;
  const Element middle = first_in_order(row, half + 1, Order::ascending)[half];
  if (!row[0].value.floating()) return middle;
  Element nan = row.back();
  for (size_t k = row.size() - 1; k-- > 0;) nan.place = where(isnan(row[k].value), row[k].place, nan.place);
  nan.value = nan.value.like(std::numeric_limits<double>::quiet_NaN());
  return either(any_nan(row), nan, middle);
}

// Where all are equal, the place that std::nth_element puts in front.
int64_t first_of_equals(size_t n) {
  std::vector<int64_t> places(n);
  std::iota(places.begin(), places.end(), int64_t{0});
  std::nth_element(places.begin(), places.begin(), places.end(), [](int64_t, int64_t) { return false; });
  return places[0];
}

// The same of what is not NaN, if there is something.
Element nanmedian_of(const Row& row) {
  if (!row[0].value.floating()) return median_of(row);
  const size_t half = (row.size() - 1) / 2;
  const Row lower = first_in_order(row, half + 1, Order::ascending);
  E numbers = row[0].place.like(0);
  for (const Element& e : row) numbers = numbers + (!isnan(e.value)).to(numbers.type());
  Element result = lower[0];
  // With 2 k + 1 numbers, or one more, it is the one with k before it.
  for (size_t k = 1; k <= half; ++k) result = either(numbers > static_cast<double>(2 * k), lower[k], result);
  result.place = where(numbers == 0, static_cast<double>(first_of_equals(row.size())), result.place);
  return result;
}

Row row_of_all(const SmallCall& c) {
  Row row;
  for (size_t i = 0; i < c.operands[0]->ids.size(); ++i)
    row.push_back({c.at(*c.operands[0], i), c.constant(Type::i32, static_cast<double>(i))});
  return row;
}

// Up to so many elements std::sort inserts one after the other, and equals stay in their order.
constexpr size_t kMostInserted = 16;

// As std::sort has them by `<` alone, with which NaN is less than nothing, and nothing less than NaN.
Row inserted(const Row& row) {
  Row sorted;
  for (const Element& x : row) {
    std::vector<E> passes;
    for (const Element& a : sorted) passes.push_back(x.value < a.value);
    for (size_t j = passes.size(); j-- > 1;) {
      // What is less than the first goes to the front; else on to the first that it is not less than.
      if (j + 1 < passes.size()) passes[j] = passes[j] & passes[j + 1];
      passes[j] = passes[0] | passes[j];
    }
    insert(sorted, x, passes, row.size());
  }
  return sorted;
}

// The least of the elements that are there most often, and where it is last. NaN is never there twice.
Element mode_of(const Row& row) {
  const Row sorted = row[0].value.floating() ? inserted(row) : first_in_order(row, row.size(), Order::ascending);
  Element result = sorted[0];
  E times = result.place.like(1), most = times;
  for (size_t k = 1; k < sorted.size(); ++k) {
    times = where(sorted[k].value == sorted[k - 1].value, times + 1, 1);
    const E more = times > most;
    result = either(more, sorted[k], result);
    most = where(more, times, most);
  }
  return result;
}

// ---- running extrema ----

// Of equals the last one counts; once there is NaN, each further one.
template <class Wins>
SmallResults running_extremum(const SmallCall& c, const Wins& wins) {
  return OfRows(c, c.arg(1).toInt(), std::nullopt,
                [&](const Row& row) {
                  Row running{row[0]};
                  for (size_t k = 1; k < row.size(); ++k) {
                    const E& x = row[k].value;
                    const E takes = wins(x, running.back().value);
                    running.push_back(either(x.floating() ? takes | isnan(x) : takes, row[k], running.back()));
                  }
                  return running;
                })
      .give(c);
}

// ---- searches ----

// Where in `sequence`, between `from` and `to`, LibTorch's bisection ends: sorted or not, and whatever is NaN.
E found(const std::vector<E>& sequence, const E& x, bool right, size_t from, size_t to, const E& like) {
  if (from == to) return like.like(static_cast<double>(from));
  const size_t middle = from + (to - from) / 2;
  const E& m = sequence[middle];
  return where(right ? m > x : m >= x, found(sequence, x, right, from, middle, like),
               found(sequence, x, right, middle + 1, to, like));
}

// The same in a table that the lanes share, step by step.
E found_in_table(const SmallCall& c, const Small& table, const E& x, bool right) {
  Expressions& g = c.graph;
  const int64_t n = table.sizes[0];
  const Node node = g[table.ids[0]];
  E from = c.constant(Type::i64, 0), to = c.constant(Type::i64, static_cast<double>(n));
  for (int64_t left = n; left > 0; left /= 2) {
    const E searches = from < to, middle = (from + to).made(Op::shift_right, from.like(1));
    const E m = E(g, g.looked_up(node.type, node.bits, middle.id(), searches.id())).to(x.type());
    const E stays = right ? m > x : m >= x;
    to = where(stays, middle, to);  // a search that has ended changes nothing: `middle` is `to`
    from = where(searches & !stays, middle + 1, from);
  }
  return from;
}

// Of a bisection that finds it written out, or looks it up.
E place_in(const SmallCall& c, const Small& sequence, const std::vector<E>& row, const E& x, bool right) {
  if (is_table(sequence)) return found_in_table(c, sequence, x, right);
  return found(row, x, right, 0, row.size(), c.constant(c.type(0), 0));
}

// The type in which a sequence and what is searched in it are compared.
std::optional<Type> compared_in(const SmallCall& c) {
  std::vector<ElementArgument> arguments(2);
  for (size_t k = 0; k < 2; ++k)
    if (const Small* t = c.tensor(k)) arguments[k] = {t->ids[0], t->dtype, t->sizes.empty(), t->number};
  return promoted(c.args.slice(0, 2), arguments);
}

}  // namespace

// ---- rows in order ----

// (x, dim, descending)
SmallResults sort(const SmallCall& c) { return sorted(c, c.arg(1).toInt(), c.arg(2).toBool()); }
// (x, stable, dim, descending)
SmallResults sort_stable(const SmallCall& c) { return sorted(c, c.arg(2).toInt(), c.arg(3).toBool()); }
SmallResults argsort_stable(const SmallCall& c) {
  const Order order = c.arg(3).toBool() ? Order::descending : Order::ascending;
  if (!are_few(c, c.arg(2).toInt(), length_of(c, c.arg(2).toInt()))) return {};
  const OfRows rows(c, c.arg(2).toInt(), std::nullopt,
                    [&](const Row& row) { return first_in_order(row, row.size(), order); });
  return c.give(rows.sizes, rows.places);
}

// (x, k, dim, largest, sorted). Of equals, which LibTorch promises no order of, the first ones are taken; integers,
// which often are, stay its calls. No order is promised, either, for the order of what is not to be sorted, which stays
// its own.
SmallResults topk(const SmallCall& c) {
  const auto k = static_cast<size_t>(c.arg(1).toInt());
  if (!c.arg(4).toBool() || !is_float(c.type(0)) || !are_few(c, c.arg(2).toInt(), k)) return {};
  const Order order = c.arg(3).toBool() ? Order::descending : Order::ascending;
  return OfRows(c, c.arg(2).toInt(), std::nullopt, [&](const Row& row) { return first_in_order(row, k, order); })
      .give(c);
}

// ---- one of each row ----

// (x, k, dim, keepdim). From the nearer end; of equals the places are in order, for which LibTorch promises nothing.
SmallResults kthvalue(const SmallCall& c) {
  const auto k = static_cast<size_t>(c.arg(1).toInt());
  const size_t length = length_of(c, c.arg(2).toInt());
  if (!is_float(c.type(0)) || !are_few(c, c.arg(2).toInt(), std::min(k, length - k + 1))) return {};
  return OfRows(c, c.arg(2).toInt(), c.arg(3).toBool(),
                [&](const Row& row) {
                  const size_t after = row.size() - k;
                  if (k <= after) return Row{first_in_order(row, k, Order::ascending)[k - 1]};
                  return Row{first_in_order(Row(row.rbegin(), row.rend()), after + 1, Order::descending)[after]};
                })
      .give(c);
}

// (x, dim, keepdim)
SmallResults median_dim(const SmallCall& c) {
  if (!are_few(c, c.arg(1).toInt(), (length_of(c, c.arg(1).toInt()) + 1) / 2)) return {};
  return OfRows(c, c.arg(1).toInt(), c.arg(2).toBool(), [](const Row& row) { return Row{median_of(row)}; }).give(c);
}
SmallResults nanmedian_dim(const SmallCall& c) {
  if (!are_few(c, c.arg(1).toInt(), (length_of(c, c.arg(1).toInt()) + 1) / 2)) return {};
  return OfRows(c, c.arg(1).toInt(), c.arg(2).toBool(), [](const Row& row) { return Row{nanmedian_of(row)}; }).give(c);
}

// Of all elements.
SmallResults median(const SmallCall& c) {
  return are_few(c) ? c.give({}, {median_of(row_of_all(c)).value}) : SmallResults{};
}
SmallResults nanmedian(const SmallCall& c) {
  return are_few(c) ? c.give({}, {nanmedian_of(row_of_all(c)).value}) : SmallResults{};
}

// (x, dim, keepdim). Longer rows LibTorch sorts otherwise than by insertion, which shows in the places.
SmallResults mode(const SmallCall& c) {
  const size_t length = length_of(c, c.arg(1).toInt());
  if (length > kMostInserted || !are_few(c, c.arg(1).toInt(), length)) return {};
  return OfRows(c, c.arg(1).toInt(), c.arg(2).toBool(), [](const Row& row) { return Row{mode_of(row)}; }).give(c);
}

// ---- running extrema ----

SmallResults cummax(const SmallCall& c) {
  return running_extremum(c, [](const E& x, const E& y) { return x >= y; });
}
SmallResults cummin(const SmallCall& c) {
  return running_extremum(c, [](const E& x, const E& y) { return x <= y; });
}

// ---- searches ----

// (sequence, values or a number, out_int32, right, side, sorter)
SmallResults searchsorted(const SmallCall& c) {
  const Small& sequence = *c.operands[0];
  const Small *values = c.tensor(1), *sorter = c.tensor(5);
  const bool right = c.arg(4).isNone() ? c.arg(3).toBool() : c.arg(4).toStringRef() == "right";
  const auto type = compared_in(c);
  if (!type || *type == Type::b1 || sequence.sizes.empty() || (is_table(sequence) && sorter)) return {};
  const auto n = static_cast<size_t>(sequence.sizes.back());
  Indexing by(c);
  std::vector<Place> order;
  if (sorter) order = by.places(*sorter, sequence.sizes.back(), Negative::refused);
  if (!by.works()) return {};
  std::vector<std::vector<E>> rows;
  for (size_t first = 0; first < sequence.ids.size() && !is_table(sequence); first += n) {
    std::vector<E>& row = rows.emplace_back();
    for (size_t k = 0; k < n; ++k) {
      const E e = sorter ? by.chosen(sequence, first, Indexing::Step{order[first + k], sequence.sizes.back(), 1})
                         : c.at(sequence, first + k);
      row.push_back(e.to(*type));
    }
  }
  if (is_table(sequence)) rows.emplace_back();
  std::vector<E> places;
  const size_t count = values ? values->ids.size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const E x = values ? c.at(*values, i).to(*type) : c.constant(*type, 0).like(c.arg(1).toScalar());
    places.push_back(place_in(c, sequence, rows[i * rows.size() / count], x, right).to(c.type(0)));
  }
  return by.give(values ? values->sizes : Sizes{}, places);
}

}  // namespace tower::rules::small
