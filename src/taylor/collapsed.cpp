// Read first: Collapsed::carry, which chooses one of the ways above it.
#include "taylor/collapsed.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "core/bind.h"
#include "interpreters/history.h"
#include "taylor/binomial.h"

namespace tower::taylor {
namespace {

// The weighted sum over the directions in front.
Tensor sum_of(const Summed& summed, const Tensor& t) {
  const Tensor& weights = summed.weights;
  if (!t.defined() || !weights.defined()) return t.defined() ? t.sum(0) : t;
  Sizes along(static_cast<size_t>(t.dim()), 1);
  along[0] = summed.directions;
  return (t * weights.to(t.scalar_type()).view(along)).sum(0);
}

Carried product(const CollapsedCall& call, const Summed& summed) {
  const auto factors = factors_of(call.tracked);
  const auto value = [&](size_t arg) { return call.args[arg].toTensor(); };
  const auto number = [&](size_t arg) { return number_of(call, arg); };
  const auto times = [&](const Tensor& a, const Tensor& b) { return on_factors(call, factors, a, b); };
  const auto of_order = [&](Vmap& level, size_t arg, size_t k) {
    return k == 0 ? value(arg) : of_one(level, call.slopes[k - 1][number(arg)]);
  };
  const auto highest = static_cast<double>(summed.order);
  // Leibniz' rule. Of the highest order the terms that have it of neither factor, divided by that order: it is a
  // divisor of most of their binomials, and multiplies the sum.
  Rows rows = for_each_direction(call, summed.directions, [&](Vmap& level) {
    Rows by_order;
    for (size_t k = 1; k <= summed.order; ++k) {
      const size_t without = k == summed.order ? 1 : 0;
      Tensor sum;
      Binomial binomial(k);
      for (size_t i = 0; i <= k; ++i, ++binomial) {
        if (i < without || i > k - without) continue;
        const Tensor term = times(of_order(level, factors.first, i), of_order(level, factors.second, k - i));
        if (!term.defined()) continue;
        const double factor = without ? *binomial / highest : *binomial;
        sum = plus(sum, factor == 1 ? term : term * factor);
      }
      by_order.push_back(sum);
    }
    return by_order;
  });
  const Tensor a = value(factors.first), b = value(factors.second);
  const Tensor sum_a = call.sums[number(factors.first)], sum_b = call.sums[number(factors.second)];
  Tensor mixed = sum_of(summed, rows.back());
  if (mixed.defined()) mixed = mixed * highest;
  Carried carried;
  carried.sums = {plus(plus(times(sum_a, b), times(a, sum_b)), mixed)};
  rows.pop_back();
  for (Tensor& t : rows) carried.slopes.push_back({std::move(t)});
  return carried;
}

// Of order two.
Carried elementwise(const CollapsedCall& call, const Summed& summed) {
  const auto [number, by_x] = by_element(call, 2);
  const Tensor &slopes = call.slopes[0][number], &first = by_x[0], &second = by_x[1];
  const auto scaled = [&](const Tensor& t) { return t.defined() && first.defined() ? t * first : Tensor(); };
  Tensor sum = scaled(call.sums[number]);
  if (second.defined() && slopes.defined()) sum = plus(sum, second * sum_of(summed, slopes * slopes));
  return {{{scaled(slopes)}}, {sum}};
}

Carried general(const CollapsedCall& call, const Summed& summed) {
  const size_t results = flatten_outputs(call.outs).size(), order = summed.order;
  Carried carried{std::vector<Rows>(order - 1, Rows(results)), Rows(results)};
  if (any_defined(call.sums)) {
    const auto along = by_series(call, 1, [&](Growing& growing, const Tensor& x, size_t leaf) {
      return call.sums[leaf].defined() ? growing.given(x, {call.sums[leaf]}) : x;
    });
    for (size_t k = 0; k < results; ++k) carried.sums[k] = along[k][0];
  }
  const Rows rows = for_each_direction(call, summed.directions, [&](Vmap& level) {
    const auto along = by_series(call, order, [&](Growing& growing, const Tensor& x, size_t leaf) {
      Derivatives derivatives;
      for (const Rows& slopes : call.slopes) derivatives.push_back(of_one(level, slopes[leaf]));
      return any_defined(derivatives) ? growing.given(x, std::move(derivatives)) : x;
    });
    Rows all;
    for (const Derivatives& d : along) all.insert(all.end(), d.begin(), d.end());
    return all;
  });
  for (size_t k = 0; k < results; ++k) {
    const Tensor* of_result = rows.data() + k * order;
    for (size_t i = 0; i + 1 < order; ++i) carried.slopes[i][k] = of_result[i];
    carried.sums[k] = plus(carried.sums[k], sum_of(summed, of_result[order - 1]));
  }
  return carried;
}

}  // namespace

Collapsed::Collapsed(const char* label, Summed summed)
    : CollapsedLevel(label, summed.order - 1, summed.weights.defined() && libtorch_follows(summed.weights)),
      summed_(std::move(summed)) {}

Carried Collapsed::carry(const CollapsedCall& call, Growth growth) const {
  if (summed_.order == 2 && is_elementwise(call)) return elementwise(call, summed_);
  return growth == Growth::product ? product(call, summed_) : general(call, summed_);
}

}  // namespace tower::taylor
