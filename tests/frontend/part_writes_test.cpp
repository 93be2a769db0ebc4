// Writes to parts of a tensor by index, by number and through views of views: what they compute, what they cost, and
// who must go on seeing the old values. (Rows, columns and index_put_: row_writes_test.cpp.)
#include <functional>
#include <string>

#include "support/allocated.h"
#include "support/prelude.h"

namespace {

using support::gradient;
using support::mapped;
using support::summed;

constexpr int64_t kSteps = 6, kWidth = 4;

Tensor step(const Tensor& x) { return x + 0.3 * (x.cos() * x.flip(0)); }

Tensor place(int64_t i) { return at::full({1}, i, at::kLong); }
Tensor places(const Tensor& row, int64_t i) { return at::full({1, row.size(0)}, i, at::kLong); }
int64_t half(const Tensor& y) { return y.size(1) / 2; }

// ---- the ways to write a row, and what each of them computes ----

struct Writer {
  const char* name;
  void (*write)(const Tensor& y, int64_t i, const Tensor& row);
  Tensor (*functional)(const Tensor& y, int64_t i, const Tensor& row) =
      [](const Tensor& y, int64_t i, const Tensor& row) { return at::select_scatter(y, row, 0, i); };
};

const Writer kByIndex[] = {
    {"scatter_", [](const Tensor& y, int64_t i, const Tensor& v) { y.scatter_(0, places(v, i), v.unsqueeze(0)); },
     [](const Tensor& y, int64_t i, const Tensor& v) { return y.scatter(0, places(v, i), v.unsqueeze(0)); }},
    {"scatter_ of a number",
     [](const Tensor& y, int64_t i, const Tensor& v) {
       y.scatter_(0, places(v, i), 0.5);
       y.select(0, i).mul_(v);
     },
     [](const Tensor& y, int64_t i, const Tensor& v) {
       return at::select_scatter(y.scatter(0, places(v, i), 0.5), 0.5 * v, 0, i);
     }},
    {"scatter_add_",
     [](const Tensor& y, int64_t i, const Tensor& v) { y.scatter_add_(0, places(v, i), v.unsqueeze(0)); },
     [](const Tensor& y, int64_t i, const Tensor& v) { return y.scatter_add(0, places(v, i), v.unsqueeze(0)); }},
    {"index_add_", [](const Tensor& y, int64_t i, const Tensor& v) { y.index_add_(0, place(i), v.unsqueeze(0), 0.5); },
     [](const Tensor& y, int64_t i, const Tensor& v) { return y.index_add(0, place(i), v.unsqueeze(0), 0.5); }},
    {"index_copy_", [](const Tensor& y, int64_t i, const Tensor& v) { y.index_copy_(0, place(i), v.unsqueeze(0)); },
     [](const Tensor& y, int64_t i, const Tensor& v) { return y.index_copy(0, place(i), v.unsqueeze(0)); }},
    {"index_fill_",
     [](const Tensor& y, int64_t i, const Tensor& v) {
       y.index_fill_(0, place(i - y.size(0)), 0.5);
       y.select(0, i).add_(v);
     },
     [](const Tensor& y, int64_t i, const Tensor& v) {
       return at::select_scatter(y.index_fill(0, place(i), 0.5), v + 0.5, 0, i);
     }},
};

const Writer kByNumbers[] = {
    {"fill_ and mul_",
     [](const Tensor& y, int64_t i, const Tensor& v) {
       y.select(0, i).fill_(0.5);
       y.select(0, i).mul_(v);
     },
     [](const Tensor& y, int64_t i, const Tensor& v) { return at::select_scatter(y, 0.5 * v, 0, i); }},
    {"zero_ and add_",
     [](const Tensor& y, int64_t i, const Tensor& v) {
       y.select(0, i).zero_();
       y.select(0, i).add_(v);
     }},
    {"masked_fill_ of a row",
     [](const Tensor& y, int64_t i, const Tensor& v) {
       y.select(0, i).copy_(v);
       y.select(0, i).masked_fill_(v > 0, 0.5);
     },
     [](const Tensor& y, int64_t i, const Tensor& v) {
       return at::select_scatter(y, v.masked_fill(v > 0, 0.5), 0, i);
     }},
};

const Writer kThroughViews[] = {
    {"halves",
     [](const Tensor& y, int64_t i, const Tensor& v) {
       y.slice(1, 0, half(y)).select(0, i).copy_(v.slice(0, 0, half(y)));
       y.slice(1, half(y)).select(0, i).copy_(v.slice(0, half(y)));
     }},
    {"a transposed matrix", [](const Tensor& y, int64_t i, const Tensor& v) { y.t().select(1, i).copy_(v); }},
    {"a flat tensor", [](const Tensor& y, int64_t i,
                         const Tensor& v) { y.view({-1}).slice(0, i * y.size(1), (i + 1) * y.size(1)).copy_(v); }},
    {"dimensions added, permuted and removed",
     [](const Tensor& y, int64_t i, const Tensor& v) {
       y.slice(1, 1, std::nullopt, 2)
           .unsqueeze(1)
           .permute({-1, 0, 1})
           .slice(1, i, i + 1)
           .squeeze(2)
           .squeeze()
           .copy_(v.slice(0, 1, std::nullopt, 2));
       const Tensor even = y.slice(1, 0, std::nullopt, 2).transpose(0, 1);
       even.slice(-1, i, i + 1).copy_(v.slice(0, 0, std::nullopt, 2).unsqueeze(1));
     }},
    {"rows within rows",
     [](const Tensor& y, int64_t i, const Tensor& v) {
       y.slice(0, 1).slice(0, i - 1, i, 3).select(0, 0).add_(v).sub_(0.5);
     },
     [](const Tensor& y, int64_t i, const Tensor& v) { return at::select_scatter(y, y.select(0, i) + v - 0.5, 0, i); }},
};

// They make small views of all rows, each with memory of its own: that costs what they show.
const Writer kThroughListsOfViews[] = {
    {"unbind", [](const Tensor& y, int64_t i, const Tensor& v) { y.unbind(0)[static_cast<size_t>(i)].copy_(v); }},
    {"split of a split",
     [](const Tensor& y, int64_t i, const Tensor& v) {
       const auto parts = y.split(half(y), 1);
       for (size_t p = 0; p < 2; ++p)
         parts[p].split_with_sizes({i, y.size(0) - i}, 0)[1].select(0, 0).copy_(
             v.slice(0, static_cast<int64_t>(p) * half(y), static_cast<int64_t>(p + 1) * half(y)));
     }},
};

std::vector<Writer> writers() {
  std::vector<Writer> all(std::begin(kByIndex), std::end(kByIndex));
  all.insert(all.end(), std::begin(kByNumbers), std::end(kByNumbers));
  all.insert(all.end(), std::begin(kThroughViews), std::end(kThroughViews));
  all.insert(all.end(), std::begin(kThroughListsOfViews), std::end(kThroughListsOfViews));
  return all;
}

// ---- the ways to read a row ----

struct Reader {
  const char* name;
  Tensor (*row)(const Tensor& y, int64_t i);
};

const Reader kReaders[] = {
    {"select", [](const Tensor& y, int64_t i) { return y.select(0, i); }},
    {"index_select", [](const Tensor& y, int64_t i) { return y.index_select(0, place(i)).squeeze(0); }},
    {"gather", [](const Tensor& y, int64_t i) { return y.gather(0, places(y.select(0, 0), i)).squeeze(0); }},
    {"a transposed matrix", [](const Tensor& y, int64_t i) { return y.t().select(1, i); }},
    {"halves",
     [](const Tensor& y, int64_t i) {
       return at::cat({y.slice(1, 0, half(y)).select(0, i), y.slice(1, half(y)).select(0, i)});
     }},
};

Tensor trajectory(const Writer& w, const Reader& r, const Tensor& x0, int64_t steps) {
  const Tensor y = at::zeros({steps + 1, x0.size(0)}, at::kDouble);
  y.select(0, 0).copy_(x0);
  for (int64_t i = 0; i < steps; ++i) {
    const Tensor next = step(r.row(y, i));
    w.write(y, i + 1, next);
  }
  return y;
}

Tensor functional_trajectory(const Writer& w, const Tensor& x0, int64_t steps) {
  Tensor y = at::select_scatter(at::zeros({steps + 1, x0.size(0)}, at::kDouble), x0, 0, 0);
  for (int64_t i = 0; i < steps; ++i) y = w.functional(y, i + 1, step(y.select(0, i)));
  return y;
}

void expect_as_functional(const Writer& w, const Reader& r) {
  SCOPED_TRACE(std::string(w.name) + ", read by " + r.name);
  const Tensor x = waves({2, kWidth});
  const auto f = of_one([&](const Tensor& x0) { return trajectory(w, r, x0, kSteps); });
  const auto g = of_one([&](const Tensor& x0) { return functional_trajectory(w, x0, kSteps); });
  EXPECT_TRUE(same(f({x[0]})[0], g({x[0]})[0]));
  EXPECT_TRUE(same(td::jacrev(f, {0})({x[0]})[0], td::jacfwd(g, {0})({x[0]})[0]));
  EXPECT_TRUE(same(td::jacfwd(f, {0})({x[0]})[0], td::jacrev(g, {0})({x[0]})[0]));
  EXPECT_EQ(disagreement(f, {x}, {.libtorch = false}), "");
}

TEST(PartWrites, GiveTheValuesAndDerivativesOfTheFunctionalSpellingUnderEveryPairOfTransforms) {
  for (const Writer& w : writers()) expect_as_functional(w, kReaders[0]);
  for (const Reader& r : kReaders) expect_as_functional(kThroughViews[0], r);
}

TEST(PartWrites, GiveItsSecondDerivatives) {
  const Tensor x = waves({kWidth});
  const auto hessian = [&](const Function& f) {
    const Function loss = of_one([=](const Tensor& x0) { return f({x0})[0].square().sum(); });
    return td::jacrev(gradient(loss), {0})({x})[0];
  };
  for (const Writer& w : writers())
    for (const Reader& r : {kReaders[0], kReaders[4]})
      EXPECT_TRUE(same(hessian(of_one([&](const Tensor& x0) { return trajectory(w, r, x0, kSteps); })),
                       hessian(of_one([&](const Tensor& x0) { return functional_trajectory(w, x0, kSteps); }))))
          << w.name << ", " << r.name;
}

TEST(PartWrites, WithAnIndexOfEachExampleGoWhereItSays) {
  const auto f = [](const td::Tensors& in) {
    const Tensor y = in[0].sin();
    y.index_add_(0, in[1], in[0].slice(0, 0, 2).cos());
    y.scatter_(1, in[1].unsqueeze(0), in[0].slice(0, 0, 1).slice(1, 0, 2));
    y.index_copy_(0, in[1], y.slice(0, 0, 2) * 2);
    y.index_fill_(1, in[1].slice(0, 0, 1), 3);
    return td::Tensors{y.square()};
  };
  const Tensor x = waves({3, 4, 4}), index = at::tensor({0, 1, 3, 2, 1, 0}, at::kLong).view({3, 2});
  const auto each = [&](const Function& g) {
    td::Tensors all;
    for (int64_t b = 0; b < 3; ++b) all.push_back(g({x[b], index[b]})[0]);
    return at::stack(all);
  };
  const Function loss = summed(f);
  EXPECT_TRUE(same(td::vmap(f, {0, 0}, {0})({x, index})[0], each(f)));
  EXPECT_TRUE(same(td::vmap(gradient(loss), {0, 0}, {0})({x, index})[0], each(gradient(loss))));
  EXPECT_TRUE(same(gradient(summed(td::vmap(f, {0, 0}, {0})))({x, index})[0], each(gradient(loss))));
}

// ---- who sees the old values ----

TEST(PartWrites, LeaveWhatWasTakenBeforeAndReachAllViews) {
  for (const Writer& w : writers()) {
    const auto with = [&](bool in_place) {
      return of_one([&w, in_place](const Tensor& x) {
        Tensor y = at::stack({x, 2 * x, 3 * x, 4 * x, 5 * x, 6 * x});
        Tensor seen = at::zeros({}, at::kDouble);
        for (int64_t i = 1; i < 4; ++i) {
          const Tensor left = y.slice(1, 0, 3), row = left.select(0, i), flat = y.view({-1}), columns = y.t();
          seen = seen + (y * y.sin()).sum() + row.square().sum();  // their derivatives need what is there now
          const Tensor kept = left * left;
          if (in_place) {
            w.write(y, i, x.sin() * static_cast<double>(i));
            seen = seen + (row * left.sum() * 2).sum() + (flat.slice(0, 2, 6).sum() * columns.select(1, i)).sum();
          } else {
            y = w.functional(y, i, x.sin() * static_cast<double>(i));
            const Tensor now = y.slice(1, 0, 3);
            seen = seen + (now.select(0, i) * now.sum() * 2).sum() +
                   (y.flatten().slice(0, 2, 6).sum() * y.t().select(1, i)).sum();
          }
          seen = seen + kept.sum();
        }
        return at::cat({seen.unsqueeze(0), y.flatten()});
      });
    };
    const Tensor x = waves({2, kWidth});
    EXPECT_EQ(disagreement(with(true), {x}, {.libtorch = false}), "") << w.name;
    EXPECT_TRUE(same(td::jacrev(with(true), {0})({x[0]})[0], td::jacrev(with(false), {0})({x[0]})[0])) << w.name;
  }
}

TEST(PartWrites, LeaveTheCotangentThatAPullbackWasGivenAndWorkTwice) {
  const Tensor x = waves({kWidth}), ct = waves({kSteps + 1, kWidth}), copy = ct.clone();
  for (const Writer& w : writers()) {
    const auto f = of_one([&](const Tensor& x0) { return trajectory(w, kReaders[0], x0, kSteps); });
    const auto g = of_one([&](const Tensor& x0) { return functional_trajectory(w, x0, kSteps); });
    const auto pullback = td::vjp(f, {x}).second, expected = td::vjp(g, {x}).second;
    for (int time = 0; time < 2; ++time) EXPECT_TRUE(same(pullback({ct})[0], expected({ct})[0])) << w.name;
    const auto pushforward = td::linearize(f, {x}).second, forward = td::linearize(g, {x}).second;
    for (int time = 0; time < 2; ++time) EXPECT_TRUE(same(pushforward({x})[0], forward({x})[0])) << w.name;
    EXPECT_TRUE(same(ct, copy)) << w.name;
  }
}

TEST(PartWrites, ThatAreRefusedLeaveTheTensorAsItWas) {
  const auto f = of_one([](const Tensor& x) {
    Tensor y = at::stack({x, 2 * x, 3 * x, 4 * x, 5 * x});
    for (const Writer& w : writers()) w.write(y, 2, x.sin());
    const Tensor before = y * 1, two = at::stack({x, x}), wrong = at::tensor({0, 7}, at::kLong);
    const Tensor wide = wrong.unsqueeze(1).expand({2, kWidth});
    EXPECT_ANY_THROW(y.scatter_(0, wide, two));
    EXPECT_ANY_THROW(y.scatter_(0, wide, 0.5));
    EXPECT_ANY_THROW(y.scatter_add_(0, wide, two));
    EXPECT_ANY_THROW(y.index_add_(0, wrong, two));
    EXPECT_ANY_THROW(y.index_copy_(0, wrong, two));
    EXPECT_ANY_THROW(y.index_fill_(0, wrong, 0.5));
    EXPECT_ANY_THROW(y.index_put_({wrong}, x));
    EXPECT_ANY_THROW(y.index_put_({place(1)}, at::cat({x, x})));
    EXPECT_ANY_THROW(y.index_put_({place(1), place(1), place(1)}, number(1)));
    EXPECT_ANY_THROW(y.index_add_(0, place(1), two));
    EXPECT_ANY_THROW(y.index_copy_(0, place(1), at::cat({x, x}).unsqueeze(0)));
    EXPECT_ANY_THROW(y.masked_fill_(at::ones({3}, at::kBool), 0.5));
    EXPECT_ANY_THROW(y.slice(1, 0, 2).select(0, 1).copy_(x));
    for (const int64_t row : {-9, -6, 5, 7}) EXPECT_ANY_THROW(y.t().select(1, row).copy_(x));
    EXPECT_ANY_THROW(y.t().select(2, 0));
    EXPECT_ANY_THROW(y.t().slice(0, 0, 1, 0));
    EXPECT_TRUE(at::equal(y.t().slice(1, -9, -4), y.slice(0, -9, -4).t()));
    EXPECT_ANY_THROW(y.view({-1}).slice(0, 0, 3).add_(x));
    EXPECT_TRUE(at::equal(y, before));
    return y.slice(0, 3).sum() + y.select(0, 0).sum();
  });
  const Tensor x = waves({kWidth});
  EXPECT_TRUE(same(gradient(f)({x})[0], at::full({kWidth}, 1. + 4 + 5, at::kDouble)));
  EXPECT_TRUE(same(td::jvp(f, {x}, {at::ones_like(x)}).second[0], number(10. * kWidth)));
  EXPECT_TRUE(same(mapped(gradient(f))({x.unsqueeze(0)})[0], at::full({1, kWidth}, 10., at::kDouble)));
}

// ---- what they cost ----

// Copies of the tensor would make twice the steps allocate four times as much.
void expect_linear(const char* what, const std::function<void(int64_t steps)>& run) {
  const auto allocated = [&](int64_t steps) { return support::allocated_by([&] { run(steps); }); };
  EXPECT_LT(allocated(400), 2.3 * allocated(200)) << what;
}

TEST(PartWrites, AllocatePartsAndNotVersionsOfTheTensor) {
  const Tensor x = waves({40});
  const std::pair<const char*, std::function<void(const Function&)>> transforms[] = {
      {"grad", [&](const Function& f) { gradient(f)({x}); }},
      {"vmap(grad)", [&](const Function& f) { mapped(gradient(f))({at::stack({x, -x})}); }},
      {"jvp", [&](const Function& f) { td::jvp(f, {x}, {x}); }},
      {"linearize", [&](const Function& f) { td::linearize(f, {x}).second({x}); }},
      {"grad(grad)", [&](const Function& f) { gradient(summed(gradient(f)))({x}); }},
      {"jvp(vmap)", [&](const Function& f) { td::jvp(mapped(f), {at::stack({x, -x})}, {at::stack({x, x})}); }}};
  for (const auto& [name, run] : transforms) {
    const auto expect = [&](const Writer& w, const Reader& r) {
      expect_linear((std::string(name) + ", " + w.name + ", " + r.name).c_str(), [&](int64_t steps) {
        run(of_one([&, steps](const Tensor& x0) { return trajectory(w, r, x0, steps).square().sum(); }));
      });
    };
    for (const Writer& w : kByIndex) expect(w, kReaders[0]);
    for (const Writer& w : kByNumbers) expect(w, kReaders[0]);
    for (const Writer& w : kThroughViews) expect(w, kReaders[0]);
    for (const Reader& r : kReaders) expect(kThroughViews[0], r);
  }
}

}  // namespace
