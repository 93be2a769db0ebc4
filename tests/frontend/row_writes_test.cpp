// Writes to parts of a tensor reuse its memory where nobody else sees the old values: what they cost, what they mean,
// and who must go on seeing the old ones.
#include <c10/core/GradMode.h>

#include <functional>

#include "support/allocated.h"
#include "support/prelude.h"

namespace {

using support::gradient;
using support::mapped;
using support::summed;

constexpr int64_t kRows = 6, kWidth = 3;

Tensor step(const Tensor& x) { return x + 0.3 * (x.cos() * x.flip(0)); }

Tensor buffer(int64_t rows, int64_t columns) { return at::zeros({rows, columns}, at::kDouble); }

// ---- the ways to write a trajectory, by number of steps ----

using Trajectory = Tensor (*)(const Tensor& x0, int64_t steps);

Tensor with_list(const Tensor& x0, int64_t steps) {
  Tensors rows{x0};
  for (int64_t i = 0; i < steps; ++i) rows.push_back(step(rows.back()));
  return at::stack(rows);
}

Tensor recorded(const Tensor& x0, int64_t steps) {
  const Tensor rows = buffer(steps + 1, x0.size(0));
  Tensor x = x0;
  rows.select(0, 0).copy_(x);
  for (int64_t i = 0; i < steps; ++i) rows.select(0, i + 1).copy_(x = step(x));
  return rows;
}

Tensor read_back(const Tensor& x0, int64_t steps) {
  const Tensor rows = buffer(steps + 1, x0.size(0));
  rows.select(0, 0).copy_(x0);
  for (int64_t i = 0; i < steps; ++i) rows.select(0, i + 1).copy_(step(rows.select(0, i)));
  return rows;
}

Tensor by_slices(const Tensor& x0, int64_t steps) {
  const Tensor rows = buffer(steps + 1, x0.size(0));
  rows.slice(0, 0, 1).copy_(x0);
  for (int64_t i = 0; i < steps; ++i)
    rows.slice(0, i + 1, i + 2).copy_(step(rows.slice(0, i, i + 1).squeeze(0)).unsqueeze(0));
  return rows;
}

Tensor by_columns(const Tensor& x0, int64_t steps) {
  const Tensor columns = buffer(x0.size(0), steps + 1);
  columns.select(1, 0).copy_(x0);
  for (int64_t i = 0; i < steps; ++i) columns.select(1, i + 1).copy_(step(columns.select(1, i)));
  return columns.t();
}

Tensor by_elements_of_rows(const Tensor& x0, int64_t steps) {
  const Tensor rows = buffer(steps + 1, x0.size(0));
  rows.select(0, 0).copy_(x0);
  for (int64_t i = 0; i < steps; ++i) {
    const Tensor x = step(rows.select(0, i));
    rows.select(0, i + 1).slice(0, 0, 1).copy_(x.slice(0, 0, 1));
    rows.select(0, i + 1).slice(0, 1).add_(x.slice(0, 1));
  }
  return rows;
}

Tensor by_index(const Tensor& x0, int64_t steps) {
  Tensor rows = buffer(steps + 1, x0.size(0));
  rows.index_put_({at::zeros({1}, at::kLong)}, x0);
  for (int64_t i = 0; i < steps; ++i) {
    const Tensor x = at::index(rows, {at::full({1}, i, at::kLong)}).squeeze(0);
    rows.index_put_({at::full({1}, i + 1, at::kLong)}, step(x));
  }
  return rows;
}

Function of(Trajectory f, int64_t steps) {
  return of_one([=](const Tensor& x0) { return f(x0, steps); });
}

constexpr Trajectory kWays[] = {recorded, read_back, by_slices, by_columns, by_elements_of_rows, by_index};

TEST(RowWrites, GiveTheValuesAndDerivativesOfTheListUnderEveryPairOfTransforms) {
  const Tensor x = waves({2, kWidth});
  for (const Trajectory way : kWays) {
    EXPECT_TRUE(same(way(x[0], kRows), with_list(x[0], kRows)));
    EXPECT_EQ(disagreement(of(way, kRows), {x}, {.libtorch = false}), "");
  }
}

TEST(RowWrites, GiveTheSecondDerivativesOfTheList) {
  const Tensor x = waves({kWidth});
  const auto twice = [&](Trajectory way) {
    const Function loss = of_one([=](const Tensor& x0) { return way(x0, kRows).square().sum(); });
    return std::pair(td::jacrev(gradient(loss), {0})({x})[0], td::jacfwd(gradient(loss), {0})({x})[0]);
  };
  const Tensor expected = twice(with_list).first;
  for (const Trajectory way : kWays) {
    const auto [reverse, forward] = twice(way);
    EXPECT_TRUE(same(reverse, expected));
    EXPECT_TRUE(same(forward, expected));
  }
}

TEST(RowWrites, OnDiagonalsAndThroughViewsOfViewsGiveTheDerivativesOfWhatTheyCompute) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor m = buffer(kWidth, kWidth);
    for (int k = 0; k < 3; ++k) {
      m.diagonal().copy_(x * (k + 1) + m.diagonal(1).sum());
      m.t().select(0, k).mul_(x.sin());
      m.diagonal(1).add_(m.select(0, k).slice(0, 0, kWidth - 1) * 1);  // not the memory that is written to
      m.view({-1}).slice(0, k, k + 2).mul_(x.slice(0, 0, 2));
    }
    return m;
  });
  EXPECT_EQ(disagreement(f, {waves({2, kWidth})}, {.libtorch = false}), "");
}

