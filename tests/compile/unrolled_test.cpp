// Calls on tensors that are small for one example: kernels whose lanes are examples, against the operators.
#include "fuse/unrolled.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/compile.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <cstdlib>
#include <set>

#include "compile/kernels.h"
#include "fuse/fuse.h"
#include "graph/plan.h"
#include "op_db/op_db.h"
#include "support/compare.h"
#include "support/seeds.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using kernels::fused;
using td::Tensors;

// How many calls there are in the fused graph, and how many operators are in kernels.
struct Counts {
  size_t calls, fused;
};

Counts expect_close(const td::Function& f, const Tensors& args, double tolerance = 1e-12) {
  compiler::FusedGraph graph = fused(f, args);
  Counts counts{graph.graph.calls.size(), 0};
  for (const compiler::Fused& k : graph.kernels) counts.fused += k.operators.size();
  const Tensors expected = f(args), actual = compiler::Plan(std::move(graph.graph)).run(args);
  for (size_t k = 0; k < expected.size(); ++k) {
    EXPECT_EQ(support::difference(actual[k], expected[k], {tolerance, tolerance}), "") << k;
    EXPECT_EQ(actual[k].strides(), expected[k].strides()) << k;
  }
  return counts;
}

Tensor well_conditioned(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble) + 3 * at::eye(sizes.back(), at::kDouble);
}

// Views, products, a solve, a reduction and functions.
Tensors correction(const Tensors& in) {
  const Tensor &a = in[0], &x = in[1];
  const Tensor head = x.slice(0, 0, 2), last = x.select(0, 2);
  const Tensor r = at::cat({head * last.exp(), (a.mv(x).sum() + last).unsqueeze(0)});
  return {x - at::linalg_solve(a, r), r.norm()};
}

TEST(Unrolled, AreExamplesOfWhichAnyNumberMayBe) {
  TOWER_NEEDS_LLVM();
  for (const int64_t n : {0, 1, 7, 8, 64, 65, 1000}) {
    SCOPED_TRACE(n);
    const auto counts =
        expect_close(td::vmap(correction, {0, 0}, {0}), {well_conditioned({n, 3, 3}), at::randn({n, 3}, at::kDouble)});
    EXPECT_EQ(counts.calls, 1u);
    EXPECT_GE(counts.fused, 10u);
  }
}

TEST(Unrolled, MayLieInAnyDimensionWithAnyStrides) {
  TOWER_NEEDS_LLVM();
  const int64_t n = 13;
  const Tensor a = well_conditioned({n, 3, 3}), x = at::randn({n, 3}, at::kDouble);
  const auto apart = [&](const Tensor& t, int64_t d) { return t.movedim(0, d).contiguous(); };
  expect_close(td::vmap(correction, {1, 1}, {1, 0}), {apart(a, 1), apart(x, 1)});
  expect_close(td::vmap(correction, {2, 0}, {0}), {apart(a, 2), at::randn({n, 6}, at::kDouble).slice(1, 0, 6, 2)});
  expect_close(td::vmap(correction, {0, std::nullopt}, {0}), {a.mT(), x[0]});
  expect_close(td::vmap(correction, {0, 0}, {0}), {a, x[0].expand({n, 3})});
}

TEST(Unrolled, OfTensorsThatLieOtherwiseThanWhenTracedAreFoundThere) {
  TOWER_NEEDS_LLVM();
  const auto f = td::vmap(correction, {0, 0}, {0});
  const Tensor a = well_conditioned({9, 3, 3}), x = at::randn({9, 3}, at::kDouble);
  const compiler::Plan plan(fused(f, {a, x}).graph);
  const Tensors expected = f({a.mT(), x}), actual = plan.run({a.mT(), x});
  EXPECT_EQ(support::difference(actual[0], expected[0], {1e-12, 1e-12}), "");
}

TEST(Unrolled, ColumnsOfJacobiansAreUnrolled) {
  TOWER_NEEDS_LLVM();
  const td::Function residual = [](const Tensors& in) {
    const Tensor& x = in[0];
    return Tensors{at::cat({x.slice(0, 0, 2) * x.sum(), x.slice(0, 1, 3).prod().unsqueeze(0)}) - x.sin()};
  };
  for (const bool forward : {true, false}) {
    const td::Function newton = [&](const Tensors& in) {
      const Tensor jacobian = forward ? td::jacfwd(residual, {0})(in)[0] : td::jacrev(residual, {0})(in)[0];
      return Tensors{in[0] - at::linalg_solve(jacobian + 4 * at::eye(3, at::kDouble), residual(in)[0])};
    };
    const auto counts = expect_close(td::vmap(newton, {0}, {0}), {at::randn({11, 3}, at::kDouble)});
    EXPECT_EQ(counts.calls, 1u) << forward;
  }
}

