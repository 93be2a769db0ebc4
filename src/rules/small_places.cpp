#include "rules/small_places.h"

#include <ATen/WrapDimUtils.h>

#include <optional>
#include <set>
#include <utility>

namespace tower::rules::small {

using namespace compiler;

namespace {

bool is_mask(const Small& t) { return t.dtype == at::kBool || t.dtype == at::kByte; }

bool keeps_whole_numbers(Type from, Type to) {
  return !is_float(from) && !is_float(to) && size_of(from) <= size_of(to) && (to != Type::b1 || from == Type::b1);
}

// The values that a whole number may have: it is a constant, or chosen among constants. None: it may be any.
std::optional<std::set<int64_t>> values_of(const Expressions& graph, Id id) {
  std::set<int64_t> values;
  std::set<Id> seen;
  std::vector<Id> open{id};
  while (!open.empty()) {
    const Id next = open.back();
    open.pop_back();
    if (!seen.insert(next).second) continue;
    const Node& n = graph[next];
    if (n.op == Op::select) open.insert(open.end(), {n.args[1], n.args[2]});
    else if (n.op == Op::cast && keeps_whole_numbers(graph[n.args[0]].type, n.type)) open.push_back(n.args[0]);
    else if (const auto value = graph.value(next)) values.insert(static_cast<int64_t>(*value));
    else return std::nullopt;
  }
  return values;
}

}  // namespace

Place Indexing::place(const E& index, int64_t n, Negative negative) {
  if (const auto value = c_.graph.value(index.id())) {
    int64_t k = static_cast<int64_t>(*value);
    if (k < 0 && negative == Negative::from_the_end) k += n;
    // LibTorch's call raises.
    works_ = works_ && k >= 0 && k < n;
    return {index, std::set<int64_t>{k}, k};
  }
  if (const auto among = values_of(c_.graph, index.id()); among && *among->begin() >= 0 && *among->rbegin() < n)
    return {index, among};
  works_ = works_ && n > 0;
  const E from_start = negative == Negative::from_the_end ? where(index < 0, index + n, index) : index;
  report((from_start < 0) | (from_start >= n));
  return {from_start};
}

std::vector<Place> Indexing::places(const Small& indices, int64_t n, Negative negative) {
  works_ = works_ && !is_mask(indices);
  std::vector<Place> all;
  for (size_t i = 0; works_ && i < indices.ids.size(); ++i) all.push_back(place(c_.at(indices, i), n, negative));
  return all;
}

void Indexing::report(const E& fails) {
  // In a loop it may fail in a lane that has ended.
  works_ = works_ && !c_.graph.in_loop();
  failed_ = failed_ ? *failed_ | fails : fails;
}

E Indexing::chosen(const Small& x, size_t first, c10::ArrayRef<Step> steps) const {
  if (is_table(x)) return looked_up(x, first, steps);
  if (steps.empty()) return c_.at(x, first);
  const auto& [place, n, stride] = steps[0];
  const auto element = [&, stride = stride](int64_t k) {
    return chosen(x, first + static_cast<size_t>(k) * stride, steps.slice(1));
  };
  std::optional<E> result;
  for (int64_t k = 0; k < n; ++k) {
    if (!place.may_be(k)) continue;
    result = result ? where(place.index == k, element(k), *result) : element(k);
  }
  return *result;
}

SmallResults Indexing::give(const Sizes& sizes, const std::vector<E>& elements) const {
  return checked(c_.give(sizes, elements));
}

SmallResults Indexing::checked(SmallResults results) const {
  if (!works_) return {};
  if (failed_) results[0].ids = c_.graph.checked(failed_->id(), std::move(results[0].ids), Failure::out_of_range);
  return results;
}

// One that has places which are not known, or the table would not be looked up.
E Indexing::looked_up(const Small& x, size_t first, c10::ArrayRef<Step> steps) const {
  Expressions& g = c_.graph;
  E number{g, g.constant(Type::i64, static_cast<int64_t>(first))}, holds{g, g.constant(Type::b1, int64_t{1})};
  for (const auto& [place, n, stride] : steps) {
    const E index = place.known ? number.like(static_cast<double>(*place.known)) : place.index.to(Type::i64);
    number = number + index * static_cast<double>(stride);
    if (!place.known) holds = holds & !((index < 0) | (index >= n));
  }
  const Node table = g[x.ids[0]];
  return {g, g.looked_up(table.type, table.bits, number.id(), holds.id())};
}

Sizes as_rows(const Sizes& sizes) { return sizes.empty() ? Sizes{1} : sizes; }

Along::Along(const Sizes& sizes, int64_t dim_)
    : dim(static_cast<size_t>(at::maybe_wrap_dim(dim_, static_cast<int64_t>(sizes.size())))) {
  for (size_t d = 0; d < sizes.size(); ++d)
    (d < dim ? outer : d == dim ? length : inner) *= static_cast<size_t>(sizes[d]);
}

std::vector<size_t> coordinates(size_t i, const Sizes& sizes) {
  std::vector<size_t> all(sizes.size());
  for (size_t d = sizes.size(); d-- > 0; i /= static_cast<size_t>(sizes[d])) all[d] = i % static_cast<size_t>(sizes[d]);
  return all;
}
size_t number_of(const std::vector<size_t>& coordinates, const Sizes& sizes) {
  size_t i = 0;
  for (size_t d = 0; d < sizes.size(); ++d) i = i * static_cast<size_t>(sizes[d]) + coordinates[d];
  return i;
}
size_t count(const Sizes& sizes) {
  size_t n = 1;
  for (const int64_t size : sizes) n *= static_cast<size_t>(size);
  return n;
}

std::vector<E> elements_of(const SmallCall& c, const Small& t) {
  std::vector<E> all;
  for (size_t i = 0; i < t.ids.size(); ++i) all.push_back(c.at(t, i, 0));
  return all;
}

bool adds(const SmallCall& c) { return c.type(0) != Type::b1; }

}  // namespace tower::rules::small