// ---- who sees the old values ----

TEST(RowWrites, LeaveWhatATapeKeptOfTheWholeTensor) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor rows = at::stack({x, 2 * x, 3 * x, 4 * x, 5 * x});
    Tensor sum = at::zeros({}, at::kDouble);
    for (int64_t i = 0; i < 5; ++i) {
      sum = sum + (rows * rows.sin()).sum();  // its derivative needs the rows as they are now
      rows.select(0, i).copy_(x.square());
    }
    return sum + rows.sum();
  });
  EXPECT_EQ(disagreement(f, {waves({2, kWidth})}, {.libtorch = false}), "");
}

TEST(RowWrites, LeaveValuesThatWereTakenBeforeAndReachViews) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor rows = at::stack({x, 2 * x, 3 * x, 4 * x, 5 * x});
    const Tensor before = rows * 1, row = rows.select(0, 1), half = rows.slice(0, 0, 3);
    Tensor read = row.sin();
    for (int64_t i = 0; i < 3; ++i) {
      rows.select(0, i).copy_(x * (i + 7));
      read = read + row * half.sum();
    }
    return at::cat({before.flatten(), rows.flatten(), row, half.flatten(), read});
  });
  EXPECT_EQ(disagreement(f, {waves({2, kWidth})}, {.libtorch = false}), "");
}

TEST(RowWrites, LeaveTheCallersTensorAndCapturedOnes) {
  const Tensor captured = waves({kRows, kWidth}), copy = captured.clone(), given = captured.clone();
  const auto f = of_one([&](const Tensor& x) {
    const Tensor rows = x + captured;
    const Tensor same_rows = captured.expand_as(rows) * 1;
    for (int64_t i = 0; i < kRows; ++i) {
      rows.select(0, i).copy_(captured.select(0, i) * x.sum());
      same_rows.select(0, i).copy_(x.select(0, 0));
    }
    return rows.sum() + same_rows.sum();
  });
  gradient(f)({given});
  td::jvp(f, {given}, {captured});
  td::vmap(gradient(f), {0}, {0})({at::stack({given, given})});
  EXPECT_TRUE(same(captured, copy));
  EXPECT_TRUE(same(given, copy));
}