TEST(Unrolled, PivotIsChosenByEachForItself) {
  TOWER_NEEDS_LLVM();
  Tensor a = at::zeros({6, 3, 3}, at::kDouble);
  const std::vector<std::vector<int64_t>> orders{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (int64_t n = 0; n < 6; ++n)
    for (int64_t i = 0; i < 3; ++i) a[n][i][orders[static_cast<size_t>(n)][static_cast<size_t>(i)]] = 1.0 + i;
  const Tensor b = at::randn({6, 3, 2}, at::kDouble);
  const td::Function f = [](const Tensors& in) {
    const auto [solution, lu, pivots, info] = at::_linalg_solve_ex(in[0], in[1]);
    const auto [inverse, failed] = at::linalg_inv_ex(in[0]);
    return Tensors{solution * 2, lu * 1, pivots + 0, info + 0, inverse * 1, at::linalg_det(in[0]) * 1};
  };
  const auto counts = expect_close(td::vmap(f, {0, 0}, {0, 0, 0, 0, 0, 0}), {a, b});
  EXPECT_EQ(counts.calls, 1u);
}

TEST(Unrolled, AreNoMoreThanThereAreWhereIntegersAreDivided) {
  TOWER_NEEDS_LLVM();
  const auto f =
      td::vmap([](const Tensors& in) { return Tensors{at::div(in[0], in[1], "trunc").sum() + in[0].select(0, 0)}; },
               {0, 0}, {0});
  const Tensor a = at::arange(21, at::kLong).view({7, 3}), b = at::ones({7, 3}, at::kLong);
  EXPECT_EQ(expect_close(f, {a, b}).calls, 1u);
  const compiler::Plan plan(fused(f, {a, b}).graph);
  b[6][2] = 0;
  EXPECT_THROW(plan.run({a, b}), c10::Error);
}

TEST(Unrolled, ViewsOfArgumentsThatLeaveAreViews) {
  TOWER_NEEDS_LLVM();
  const auto f = tower::compile(tower::vmap([](const Tensor& x) {
    return std::pair(x.select(0, 1), at::cat({x.select(0, 0).unsqueeze(0) * 2, x.slice(0, 1)}).sum());
  }));
  for (int i = 0; i < 3; ++i) {
    const Tensor x = at::randn({10, 4});
    EXPECT_TRUE(f(x).first.is_alias_of(x));
  }
}

TEST(Unrolled, AValueThatIsReadInTwoWaysIsRightInBoth) {
  TOWER_NEEDS_LLVM();
  const auto twice = td::vmap(
      [](const Tensors& in) {
        return Tensors{(in[0] * in[1] + 1).neg(), at::dot(in[0], in[1]).exp()};
      },
      {0, 1}, {0, 0});
  const td::Function f = [&](const Tensors& in) {
    const Tensor y = (in[0] * 2 + 1).abs();
    return twice({y, y});
  };
  expect_close(f, {at::randn({8, 8}, at::kDouble)});
}

TEST(Unrolled, WhatIsTheSameForAllExamplesMayBeInTheirKernel) {
  TOWER_NEEDS_LLVM();
  const Tensor shared = at::randn({3, 3}, at::kDouble);
  const auto f = td::vmap(
      [&](const Tensors& in) { return Tensors{(shared.mm(shared).mv(in[0]) + shared.sum()).sin() * in[0].sum()}; }, {0},
      {0});
  EXPECT_EQ(expect_close(f, {at::randn({70, 3}, at::kDouble)}).calls, 1u);
}

TEST(Contraction, ProductsThatAreOnlySummedAreOneMatrixProduct) {
  TOWER_NEEDS_LLVM();
  const Tensor x = at::randn({100, 20}, at::kDouble), g = at::randn({100, 30}, at::kDouble);
  const td::Function by_hand = [](const Tensors& in) {
    return Tensors{(in[0].unsqueeze(2) * in[1].unsqueeze(1)).sum(0) * 2};
  };
  const td::Function mapped = [](const Tensors& in) {
    const auto outer = [](const Tensors& one) { return Tensors{one[0].unsqueeze(1).mm(one[1].unsqueeze(0)).t()}; };
    return Tensors{td::vmap(outer, {0, 0}, {0})(in)[0].sum(0)};
  };
  for (const td::Function& f : {by_hand, mapped}) {
    const auto graph = fused(f, {x, g}).graph;
    EXPECT_NE(graph.print().find("tower::contraction"), std::string::npos) << graph.print();
    expect_close(f, {x, g});
  }
}

TEST(Contraction, LeavesProductsThatSomebodyReads) {
  TOWER_NEEDS_LLVM();
  const td::Function f = [](const Tensors& in) {
    const Tensor outer = in[0].unsqueeze(2) * in[1].unsqueeze(1);
    return Tensors{outer.sum(0), outer};
  };
  expect_close(f, {at::randn({100, 20}, at::kDouble), at::randn({100, 30}, at::kDouble)});
}

TEST(Contraction, ReadsWhatWasThereBeforeAWrite) {
  TOWER_NEEDS_LLVM();
  const Tensor captured = at::randn({100, 20}, at::kDouble), g = at::randn({100, 30}, at::kDouble);
  const auto f = tower::compile([&](const Tensor& x) {
    const Tensor outer = captured.unsqueeze(2) * x.unsqueeze(1);
    captured.add_(1);
    return outer.sum(0);
  });
  for (int i = 0; i < 3; ++i) {
    const Tensor expected = captured.t().mm(g);
    EXPECT_TRUE(f(g).allclose(expected, 1e-10)) << i;
  }
}

// ---- on the operator database ----

TEST(SmallRules, AgreeWithTheirOperatorsOnTheDatabase) {
  TOWER_NEEDS_LLVM();
  const char* folder = std::getenv("TOWER_OP_DB");
  std::set<std::string> checked;
  for (const op_db::Entry& entry : op_db::load(folder ? folder : TOWER_OP_DB_DIR)) {
    if (!entry.op || entry.unspecified || !compiler::has_small_form(tower::Operator::of(*entry.op))) continue;
    const bool moves = tower::Operator::of(*entry.op).moves != tower::Moves::no;
    for (const auto dtype : {at::kDouble, at::kFloat, at::kLong}) {
      if (dtype != at::kLong && !entry.real) continue;
      if (dtype != at::kDouble && moves) continue;  // what moves is numbers of elements
      // Of equals, which samples of integers have, LibTorch promises no order: compile/orders_test.cpp looks at these.
      if (dtype == at::kLong && (entry.name == "topk" || entry.name == "kthvalue")) continue;
      for (const std::string& text : entry.sample_texts) {
        const op_db::Sample sample = op_db::parse_sample(entry, text, dtype);
        if (sample.bad) continue;
        // Kernels of other types are those of float64 but for the type: the first one shows it.
        if (dtype != at::kDouble && &text != &entry.sample_texts.front() && !support::whole()) continue;
        SCOPED_TRACE(entry.name + " " + text + " of " + toString(dtype));
        // The examples of the first argument in its last dimension, for one or for as many of the others.
        const auto f = [&](const Tensors& leaves) { return op_db::call(*entry.op, sample, leaves); };
        Tensors mixed, all, expected_mixed, expected_all;
        td::Dims first, each;
        try {
          std::vector<Tensors> examples;
          for (const uint64_t seed : {0, 1, 2}) examples.push_back(op_db::make_leaves(entry, sample, dtype, seed));
          if (examples[0].empty()) continue;
          for (size_t k = 0; k < examples[0].size(); ++k) {
            all.push_back(at::stack({examples[0][k], examples[1][k], examples[2][k]}));
            each.push_back(0);
            mixed.push_back(k == 0 ? at::stack({examples[0][k], examples[1][k], examples[2][k]}, -1) : examples[0][k]);
            first.push_back(k == 0 ? std::optional<int64_t>(-1) : std::nullopt);
          }
          expected_mixed = td::vmap(f, first, {0})(mixed);
          expected_all = td::vmap(f, each, {0})(all);
        } catch (const std::exception&) {
          continue;  // not for this dtype, or not for several examples
        }
        const auto check = [&](const td::Function& mapped, const Tensors& args, const Tensors& expected) {
          compiler::FusedGraph graph = fused(mapped, args, tower::compiler::Worth::all);
          bool is_there = false;
          for (const auto& kernel : graph.kernels)
            for (const std::string& name : kernel.operators)
              is_there = is_there || name == tower::Operator::of(*entry.op).name();
          if (!is_there) return;
          checked.insert(entry.name);
          const Tensors actual = compiler::Plan(std::move(graph.graph)).run(args);
          for (size_t k = 0; k < expected.size(); ++k) {
            const double close = expected[k].scalar_type() == at::kDouble ? 1e-11 : 1e-4;
            EXPECT_EQ(support::difference(actual[k], expected[k], {moves ? 0 : close, moves ? 0 : close}), "") << k;
          }
        };
        if (dtype == at::kDouble) check(td::vmap(f, first, {0}), mixed, expected_mixed);
        if (!moves) check(td::vmap(f, each, {0}), all, expected_all);
      }
    }
  }
  EXPECT_GT(checked.size(), 40u);
}

}  // namespace
