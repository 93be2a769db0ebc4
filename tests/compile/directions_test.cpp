// Few directions around many examples: kernels whose lanes are the examples, which compute all directions of one.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/compile.h>
#include <tower/dynamic.h>
#include <tower/errors.h>
#include <tower/tower.h>

#include "compile/kernels.h"
#include "graph/plan.h"
#include "support/compare.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using td::Tensors;

struct Fused {
  Tensors results;
  size_t calls, kernels;
  int64_t lanes;  // of the first kernel
};

Fused run(const td::Function& f, const Tensors& in) {
  compiler::FusedGraph graph = kernels::fused(f, in);
  Fused result{{}, graph.graph.calls.size(), graph.kernels.size(), 0};
  if (!graph.kernels.empty()) result.lanes = graph.kernels[0].lanes;
  result.results = compiler::Plan(std::move(graph.graph)).run(in);
  return result;
}

// Values are those of the operators, in the same places of memory.
Fused expect_as_operators(const td::Function& f, const Tensors& in, double tolerance = 1e-12) {
  const Tensors expected = f(in);
  Fused fused = run(f, in);
  for (size_t k = 0; k < expected.size(); ++k) {
    EXPECT_EQ(support::difference(fused.results[k], expected[k], {tolerance, tolerance}), "") << k;
    EXPECT_EQ(fused.results[k].strides(), expected[k].strides()) << k;
  }
  return fused;
}

// Of one example: products, a sum, a function, a view, a row that is looked up.
Tensor one(const Tensor& x, const Tensor& row) {
  const Tensor r = (x * row).sum();
  return at::cat({x.slice(0, 0, 2) * r.cos(), (r * x[2]).unsqueeze(0)}) - at::linalg_cross(x, row);
}
td::Function over_examples() {
  return td::vmap([](const Tensors& in) { return Tensors{one(in[0], in[1])}; }, {0, 0}, {0});
}
// The derivatives along all directions in in[2], of both arguments.
td::Function along_directions() {
  return [](const Tensors& in) {
    return td::vmap(td::linearize(over_examples(), {in[0], in[1]}).second, {0, 0}, {0})({in[2], in[3]});
  };
}
Tensors arguments(int64_t directions, int64_t examples, at::ScalarType dtype = at::kDouble) {
  const auto options = at::dtype(dtype);
  return {at::randn({examples, 3}, options), at::randn({examples, 3}, options),
          at::randn({directions, examples, 3}, options), at::randn({directions, examples, 3}, options)};
}

