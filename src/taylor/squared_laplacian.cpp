// Read first: SquaredLaplacian::carry.
#include "taylor/squared_laplacian.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>

#include "core/bind.h"
#include "taylor/collapsed.h"

namespace tower::taylor {

SquaredLaplacian::SquaredLaplacian(const char* label, int64_t directions)
    : CollapsedLevel(label, kOrders, false), directions_(directions) {
  std::vector<int64_t> first, second, diagonal, all(static_cast<size_t>(directions * directions));
  std::vector<double> count;
  for (int64_t i = 0; i < directions; ++i)
    for (int64_t j = i; j < directions; ++j) {
      const auto pair = static_cast<int64_t>(first.size());
      all[static_cast<size_t>(i * directions + j)] = all[static_cast<size_t>(j * directions + i)] = pair;
      if (i == j) diagonal.push_back(pair);
      first.push_back(i);
      second.push_back(j);
      count.push_back(i == j ? 1 : 2);
    }
  first_ = at::tensor(first);
  second_ = at::tensor(second);
  diagonal_ = at::tensor(diagonal);
  all_ = at::tensor(all);
  count_ = at::tensor(count, at::kDouble);
}

namespace {

// What a value carries; undefined: zero.
struct Parts {
  Tensor value, slopes, pairs, slopes_of_laplacian, squared_laplacian;
};

Tensor scaled(const Tensor& t, double factor) { return t.defined() ? t * factor : t; }
Tensor sum_along(const Tensor& t) { return t.defined() ? t.sum(0) : t; }
Tensor in_front(const Tensor& t) { return t.defined() ? t.unsqueeze(0) : t; }
Tensor times(const Tensor& a, const Tensor& b) { return a.defined() && b.defined() ? a * b : Tensor(); }

}  // namespace

class SquaredLaplacian::Rules {
 public:
  Rules(const SquaredLaplacian& level, const CollapsedCall& call) : level_(level), call_(call) {}

  Carried elementwise() const;
  Carried product() const;
  Carried by_nesting() const;

 private:
  Tensor chosen(const Tensor& t, const Tensor& rows) const {
    return t.defined() ? t.index_select(0, rows.to(t.device())) : t;
  }
  Tensor firsts(const Tensor& slopes) const { return chosen(slopes, level_.first_); }
  Tensor seconds(const Tensor& slopes) const { return chosen(slopes, level_.second_); }
  Tensor laplacian(const Tensor& pairs) const { return sum_along(chosen(pairs, level_.diagonal_)); }
  /// As D rows of D.
  Tensor all(const Tensor& pairs) const {
    const Tensor rows = chosen(pairs, level_.all_);
    return rows.defined() ? rows.unflatten(0, {level_.directions_, level_.directions_}) : rows;
  }
  /// The sum over all i and j of what (i, j) and (j, i) have in common.
  Tensor sum_of_all(const Tensor& pairs) const {
    if (!pairs.defined()) return pairs;
    Sizes along(static_cast<size_t>(pairs.dim()), 1);
    along[0] = pairs.size(0);
    return (pairs * level_.count_.to(pairs.options()).view(along)).sum(0);
  }
  Parts parts(size_t number, Tensor value = {}) const {
    return {std::move(value), call_.slopes[0][number], call_.slopes[1][number], call_.slopes[2][number],
            call_.sums[number]};
  }
  Tensor nested(Level& outer, Level& inner, const Tensor& value, size_t number) const;
  Parts carried_by(const Level& outer, const Level& inner, const Tensor& out) const;

