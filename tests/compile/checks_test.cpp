// What stands for calls of a graph, called with operands for which it was not made: always an error, never a result.
#include <tower/compile.h>

#include <set>

#include "compile/kernels.h"
#include "kernels/gemm.h"
#include "support/prelude.h"

namespace {

namespace compiler = tower::compiler;
using compiler::Graph;

// What the calls of kernels in a graph are given.
struct Made {
  const compiler::KernelOperator* op;
  Tensors operands;
};
std::vector<Made> kernels_in(const Graph& graph) {
  std::vector<Made> all;
  for (const compiler::Call& call : graph.calls) {
    const auto* op = dynamic_cast<const compiler::KernelOperator*>(call.op);
    if (!op) continue;
    Made made{op, {}};
    for (const compiler::ValueId id : call.operands) {
      const compiler::Value& v = graph.values[id];
      made.operands.push_back(v.tensor.defined() ? v.tensor : waves(v.sizes).to(v.dtype));
    }
    all.push_back(std::move(made));
  }
  return all;
}

void call(const Made& made, const Tensors& operands) {
  std::vector<c10::IValue> stack{c10::IValue(operands)};
  made.op->call(stack);
}

// The same tensor but for its size, its rank or its dtype.
Tensors others(const Tensor& t) {
  Tensors all{t.unsqueeze(0), t.to(t.scalar_type() == at::kFloat ? at::kDouble : at::kFloat), Tensor()};
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) > 0) all.push_back(t.narrow(d, 0, t.size(d) - 1));
    all.push_back(at::cat({t, t}, d));
    if (t.size(d) > 1) all.push_back(t.narrow(d, 0, 1));
    all.push_back(t.narrow(d, 0, 0));
  }
  return all;
}

// Gives the names of what was tried.
std::set<std::string> expect_refusals(const Function& f, const Tensors& args) {
  compiler::Kernels kernels;
  const Graph graph = kernels::fused(f, args, kernels).graph;
  std::set<std::string> names;
  for (const Made& made : kernels_in(graph)) {
    names.insert(made.op->name());
    EXPECT_NO_THROW(call(made, made.operands));
    for (size_t k = 0; k < made.operands.size(); ++k)
      for (const Tensor& other : others(made.operands[k])) {
        Tensors operands = made.operands;
        operands[k] = other;
        EXPECT_TRUE(says(refusal<tower::UnsupportedError>([&] { call(made, operands); }),
                         {"compile: tower::", "was made for", "as operand", "and is given"}))
            << made.op->name() << " " << (other.defined() ? tower::describe(other) : "undefined");
      }
    Tensors fewer = made.operands;
    fewer.pop_back();
    EXPECT_TRUE(says(refusal<tower::UnsupportedError>([&] { call(made, fewer); }), {"operands, and is given"}));
  }
  return names;
}

using Names = std::set<std::string>;

TEST(KernelChecks, KernelsOverAllElements) {
  TOWER_NEEDS_LLVM();
  EXPECT_EQ(expect_refusals([](const Tensors& in) { return Tensors{(in[0] * in[1] + 1).sin()}; },
                            {waves({40, 3}), waves({3})}),
            Names{"tower::kernel"});
  EXPECT_EQ(expect_refusals([](const Tensors& in) { return Tensors{(in[0] * 2).sin().sum(0) * 1}; }, {waves({8, 64})}),
            Names{"tower::kernel"});
  EXPECT_EQ(expect_refusals([](const Tensors& in) { return Tensors{(in[0] * 2).softmax(-1) + 1}; }, {waves({8, 100})}),
            Names{"tower::kernel"});
}

TEST(KernelChecks, KernelsOfAnExampleALane) {
  TOWER_NEEDS_LLVM();
  const Function f =
      td::vmap([](const Tensors& in) { return Tensors{in[0].slice(0, 0, 2) * in[1].sum() + in[0].select(0, 2)}; },
               {0, std::nullopt}, {0});
  for (const int64_t n : {1, 2, 8, 37})
    EXPECT_EQ(expect_refusals(f, {waves({n, 3}), waves({4})}), Names{"tower::kernel"});
}

TEST(KernelChecks, ProductsAndSumsOfProducts) {
  TOWER_NEEDS_LLVM();
  EXPECT_EQ(expect_refusals([](const Tensors& in) { return Tensors{in[0].mm(in[1])}; }, {waves({5, 7}), waves({7, 6})}),
            Names{"tower::product"});
  EXPECT_EQ(expect_refusals([](const Tensors& in) { return Tensors{at::addmm(in[0], in[1], in[2])}; },
                            {waves({6}), waves({5, 7}), waves({7, 6})}),
            Names{"tower::product"});
  EXPECT_EQ(expect_refusals([](const Tensors& in) { return Tensors{(in[0].unsqueeze(2) * in[1].unsqueeze(1)).sum(0)}; },
                            {waves({64, 20}), waves({64, 30})}),
            Names{"tower::contraction"});
}

TEST(KernelChecks, TheErrorSaysWhatStandsThereAndWhatItIsGiven) {
  TOWER_NEEDS_LLVM();
  compiler::Kernels kernels;
  const Graph graph =
      kernels::fused([](const Tensors& in) { return Tensors{(in[0] * 2 + 1).sin()}; }, {waves({4})}, kernels).graph;
  const Made made = kernels_in(graph).at(0);
  EXPECT_TRUE(says(refusal<tower::UnsupportedError>([&] { call(made, {waves({3})}); }),
                   {"tower::kernel, which stands for aten::mul.Scalar, aten::add.Scalar, aten::sin, was made for",
                    "Double [4]", "operand 0", "Double [3]"}));
}

// Below operators: what a product of matrices would read or write past a tensor's end.
TEST(KernelChecks, ProductsOfMatricesStayInsideOfTheirTensors) {
  const Tensor a = waves({4, 5}), b = waves({5, 3}), c = at::empty({4, 3}, at::kDouble);
  const auto gemm = [](int64_t rows, int64_t columns, int64_t terms) {
    compiler::Gemm g;
    g.axes = {{rows, 5, 0, 0, 3}, {columns, 0, 1, 0, 1}};
    g.inner = {terms, 1, 3, 0, 0};
    return g;
  };
  EXPECT_NO_THROW(gemm(4, 3, 5).run(a, b, {}, c));
  EXPECT_TRUE(same(c, a.mm(b)));
  const auto refused = [&](const compiler::Gemm& g, const Tensor& s = {}) {
    return refusal<tower::UnsupportedError>([&] { g.run(a, b, s, c); });
  };
  EXPECT_TRUE(says(refused(gemm(5, 3, 5)), {"matrix product", "the left operand", "other sizes or strides"}));
  EXPECT_TRUE(says(refused(gemm(2, 3, 7)), {"the right operand"}));
  EXPECT_TRUE(says(refused(gemm(1, 14, 1)), {"the result"}));
  compiler::Gemm adds = gemm(4, 3, 5);
  adds.axes[0].s = 3;
  EXPECT_TRUE(says(refused(adds, waves({9})), {"what is added"}));
}

}  // namespace