TEST(Directions, AroundManyExamplesAreInOneKernel) {
  TOWER_NEEDS_LLVM();
  for (const int64_t directions : {1, 2, 15})
    for (const int64_t examples : {129, 131, 1000}) {
      SCOPED_TRACE(directions * 10'000 + examples);
      const Fused found = expect_as_operators(along_directions(), arguments(directions, examples));
      EXPECT_EQ(found.kernels, 1u);
      EXPECT_EQ(found.calls, 1u);
      EXPECT_EQ(found.lanes, examples);
    }
  EXPECT_EQ(expect_as_operators(along_directions(), arguments(5, 200, at::kFloat), 1e-4).calls, 1u);
}

TEST(Directions, AroundFewExamplesAndManyDirectionsAreThere) {
  TOWER_NEEDS_LLVM();
  for (const auto& [directions, examples] : {std::pair(0, 200), std::pair(3, 0), std::pair(3, 1), std::pair(200, 3),
                                             std::pair(33, 200), std::pair(200, 200)})
    expect_as_operators(along_directions(), arguments(directions, examples));
}

// What is not finite stays so where it does not meet a zero of a direction, too.
TEST(Directions, OfNumbersThatAreNotFiniteAreThoseOfTheOperators) {
  TOWER_NEEDS_LLVM();
  Tensors in = arguments(3, 200);
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> special{std::nan(""), infinity, -infinity, 0.0, -0.0, 5e-324, 1e308};
  for (size_t k = 0; k < special.size(); ++k)
    for (Tensor& t : in) t.flatten().narrow(0, 17 * static_cast<int64_t>(k), 5).fill_(special[k]);
  in[2][1].zero_();
  const Tensors expected = along_directions()(in), actual = run(along_directions(), in).results;
  EXPECT_TRUE(at::allclose(actual[0], expected[0], 1e-12, 1e-12, /*equal_nan=*/true));
}

TEST(Directions, OfWhichEachHasATableLookUpThere) {
  TOWER_NEEDS_LLVM();
  const td::Function mapped =
      td::vmap([](const Tensors& in) { return Tensors{one(in[0], in[1].index_select(0, in[2].unsqueeze(0))[0])}; },
               {0, std::nullopt, 0}, {0});
  const td::Function f = [mapped](const Tensors& in) {
    const auto push = td::linearize([&](const Tensors& x) { return mapped({x[0], x[1], in[2]}); }, {in[0], in[1]});
    return td::vmap(push.second, {0, 0}, {0})({in[3], in[4]});
  };
  for (const int64_t rows : {2, 50, 1000})
    for (const int64_t directions : {1, 4}) {
      SCOPED_TRACE(rows);
      const auto f64 = at::dtype(at::kDouble);
      const Tensors in{at::randn({300, 3}, f64), at::randn({rows, 3}, f64), at::randint(0, rows, {300}, at::kLong),
                       at::randn({directions, 300, 3}, f64), at::randn({directions, rows, 3}, f64)};
      EXPECT_EQ(expect_as_operators(f, in).calls, 1u);
      Tensors wrong = in;
      wrong[2] = in[2].clone();
      wrong[2][299] = rows;
      EXPECT_THROW(run(f, wrong), c10::Error);
      // Tables that lie otherwise.
      const compiler::Plan plan(kernels::fused(f, in).graph);
      Tensors apart = in;
      apart[4] = in[4].transpose(0, 2).contiguous().transpose(0, 2);
      EXPECT_EQ(support::difference(plan.run(apart)[0], f(in)[0], {1e-12, 1e-12}), "");
    }
}

// ---- tables of equal rows ----

using Lookup = std::function<Tensor(const Tensor& table, const Tensor& index)>;
const std::vector<std::pair<const char*, Lookup>>& lookups() {
  using List = c10::List<std::optional<Tensor>>;
  static const std::vector<std::pair<const char*, Lookup>> all{
      {"index_select", [](const Tensor& t, const Tensor& i) { return at::index_select(t, 0, i.unsqueeze(0))[0]; }},
      {"of columns", [](const Tensor& t, const Tensor& i) { return at::index_select(t, 1, (i % 3).unsqueeze(0)); }},
      {"index", [](const Tensor& t, const Tensor& i) { return at::index(t, List({i})); }},
      {"index of both",
       [](const Tensor& t, const Tensor& i) {
         return at::index(t, List({i, i % 3}));
       }},
      {"gather",
       [](const Tensor& t, const Tensor& i) {
         return at::gather(t, 0, i.view({1, 1}).expand({1, 3}));
       }},
      {"take", [](const Tensor& t, const Tensor& i) { return at::take(t, 3 * i); }},
      {"embedding", [](const Tensor& t, const Tensor& i) { return at::embedding(t, i); }},
  };
  return all;
}

TEST(TablesOfEqualRows, GiveWhatIsLookedUpInThem) {
  TOWER_NEEDS_LLVM();
  for (const auto& [name, lookup] : lookups())
    for (const int64_t kind : {0, 1, 2}) {
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(kind));
      const td::Function f = [lookup = lookup, kind](const Tensors& in) {
        const Tensor row = at::arange(1, 4, at::kDouble), column = at::arange(50, at::kDouble).unsqueeze(1);
        const Tensor table = kind == 0 ? row.expand({50, 3}) : kind == 1 ? column.expand({50, 3}) : (row * column);
        return td::vmap(
            [&](const Tensors& one) { return Tensors{lookup(table, one[1]) * lookup(one[0], one[1]).sin() + 1}; },
            {std::nullopt, 0}, {0})({in[0], in[1]});
      };
      expect_as_operators(f, {at::randn({50, 3}, at::kDouble), at::randint(0, 50, {200}, at::kLong)});
    }
}

