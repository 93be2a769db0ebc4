// Operators that no kernel computes, and that are in kernels by what they are made of.
#include "fuse/opened.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/compile.h>
#include <tower/decompose.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <cstdlib>
#include <set>

#include "compile/kernels.h"
#include "graph/plan.h"
#include "numbers/element.h"
#include "numbers/fold.h"
#include "op_db/op_db.h"
#include "support/compare.h"
#include "support/seeds.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using kernels::calls_left;
using td::Tensors;

Tensor numbers(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }

// What a chain that goes through the operator is left with.
TEST(Opened, OperatorsThatAreMadeOfOthersDoNotDivideKernels) {
  TOWER_NEEDS_LLVM();
  using Function = std::function<Tensor(const Tensor&, const Tensor&)>;
  const std::vector<std::pair<const char*, Function>> functions = {
      {"smooth_l1_loss",
       [](const Tensor& x, const Tensor& y) { return at::smooth_l1_loss(x, y, at::Reduction::None); }},
      {"huber_loss", [](const Tensor& x, const Tensor& y) { return at::huber_loss(x, y, at::Reduction::None); }},
      {"mse_loss", [](const Tensor& x, const Tensor& y) { return at::mse_loss(x, y, at::Reduction::None); }},
      {"soft_margin_loss",
       [](const Tensor& x, const Tensor& y) { return at::soft_margin_loss(x, y, at::Reduction::None); }},
      {"binary_cross_entropy_with_logits",
       [](const Tensor& x, const Tensor& y) {
         return at::binary_cross_entropy_with_logits(x, y.sigmoid(), {}, {}, at::Reduction::None);
       }},
      {"_foreach_mul", [](const Tensor& x, const Tensor& y) { return at::_foreach_mul({x}, at::TensorList({y}))[0]; }},
      {"_foreach_addcdiv",
       [](const Tensor& x, const Tensor& y) { return at::_foreach_addcdiv({x}, {y}, {y.abs() + 1}, 0.5)[0]; }},
      {"_foreach_lerp", [](const Tensor& x, const Tensor& y) { return at::_foreach_lerp({x}, {y}, 0.25)[0]; }},
  };
  for (const auto& [name, f] : functions) {
    SCOPED_TRACE(name);
    const td::Function chain = [f = f](const Tensors& in) { return Tensors{f(in[0].sin(), in[1] * 2).exp() + in[0]}; };
    for (const int64_t n : {0, 1, 5, 64, 1000})
      EXPECT_EQ(calls_left(chain, {numbers({n, 3}), numbers({n, 3})}, 1e-12), 1u) << n;
  }
}

// Distances of all pairs of rows are n · m · d numbers on the way, which LibTorch does not make.
TEST(Opened, WhatKernelsTakeOnlyAPartOfStaysWhole) {
  TOWER_NEEDS_LLVM();
  const td::Function distances = [](const Tensors& in) { return Tensors{at::cdist(in[0] * 2, in[1], 1) + 1}; };
  compiler::FusedGraph graph = kernels::fused(distances, {numbers({400, 3}), numbers({500, 3})}, compiler::Worth::all);
  size_t whole = 0;
  for (const compiler::Call& call : graph.graph.calls) whole += call.op->name() == "aten::_cdist_forward";
  EXPECT_EQ(whole, 1u);
  kernels::expect_as_operators(std::move(graph.graph), distances, {numbers({400, 3}), numbers({500, 3})}, 1e-12);
}

// Code of the program's is not run while a graph is fused.
TEST(Opened, DecompositionsOfTheProgramAreLeftAlone) {
  TOWER_NEEDS_LLVM();
  int runs = 0;
  const auto own = tower::decompose("aten::mse_loss", [&](const Tensor& x, const Tensor& y, int64_t reduction) {
    ++runs;
    const Tensor all = (x - y).square();
    return reduction == at::Reduction::None ? all : all.mean();
  });
  const auto fast =
      tower::compile([](const Tensor& x) { return at::mse_loss(x.sin() * 2, x, at::Reduction::None) + 1; });
  const Tensor x = numbers({100});
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(fast(x).allclose((x.sin() * 2 - x).square() + 1));
  EXPECT_EQ(runs, 0);
}

// All that decomposes, on the samples of the database: with all of it in kernels, or as LibTorch has it.
TEST(Opened, AgreesWithTheOperatorsOfTheDatabase) {
  TOWER_NEEDS_LLVM();
  const char* folder = std::getenv("TOWER_OP_DB");
  std::set<std::string> opened;
  for (const op_db::Entry& entry : op_db::load(folder ? folder : TOWER_OP_DB_DIR)) {
    if (!entry.op || entry.unspecified || !entry.real) continue;
    const tower::Operator& op = tower::Operator::of(*entry.op);
    if (!op.decomposition || compiler::element_rule(op) || compiler::fold_rule(op)) continue;
    for (const auto dtype : {at::kDouble, at::kFloat})
      for (const std::string& text : entry.sample_texts) {
        const op_db::Sample sample = op_db::parse_sample(entry, text, dtype);
        if (sample.bad) continue;
        // Kernels of float32 are those of float64 but for the type: the first one shows it.
        if (dtype == at::kFloat && &text != &entry.sample_texts.front() && !support::whole()) continue;
        SCOPED_TRACE(entry.name + " " + text + " of " + toString(dtype));
        const auto f = [&](const Tensors& leaves) {
          Tensors defined;
          for (const Tensor& t : op_db::call(*entry.op, sample, leaves))
            if (t.defined()) defined.push_back(t);
          return defined;
        };
        Tensors leaves, expected;
        compiler::Graph graph;
        try {
          leaves = op_db::make_leaves(entry, sample, dtype, 0);
          if (leaves.empty()) continue;
          expected = f(leaves);
          graph = kernels::graph_of(f, leaves);
        } catch (const std::exception&) {
          continue;  // not for this dtype, or its shape is that of values
        }
        compiler::Kernels kernels;
        compiler::FusedGraph fused = compiler::fuse(graph, kernels, compiler::Worth::all);
        bool is_whole = false;
        for (const compiler::Call& call : fused.graph.calls) is_whole = is_whole || call.op == &op;
        if (is_whole || fused.kernels.empty()) continue;
        opened.insert(entry.name);
        const Tensors actual = compiler::Plan(std::move(fused.graph)).run(leaves);
        ASSERT_EQ(actual.size(), expected.size());
        const double close = dtype == at::kDouble ? 1e-11 : 1e-4;
        for (size_t k = 0; k < expected.size(); ++k) {
          EXPECT_EQ(support::difference(actual[k], expected[k], {close, close}), "") << k;
          EXPECT_EQ(actual[k].strides(), expected[k].strides()) << k;
        }
      }
  }
  EXPECT_GE(opened.size(), 40u) << [&] {
    std::string names;
    for (const auto& name : opened) names += name + " ";
    return names;
  }();
}

}  // namespace