TEST(RowWrites, LeaveTheTensorThatWasCopiedAndTheRowApart) {
  const Tensor outside = waves({kWidth});
  const auto f = of_one([&](const Tensor& x) {
    const Tensor rows = buffer(kRows, kWidth), row = rows.select(0, 1), constant = at::ones({kWidth}, at::kDouble);
    Tensor v = x.sin();
    row.copy_(v);
    v.add_(1);
    row.mul_(2);
    rows.select(0, 2).copy_(row);
    rows.select(0, 1).copy_(x);
    rows.select(0, 3).copy_(constant);
    constant.add_(1);
    outside.fill_(1);
    const Tensor last = rows.select(0, 4);
    last.copy_(outside);
    outside.fill_(9);
    rows.slice(0, 0, 2).copy_(rows.slice(0, 2, 4));
    rows.select(0, 3).copy_(rows.select(0, 3) * x);
    return at::cat({rows.flatten(), row, v, constant, last});
  });
  EXPECT_EQ(disagreement(f, {waves({2, kWidth})}, {.libtorch = false}), "");
}

TEST(RowWrites, InAPullbackLeaveTheCotangentThatItWasGivenAndWorkTwice) {
  const Tensor x = waves({kWidth}), ct = waves({kRows + 1, kWidth}), copy = ct.clone();
  for (const Trajectory way : kWays) {
    const auto [rows, pullback] = td::vjp(of(way, kRows), {x});
    const auto [list, expected] = td::vjp(of(with_list, kRows), {x});
    for (int time = 0; time < 2; ++time) EXPECT_TRUE(same(pullback({ct})[0], expected({ct})[0]));
    EXPECT_TRUE(same(ct, copy));
    EXPECT_TRUE(same(rows[0], list[0]));
    const auto pushforward = td::linearize(of(way, kRows), {x}).second;
    const auto forward = td::linearize(of(with_list, kRows), {x}).second;
    for (int time = 0; time < 2; ++time) EXPECT_TRUE(same(pushforward({x})[0], forward({x})[0]));
  }
}

TEST(RowWrites, ThatAreRefusedLeaveTheTensorAsItWas) {
  const auto f = of_one([](const Tensor& x) {
    Tensor rows = at::stack({x, 2 * x, 3 * x, 4 * x, 5 * x});
    for (int64_t i = 0; i < 2; ++i) rows.select(0, i).copy_(x.sin());
    rows.index_put_({at::zeros({1}, at::kLong)}, x.cos());
    const Tensor before = rows * 1;
    EXPECT_ANY_THROW(rows.index_put_({at::tensor({3, 7})}, x));
    EXPECT_ANY_THROW(rows.index_put_({at::tensor({3})}, at::cat({x, x})));
    EXPECT_ANY_THROW(rows.select(0, 1).copy_(at::cat({x, x})));
    EXPECT_ANY_THROW(rows.slice(0, 1, 3).add_(at::cat({x, x})));
    EXPECT_TRUE(at::equal(rows, before));
    return rows.sum();
  });
  const Tensor x = waves({kWidth});
  const Tensor expected = 12 + x.cos() - x.sin();  // of 3x + 4x + 5x, cos x, sin x
  EXPECT_TRUE(same(gradient(f)({x})[0], expected));
  EXPECT_TRUE(same(td::jvp(f, {x}, {at::ones_like(x)}).second[0], expected.sum()));
  EXPECT_TRUE(same(td::vmap(gradient(f), {0}, {0})({x.unsqueeze(0)})[0], expected.unsqueeze(0)));
}

TEST(RowWrites, InNoGradModeAreNotRecorded) {
  const auto f = of_one([](const Tensor& x) {
    const Tensor rows = at::stack({x, x, x, x, x});
    for (int64_t i = 0; i < 3; ++i) {
      const c10::AutoGradMode no_grad(i != 1);
      rows.select(0, i).copy_(x * (i + 2));
    }
    return rows.sum();
  });
  const Tensor x = waves({kWidth});
  EXPECT_TRUE(same(f({x})[0], 11 * x.sum()));
  EXPECT_TRUE(same(gradient(f)({x})[0], at::full({kWidth}, 2. + 1 + 4 + 1 + 1, at::kDouble)));
}

// ---- what they cost ----

TEST(RowWrites, AllocateRowsAndNotVersionsOfTheTensor) {
  for (size_t way = 0; way < std::size(kWays); ++way)
    support::expect_linear_allocations("way " + std::to_string(way), [=](int64_t steps) {
      return of_one([=](const Tensor& x0) { return kWays[way](x0, steps).square().sum(); });
    });
}

}  // namespace