TEST(TablesOfEqualRows, AreLookedUpByIndicesInRange) {
  TOWER_NEEDS_LLVM();
  for (const bool alone : {true, false}) {
    const auto mapped = tower::vmap([alone](const Tensor& x, const Tensor& i) {
      const Tensor same = at::arange(3, at::kDouble).expand({50, 3}).index_select(0, i.unsqueeze(0))[0];
      const Tensor own = alone ? x : at::arange(150, at::kDouble).view({50, 3}).index_select(0, i.unsqueeze(0))[0];
      return (x * same + own).sum().cos();
    });
    const auto fast = tower::compile(mapped);
    const Tensor x = at::randn({200, 3}, at::kDouble), i = at::randint(0, 50, {200}, at::kLong);
    for (int call = 0; call < 2; ++call) EXPECT_TRUE(at::allclose(fast(x, i), mapped(x, i)));
    for (const int64_t wrong : {-1, 50}) {
      Tensor out_of_range = i.clone();
      out_of_range[7] = wrong;
      EXPECT_THROW(fast(x, out_of_range), c10::Error) << alone;
    }
  }
}

// What a search gives is no element of its table.
TEST(TablesOfEqualRows, AreSearchedAsOthersAre) {
  TOWER_NEEDS_LLVM();
  const td::Function f = [](const Tensors& in) {
    const Tensor same = at::arange(5, at::kLong).expand({4, 5});
    return td::vmap(
        [&](const Tensors& one) {
          const auto search = [&](const Tensor& table) {
            return at::searchsorted(table, one[1], false, false, std::nullopt, one[2]);
          };
          return Tensors{search(same) - search(one[0])};
        },
        {std::nullopt, 0, 0}, {0})(in);
  };
  const Tensor in_order = at::arange(5, at::kLong).expand({200, 4, 5}).contiguous();
  expect_as_operators(
      f, {3 * at::arange(20, at::kLong).view({4, 5}), at::randint(0, 7, {200, 4, 2}, at::kLong), in_order});
}

// ---- several vmaps ----

TEST(SeveralVmaps, OverTheSameExamplesAreOneKernel) {
  TOWER_NEEDS_LLVM();
  const td::Function f = [](const Tensors& in) {
    const Tensor between = over_examples()({in[0], in[1]})[0];
    return td::vmap([](const Tensors& one) { return Tensors{at::dot(one[0], one[1]).exp() * one[0]}; }, {0, 0},
                    {0})({between, in[0]});
  };
  for (const int64_t n : {0, 1, 2, 64, 131}) {
    const Fused found = expect_as_operators(f, {at::randn({n, 3}, at::kDouble), at::randn({n, 3}, at::kDouble)});
    if (n > 1) {
      EXPECT_EQ(found.calls, 1u) << n;
    }
  }
}

// Rows of the first are columns of the second; and both are around a third.
TEST(SeveralVmaps, OverOtherExamplesAreApart) {
  TOWER_NEEDS_LLVM();
  const auto normed = [](const Tensors& in) { return Tensors{in[0] / (in[0] * in[0]).sum().sqrt()}; };
  const td::Function twice = [normed](const Tensors& in) {
    const Tensors rows = td::vmap(normed, {0}, {0})(in);
    return td::vmap(normed, {1}, {0})(rows);
  };
  const td::Function nested = [normed](const Tensors& in) {
    const Tensors rows = td::vmap(normed, {0}, {0})(in);
    const auto outer = [&](const Tensors& row) {
      return td::vmap([&](const Tensors& other) { return Tensors{at::dot(row[0], other[0]) + normed(other)[0]}; }, {0},
                      {0})(rows);
    };
    return td::vmap(outer, {0}, {0})(rows);
  };
  for (const int64_t n : {3, 12, 130}) {
    expect_as_operators(twice, {at::randn({n, n}, at::kDouble)});
    expect_as_operators(nested, {at::randn({n, 3}, at::kDouble)});
  }
}

}  // namespace