  const SquaredLaplacian& level_;
  const CollapsedCall& call_;
};

// yᵢ = f' xᵢ    yᵢⱼ = f' xᵢⱼ + f'' xᵢ xⱼ    and so on: each set of i, i, j, j in parts.
Carried SquaredLaplacian::Rules::elementwise() const {
  const auto [number, by_x] = by_element(call_, 4);
  const Parts x = parts(number);
  const auto part = [f = &by_x](size_t order, const Tensor& t) { return times(t, (*f)[order - 1]); };
  const Tensor laplacian = this->laplacian(x.pairs), square = sum_along(times(x.slopes, x.slopes)),
               along = times(all(x.pairs), in_front(x.slopes)),  // xᵢⱼ xⱼ
      between = along.defined() ? along.sum(1) : along;          // Σⱼ xᵢⱼ xⱼ
  Carried y;
  y.slopes = {{part(1, x.slopes)},
              {plus(part(1, x.pairs), part(2, times(firsts(x.slopes), seconds(x.slopes))))},
              {plus(plus(part(1, x.slopes_of_laplacian), part(3, times(x.slopes, square))),
                    part(2, plus(scaled(between, 2), times(x.slopes, laplacian))))}};
  const Tensor by_second = plus(plus(scaled(sum_along(times(x.slopes, x.slopes_of_laplacian)), 4),
                                     scaled(sum_of_all(times(x.pairs, x.pairs)), 2)),
                                times(laplacian, laplacian));
  const Tensor by_third = plus(scaled(times(square, laplacian), 2), scaled(sum_along(times(x.slopes, between)), 4));
  y.sums = {plus(plus(part(1, x.squared_laplacian), part(2, by_second)),
                 plus(part(3, by_third), part(4, times(square, square))))};
  return y;
}

Carried SquaredLaplacian::Rules::product() const {
  const auto factors = factors_of(call_.tracked);
  const auto part = [&](size_t arg) { return parts(number_of(call_, arg), call_.args[arg].toTensor()); };
  const Parts a = part(factors.first), b = part(factors.second);
  const auto on = [&](const Tensor& x, const Tensor& y) { return on_factors(call_, factors, x, y); };
  // What one factor carries, with the other's value.
  const auto with_value = [&](int64_t count, Tensor Parts::*of) {
    return for_each_direction(call_, count, [&](Vmap& level) {
      return Rows{plus(on(of_one(level, a.*of), b.value), on(a.value, of_one(level, b.*of)))};
    })[0];
  };
  const auto each = [&](const Tensor& x, const Tensor& y) -> Tensor {
    if (!x.defined() || !y.defined()) return {};
    return for_each_direction(call_, x.size(0),
                              [&](Vmap& level) { return Rows{on(of_one(level, x), of_one(level, y))}; })[0];
  };
  // The sum over j of products of a matrix's rows, of all i, and slopes.
  const auto between = [&](const Tensor& pairs, const Tensor& slopes, bool swapped) -> Tensor {
    const Tensor rows = all(pairs);
    if (!rows.defined() || !slopes.defined()) return {};
    return for_each_direction(call_, level_.directions_, [&](Vmap& outer) {
      const Tensor row = of_one(outer, rows);
      const Tensor of_row = for_each_direction(call_, level_.directions_, [&](Vmap& inner) {
        const Tensor x = of_one(inner, row), y = of_one(inner, slopes);
        return Rows{swapped ? on(y, x) : on(x, y)};
      })[0];
      return Rows{of_row.sum(0)};
    })[0];
  };
  const int64_t directions = level_.directions_, pairs = level_.first_.size(0);
  const Tensor laplacian_a = laplacian(a.pairs), laplacian_b = laplacian(b.pairs);
  const auto by_laplacian = for_each_direction(call_, directions, [&](Vmap& level) {
    return Rows{plus(on(of_one(level, a.slopes), laplacian_b), on(laplacian_a, of_one(level, b.slopes)))};
  })[0];
  Carried y;
  y.slopes = {{with_value(directions, &Parts::slopes)},
              {plus(with_value(pairs, &Parts::pairs),
                    plus(each(firsts(a.slopes), seconds(b.slopes)), each(seconds(a.slopes), firsts(b.slopes))))},
              {plus(plus(with_value(directions, &Parts::slopes_of_laplacian), by_laplacian),
                    scaled(plus(between(a.pairs, b.slopes, false), between(b.pairs, a.slopes, true)), 2))}};
  const Tensor third = plus(each(a.slopes_of_laplacian, b.slopes), each(a.slopes, b.slopes_of_laplacian));
  y.sums = {plus(plus(plus(on(a.squared_laplacian, b.value), on(a.value, b.squared_laplacian)),
                      scaled(on(laplacian_a, laplacian_b), 2)),
                 scaled(plus(sum_along(third), sum_of_all(each(a.pairs, b.pairs))), 4))};
  return y;
}

// A value as the two levels carry it: what the outer one does, for the value, the slopes and the sum of the inner one.
Tensor SquaredLaplacian::Rules::nested(Level& outer, Level& inner, const Tensor& value, size_t number) const {
  const Parts x = parts(number, value);
  const auto in_outer = [&](Tensor t, const Tensor& like, Tensor slopes, Tensor sum) -> Tensor {
    if (!t.defined() && !slopes.defined() && !sum.defined()) return {};
    if (!t.defined()) t = at::zeros_like(like);
    return wrap_series(outer, std::move(t), {std::move(slopes), std::move(sum)});
  };
  const Tensor of_laplacian = laplacian(x.pairs);
  Sizes sizes{level_.directions_};
  sizes.append(value.sizes().begin(), value.sizes().end());
  return wrap_series(inner, in_outer(value, value, x.slopes, of_laplacian),
                     {in_outer(x.slopes, value.unsqueeze(0).expand(sizes), all(x.pairs), x.slopes_of_laplacian),
                      in_outer(of_laplacian, value, x.slopes_of_laplacian, x.squared_laplacian)});
}

Parts SquaredLaplacian::Rules::carried_by(const Level& outer, const Level& inner, const Tensor& out) const {
  const auto taken = [](const Level& level, const Tensor& t) -> std::pair<Tensor, Derivatives> {
    Wrapper* w = t.defined() ? as_wrapper_of(t, level) : nullptr;
    if (!w) return {t, Derivatives(2)};
    Derivatives derivatives = derivatives_of(w->payload());
    derivatives.resize(2);
    return {w->payload().value, std::move(derivatives)};
  };
  const auto [value, derivatives] = taken(inner, out);
  const auto [own, of_value] = taken(outer, value);
  const auto [slopes, of_slopes] = taken(outer, derivatives[0]);
  const auto [sum, of_sum] = taken(outer, derivatives[1]);
  Parts y;
  y.slopes = of_value[0];
  if (of_slopes[0].defined()) {
    const Tensor upper = level_.first_ * level_.directions_ + level_.second_;
    y.pairs = chosen(of_slopes[0].flatten(0, 1), upper);
  }
  y.slopes_of_laplacian = of_sum[0];
  y.squared_laplacian = of_sum[1];
  return y;
}

Carried SquaredLaplacian::Rules::by_nesting() const {
  const auto outer = c10::make_intrusive<Collapsed>(call_.label, Summed{2, level_.directions_});
  const Scope outside(outer);
  const auto inner = c10::make_intrusive<Collapsed>(call_.label, Summed{2, level_.directions_});
  Stack stack = call_.args;
  std::vector<Parts> results;
  {
    const Scope inside(inner);
    replace_tensors(call_.op, stack, [&](const Tensor& t, LeafRef leaf) -> Tensor {
      return nested(*outer, *inner, t, leaf_number(call_.op, call_.args, leaf));
    });
    bind_call(call_.op, stack);
  }
  Carried y{std::vector<Rows>(kOrders), {}};
  for (const Tensor& out : flatten_outputs(stack)) {
    const Parts of_out = carried_by(*outer, *inner, out);
    y.slopes[0].push_back(of_out.slopes);
    y.slopes[1].push_back(of_out.pairs);
    y.slopes[2].push_back(of_out.slopes_of_laplacian);
    y.sums.push_back(of_out.squared_laplacian);
  }
  return y;
}

Carried SquaredLaplacian::carry(const CollapsedCall& call, Growth growth) const {
  const Rules rules(*this, call);
  if (is_elementwise(call)) return rules.elementwise();
  return growth == Growth::product ? rules.product() : rules.by_nesting();
}

}  // namespace tower::taylor
