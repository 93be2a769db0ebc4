// Sums and their kin: over some dimensions of a small tensor.
#include <ATen/Functions.h>
#include <ATen/WrapDimUtils.h>

#include <cmath>

#include "fuse/small.h"

namespace tower::compiler {
namespace {

// The numbers of the elements that each element of the result is made of, and the result's sizes.
struct Parts {
  Sizes sizes;
  std::vector<std::vector<size_t>> of;
};

Parts parts_of(const Small& t, const std::vector<int64_t>& over, bool keep) {
  const auto dims = static_cast<int64_t>(t.sizes.size());
  std::vector<bool> summed(t.sizes.size(), over.empty());
  if (dims > 0)
    for (const int64_t d : over) summed[static_cast<size_t>(at::maybe_wrap_dim(d, dims))] = true;
  Parts parts;
  size_t count = 1;
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    if (!summed[d]) count *= static_cast<size_t>(t.sizes[d]);
    if (!summed[d]) parts.sizes.push_back(t.sizes[d]);
    else if (keep) parts.sizes.push_back(1);
  }
  parts.of.resize(count);
  for (size_t i = 0; i < t.ids.size(); ++i) {
    size_t left = i, to = 0, stride = 1;
    for (size_t d = t.sizes.size(); d-- > 0;) {
      const auto n = static_cast<size_t>(t.sizes[d]);
      if (!summed[d]) {
        to += left % n * stride;
        stride *= n;
      }
      left /= n;
    }
    parts.of[to].push_back(i);
  }
  return parts;
}

std::vector<int64_t> dims_of(const IValue& v) {
  if (v.isNone()) return {};
  if (v.isInt()) return {v.toInt()};
  return v.toIntVector();
}

// Each element of the result from a list of elements; `f` gives none where it cannot be.
template <class F>
SmallResults reduced(const SmallCall& c, const std::vector<int64_t>& over, bool keep, F f) {
  const Small& t = *c.operands[0];
  const Parts parts = parts_of(t, over, keep);
  Small result{parts.sizes, {}, c.dtypes[0]};
  for (const auto& part : parts.of) {
    std::vector<E> list;
    for (const size_t i : part) list.push_back(c.at(t, i));
    const std::optional<E> e = f(list);
    if (!e) return {};
    result.ids.push_back(e->to(c.type(0)).id());
  }
  return {result};
}

using List = std::vector<E>;

std::optional<E> total(const SmallCall& c, const List& list) {
  if (list.empty()) return c.constant(c.type(0), 0);
  E sum = list[0].to(c.type(0));
  for (size_t i = 1; i < list.size(); ++i) sum = sum + list[i].to(c.type(0));
  return sum;
}
std::optional<E> mean(const SmallCall& c, const List& list) {
  if (list.empty() || !is_float(c.type(0))) return std::nullopt;
  return *total(c, list) / static_cast<double>(list.size());
}
std::optional<E> product(const SmallCall& c, const List& list) {
  if (list.empty()) return c.constant(c.type(0), 1);
  E all = list[0].to(c.type(0));
  for (size_t i = 1; i < list.size(); ++i) all = all * list[i].to(c.type(0));
  return all;
}
template <E (*better)(E, E)>
std::optional<E> extreme(const SmallCall&, const List& list) {
  if (list.empty() || list[0].type() == Type::b1) return std::nullopt;
  E best = list[0];
  for (size_t i = 1; i < list.size(); ++i) best = better(best, list[i]);
  return best;
}

std::optional<E> norm(const SmallCall& c, const List& list, double order) {
  const Type type = c.type(0);
  if (list.empty() || !is_float(type)) return std::nullopt;
  const auto magnitude = [&](size_t i) { return abs(list[i].to(type)); };
  if (order == 2) {
    E sum = list[0].to(type) * list[0].to(type);
    for (size_t i = 1; i < list.size(); ++i) sum = fma(list[i].to(type), list[i].to(type), sum);
    return sqrt(sum);
  }
  if (order != 1 && !std::isinf(order)) return std::nullopt;
  E result = magnitude(0);
  for (size_t i = 1; i < list.size(); ++i)
    result = order == 1  ? result + magnitude(i)
             : order > 0 ? maximum(result, magnitude(i))
                         : minimum(result, magnitude(i));
  return result;
}

using Reduction = std::optional<E> (*)(const SmallCall&, const List&);

// Over all elements.
template <Reduction f>
SmallResults all_of(const SmallCall& c) {
  return reduced(c, {}, false, [&](const List& list) { return f(c, list); });
}
// aten::f(self, dims, keepdim, …)
template <Reduction f>
SmallResults over_dims(const SmallCall& c) {
  return reduced(c, dims_of(c.arg(1)), c.arg(2).toBool(), [&](const List& list) { return f(c, list); });
}

SmallResults vector_norm(const SmallCall& c) {
  const double order = c.arg(1).toScalar().toDouble();
  return reduced(c, dims_of(c.arg(2)), c.arg(3).toBool(), [&](const List& list) { return norm(c, list, order); });
}

// ---- rows that go on as rows ----

// Of each row along a dimension, a row of the results. `f` is given as many lists as there are operands.
template <class F>
SmallResults along(const SmallCall& c, int64_t dim, F f) {
  const Small& t = *c.operands[0];
  if (!is_float(c.type(0))) return {};
  const Parts parts = parts_of(t, {dim}, true);
  Small result{t.sizes, std::vector<Id>(t.ids.size(), kNone), c.dtypes[0]};
  for (const auto& part : parts.of) {
    std::vector<List> lists;
    for (const Small* operand : c.operands) {
      if (operand->sizes != t.sizes) return {};
      lists.emplace_back();
      for (const size_t i : part) lists.back().push_back(c.at(*operand, i).to(c.type(0)));
    }
    const List row = f(lists);
    for (size_t k = 0; k < part.size(); ++k) result.ids[part[k]] = row[k].id();
  }
  return {result};
}

E sum_of(const List& list) {
  E sum = list[0];
  for (size_t i = 1; i < list.size(); ++i) sum = sum + list[i];
  return sum;
}
E greatest(const List& list) {
  E best = list[0];
  for (size_t i = 1; i < list.size(); ++i) best = maximum(best, list[i]);
  return best;
}
List mapped(const List& list, const std::function<E(const E&)>& f) {
  List result;
  for (const E& e : list) result.push_back(f(e));
  return result;
}

template <bool logarithm>
SmallResults softmax(const SmallCall& c) {
  return along(c, c.arg(1).toInt(), [](const std::vector<List>& in) {
    const E top = greatest(in[0]);
    const List apart = mapped(in[0], [&](const E& x) { return x - top; });
    const List powers = mapped(apart, [](const E& x) { return exp(x); });
    const E sum = sum_of(powers);
    if constexpr (logarithm) {
      const E low = log(sum);
      return mapped(apart, [&](const E& x) { return x - low; });
    } else return mapped(powers, [&](const E& x) { return x / sum; });
  });
}

// Of (gradient, output, dim, dtype).
template <bool logarithm>
SmallResults softmax_backward(const SmallCall& c) {
  return along(c, c.arg(2).toInt(), [](const std::vector<List>& in) {
    const List &g = in[0], &y = in[1];
    List row;
    if constexpr (logarithm) {
      const E sum = sum_of(g);
      for (size_t i = 0; i < g.size(); ++i) row.push_back(g[i] - exp(y[i]) * sum);
    } else {
      E sum = g[0] * y[0];
      for (size_t i = 1; i < g.size(); ++i) sum = fma(g[i], y[i], sum);
      for (size_t i = 0; i < g.size(); ++i) row.push_back((g[i] - sum) * y[i]);
    }
    return row;
  });
}

template <bool sums>
SmallResults cumulative(const SmallCall& c) {
  return along(c, c.arg(1).toInt(), [](const std::vector<List>& in) {
    List row;
    for (const E& e : in[0]) row.push_back(row.empty() ? e : sums ? row.back() + e : row.back() * e);
    return row;
  });
}

}  // namespace

const SmallRules& small_sums() {
  static const SmallRules& rules = *new SmallRules{
      {"aten::sum", all_of<total>},
      {"aten::sum.dim_IntList", over_dims<total>},
      {"aten::mean", all_of<mean>},
      {"aten::mean.dim", over_dims<mean>},
      {"aten::prod", all_of<product>},
      {"aten::prod.dim_int", over_dims<product>},
      {"aten::amax", over_dims<extreme<maximum>>},
      {"aten::amin", over_dims<extreme<minimum>>},
      {"aten::max", all_of<extreme<maximum>>},
      {"aten::min", all_of<extreme<minimum>>},
      {"aten::linalg_vector_norm", vector_norm},
      {"aten::_softmax", softmax<false>},
      {"aten::_log_softmax", softmax<true>},
      {"aten::_softmax_backward_data", softmax_backward<false>},
      {"aten::_log_softmax_backward_data", softmax_backward<true>},
      {"aten::cumsum", cumulative<true>},
      {"aten::cumprod", cumulative<false>},
  };
  return rules;
}

}  // namespace tower::compiler
