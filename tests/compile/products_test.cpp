// Matrix products in plans: of tensors as they lie, mapped over anything, beside LibTorch's.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/dynamic.h>
#include <tower/errors.h>
#include <tower/taylor.h>
#include <tower/tower.h>

#include <algorithm>
#include <string>
#include <vector>

#include "compile/kernels.h"
#include "fuse/fuse.h"
#include "fuse/matrix_products.h"
#include "graph/plan.h"
#include "graph/trace.h"
#include "kernels/gemm.h"
#include "kernels/gemm_tiles.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using td::Function;
using td::Tensors;

Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::randn(sizes, at::kDouble).to(dtype);
}

// Against the same in float64, with the error that sums of so many terms may have.
void expect_close(const Tensor& actual, const Tensor& exact, int64_t terms, const std::string& what) {
  ASSERT_EQ(actual.sizes(), exact.sizes()) << what;
  if (actual.numel() == 0) return;
  const double unit = actual.scalar_type() == at::kFloat ? 6e-8 : 1.2e-16;
  const double apart = (actual.to(at::kDouble) - exact).abs().max().item<double>();
  EXPECT_LE(apart, unit * static_cast<double>(terms + 2) * 16) << what;
}

// ---- in memory ----

template <class T>
void multiply(int64_t rows, int64_t columns, int64_t terms, bool adds, const Tensor& a, const Tensor& b,
              const Tensor& s, const Tensor& c) {
  const compiler::Matrices<T> m{a.const_data_ptr<T>(),
                                b.const_data_ptr<T>(),
                                adds ? s.const_data_ptr<T>() : nullptr,
                                c.mutable_data_ptr<T>(),
                                {rows, a.stride(0), 0, s.stride(0), c.stride(0)},
                                {columns, 0, b.stride(1), s.stride(1), c.stride(1)},
                                {terms, a.stride(1), b.stride(0), 0, 0}};
  m.multiply();
}

TEST(Products, OfSmallMatricesAreThoseOfLibTorchHoweverTheyLie) {
  const auto laid_out = [](const Tensor& t, int how) {
    if (how == 0) return t;
    if (how == 1) return t.t().contiguous().t();
    return at::stack({t, t}, 2).select(2, 1);  // no two elements are neighbours
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const int64_t rows : {1, 3, 4, 5, 8, 11, 13})
      for (const int64_t columns : {1, 2, 7, 8, 9, 17, 24, 25, 64, 65})
        for (const int64_t terms : {0, 1, 5, 256, 300})
          for (int how = 0; how < 3; ++how) {
            const Tensor a = laid_out(numbers({rows, terms}, dtype), how),
                         b = laid_out(numbers({terms, columns}, dtype), (how + 1) % 3),
                         s = laid_out(numbers({rows, columns}, dtype), (how + 2) % 3),
                         c = laid_out(at::full({rows, columns}, 77, dtype), how);
            const Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
            const std::string what = std::to_string(rows) + " " + std::to_string(columns) + " " +
                                     std::to_string(terms) + " " + std::to_string(how);
            for (const bool adds : {false, true}) {
              if (dtype == at::kFloat) multiply<float>(rows, columns, terms, adds, a, b, s, c);
              else multiply<double>(rows, columns, terms, adds, a, b, s, c);
              expect_close(c, adds ? exact + s.to(at::kDouble) : exact, terms, what);
            }
          }
}

// Columns that are read where they are, also where their rows are pages apart, and rows in blocks.
TEST(Products, OfFewRowsAndOfManyAreThoseOfLibTorch) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const int64_t rows : {2, 7, 15, 16, 17, 300})
      for (const int64_t columns : {47, 48, 96, 1024})
        for (const int64_t terms : {3, 256, 300})
          for (const bool transposed : {false, true}) {
            const Tensor a = numbers({rows, terms}, dtype),
                         b = transposed ? numbers({columns, terms}, dtype).t() : numbers({terms, columns}, dtype),
                         c = at::full({rows, columns}, 77, dtype);
            compiler::Gemm gemm;
            gemm.axes = {{rows, terms, 0, 0, columns}, {columns, 0, b.stride(1), 0, 1}};
            gemm.inner = {terms, 1, b.stride(0), 0, 0};
            gemm.run(a, b, Tensor(), c);
            expect_close(c, a.to(at::kDouble).mm(b.to(at::kDouble)), terms,
                         std::to_string(rows) + " " + std::to_string(columns) + " " + std::to_string(terms));
          }
}

TEST(Products, NanAndInfinityInOneRowStayThere) {
  Tensor a = at::ones({9, 20}), b = at::ones({20, 11}), c = at::empty({9, 11});
  a[3][5] = NAN;
  a[7][0] = INFINITY;
  multiply<float>(9, 11, 20, false, a, b, c, c);
  EXPECT_TRUE(c[3].isnan().all().item<bool>());
  EXPECT_TRUE(c[7].isinf().all().item<bool>());
  EXPECT_TRUE(c.slice(0, 0, 3).eq(20).all().item<bool>());
}

// Products by one matrix, of rows in any number, with and without S, however the matrix lies, and as left operand.
TEST(Products, WithOneMatrixAreEachThatOfLibTorch) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const int64_t columns : {33, 48, 300})
      for (const int64_t terms : {0, 3, 256, 300})
        for (const bool transposed : {false, true})
          for (const int64_t fewest : {0, 1, 100}) {
            const Tensor b = transposed ? numbers({columns, terms}, dtype).t() : numbers({terms, columns}, dtype);
            std::vector<compiler::GemmCall> calls;
            Tensors kept, results, exact;
            for (const int64_t rows : {fewest, fewest + 1, fewest + 200}) {
              const Tensor a = numbers({rows, terms}, dtype), s = numbers({rows, columns}, dtype),
                           c = at::full({rows, columns}, 77, dtype);
              const bool adds = calls.size() == 1, is_left = calls.size() == 2;
              compiler::GemmCall call;
              if (is_left) {
                call.gemm.axes = {{rows, 0, terms, 0, columns}, {columns, b.stride(1), 0, 0, 1}};
                call.gemm.inner = {terms, b.stride(0), 1, 0, 0};
              } else {
                call.gemm.axes = {{rows, terms, 0, adds ? columns : 0, columns},
                                  {columns, 0, b.stride(1), adds ? int64_t{1} : 0, 1}};
                call.gemm.inner = {terms, 1, b.stride(0), 0, 0};
              }
              call.a = compiler::GemmMemory(is_left ? b : a);
              call.b = compiler::GemmMemory(is_left ? a : b);
              if (adds) call.s = compiler::GemmMemory(s);
              call.c = compiler::GemmMemory(c);
              calls.push_back(call);
              kept.insert(kept.end(), {a, s});
              results.push_back(c);
              exact.push_back(a.to(at::kDouble).mm(b.to(at::kDouble)));
              if (adds) exact.back() += s.to(at::kDouble);
            }
            compiler::run_with_one_right(dtype, calls);
            for (size_t k = 0; k < results.size(); ++k)
              expect_close(results[k], exact[k], terms,
                           std::to_string(columns) + " " + std::to_string(terms) + " " + std::to_string(fewest));
          }
}

TEST(Products, WithOneMatrixEndWhereMemoryEnds) {
  const Tensor a = numbers({40, 64}), b = numbers({64, 64}), c = at::empty({40, 64});
  compiler::GemmCall call;
  call.gemm.axes = {{40, 64, 0, 0, 64}, {64, 0, 64, 0, 1}};
  call.gemm.inner = {64, 1, 1, 0, 0};
  call.a = compiler::GemmMemory(a), call.b = compiler::GemmMemory(b), call.c = compiler::GemmMemory(c);
  std::vector<compiler::GemmCall> calls(2, call);
  calls[1].gemm.axes[0].size = 41;
  EXPECT_THROW(compiler::run_with_one_right(at::kFloat, calls), tower::UnsupportedError);
}

// ---- in graphs ----

// Each call of the graph that is a product becomes one; as many as that, and the results are those of LibTorch.
void expect_products(const Function& f, const Tensors& args, size_t products, int64_t terms, const std::string& what) {
  compiler::Graph graph = compiler::trace(f, args, "test").graph;
  graph.simplify();
  size_t found = 0;
  for (compiler::Call& call : graph.calls)
    if (auto product = compiler::product_of_matrices(graph, call)) {
      call = std::move(*product);
      ++found;
    }
  EXPECT_EQ(found, products) << what;
  Tensors exact_args;
  for (const Tensor& t : args) exact_args.push_back(t.to(at::kDouble));
  const Tensors expected = f(args), exact = f(exact_args), actual = compiler::Plan(std::move(graph)).run(args);
  for (size_t k = 0; k < expected.size(); ++k) {
    EXPECT_EQ(actual[k].scalar_type(), expected[k].scalar_type()) << what;
    EXPECT_EQ(actual[k].strides(), expected[k].strides()) << what;
    expect_close(actual[k], exact[k], terms, what);
  }
}

TEST(Products, OfGraphsAreThoseOfLibTorchForAnyNumberOfExamples) {
  const auto one = [](auto op) { return Function([op](const Tensors& in) { return Tensors{op(in)}; }); };
  const Function mm = one([](const Tensors&in) { return at::mm(in[0], in[1]); }),
                 mv = one([](const Tensors&in) { return at::mv(in[0], in[1]); }),
                 bmm = one([](const Tensors&in) { return at::bmm(in[0], in[1]); }),
                 addmm = one([](const Tensors&in) { return at::addmm(in[2], in[0], in[1]); }),
                 addmv = one([](const Tensors&in) { return at::addmv(in[2], in[0], in[1]); }),
                 baddbmm = one([](const Tensors&in) { return at::baddbmm(in[2], in[0], in[1]); });
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const int64_t n : {0, 1, 7, 64, 65}) {
      const std::string what = std::to_string(n) + " " + at::toString(dtype);
      const auto t = [&](at::IntArrayRef sizes) { return numbers(sizes, dtype); };
      expect_products(mm, {t({n, 5}), t({5, 9})}, 1, 5, what);
      expect_products(mm, {t({5, n}).t(), t({9, 5}).t()}, 1, 5, what);
      expect_products(mm, {t({6, n}), t({n, 9})}, 1, n, what);
      expect_products(addmm, {t({n, 5}), t({5, 9}), t({9})}, 1, 5, what);
      expect_products(addmm, {t({n, 5}), t({5, 9}), t({n, 1})}, 1, 5, what);
      expect_products(addmv, {t({6, n}), t({n}), t({6})}, 1, n, what);
      expect_products(bmm, {t({n, 6, 5}), t({n, 5, 9})}, 1, 5, what);
      expect_products(baddbmm, {t({n, 6, 5}), t({n, 5, 9}), t({6, 1})}, 1, 5, what);
      const auto mapped = [&](const Function& f, const td::Dims& in, const Tensors& args, int64_t terms) {
        expect_products(td::vmap(f, in, {0}), args, 1, terms, what);
      };
      mapped(mm, {0, std::nullopt}, {t({n, 6, 5}), t({5, 9})}, 5);
      mapped(mm, {std::nullopt, 0}, {t({6, 5}), t({n, 5, 9})}, 5);
      mapped(mm, {1, 2}, {t({6, n, 5}), t({5, 9, n})}, 5);
      mapped(mv, {std::nullopt, 0}, {t({9, 2}), t({n, 2})}, 2);
      mapped(mv, {0, std::nullopt}, {t({n, 9, 5}), t({5})}, 5);
      mapped(addmv, {std::nullopt, 1, std::nullopt}, {t({9, 5}), t({5, n}), t({9})}, 5);
      mapped(addmm, {0, std::nullopt, 0}, {t({n, 6, 5}), t({5, 9}), t({n, 9})}, 5);
      mapped(addmm, {std::nullopt, 0, std::nullopt}, {t({6, 5}), t({n, 5, 9}), t({6, 1})}, 5);
      mapped(bmm, {0, 0}, {t({n, 3, 6, 5}), t({n, 3, 5, 9})}, 5);
      // Rows and terms in several blocks, and columns that lie apart.
      if (n > 0) mapped(mm, {std::nullopt, 0}, {t({250, 300}), t({n, 300, 3})}, 300);
      mapped(addmm, {std::nullopt, 0, 0}, {t({70, 300}), t({n, 300, 3}), t({n, 70, 1})}, 300);
      mapped(addmm, {std::nullopt, 1, std::nullopt}, {t({40, 30}), t({30, n, 11}), t({11})}, 30);
      if (n > 0) mapped(mm, {0, std::nullopt}, {t({n, 3, 300}), t({300, 250})}, 300);
      // Two vmaps, one over each.
      const Function two = td::vmap(td::vmap(mm, {0, std::nullopt}, {0}), {std::nullopt, 0}, {0});
      expect_products(two, {t({n, 6, 5}), t({3, 5, 9})}, 1, 5, what);
    }
}

TEST(Products, OfLargeMatricesAreLeftToLibTorch) {
  const Function mm = [](const Tensors& in) { return Tensors{at::mm(in[0], in[1])}; };
  expect_products(mm, {numbers({300, 300}), numbers({300, 310})}, 1, 300, "matrices");
  expect_products(mm, {numbers({1, 5000}), numbers({5000, 3})}, 1, 5000, "a row");
  const Function mapped =
      td::vmap([](const Tensors& in) { return Tensors{at::addmm(in[2], in[0], in[1])}; }, {0, 0, std::nullopt}, {0});
  expect_products(mapped, {numbers({3, 300, 300}), numbers({3, 300, 310}), numbers({310})}, 1, 300, "three");
}

TEST(Products, AreTheSameOnSeveralThreads) {
  const int threads = at::get_num_threads();
  const Tensor x = numbers({5000, 20}), w = numbers({20, 9}), many = numbers({700, 20, 9});
  const auto run = [&](const Tensor& b, int n) {
    at::set_num_threads(n);
    const Tensor c = at::empty(b.dim() == 2 ? std::vector<int64_t>{5000, 9} : std::vector<int64_t>{700, 50, 9});
    compiler::Gemm gemm;
    if (b.dim() == 2) gemm.axes = {{5000, 20, 0, 0, 9}, {9, 0, 1, 0, 1}};
    else gemm.axes = {{700, 0, 180, 0, 450}, {50, 20, 0, 0, 9}, {9, 0, 1, 0, 1}};
    gemm.inner = {20, 1, 9, 0, 0};
    gemm.run(x, b, {}, c);
    at::set_num_threads(threads);
    return c;
  };
  EXPECT_TRUE(run(w, 1).equal(run(w, 3)));
  EXPECT_TRUE(run(many, 1).equal(run(many, 3)));
}

TEST(Products, ThatAreScaledOrOfOtherTypesAreLeftAlone) {
  const Function scaled = [](const Tensors& in) { return Tensors{at::addmm(in[2], in[0], in[1], 0, 2)}; };
  expect_products(scaled, {numbers({6, 5}), numbers({5, 9}), numbers({9})}, 0, 10, "scaled");
  const Function mm = [](const Tensors& in) { return Tensors{at::mm(in[0], in[1])}; };
  expect_products(mm, {at::ones({6, 5}, at::kLong), at::ones({5, 9}, at::kLong)}, 0, 5, "integers");
}

// ---- by one matrix ----

// The graph has so many products, and gives what the function gives.
void expect_joined(const Function& f, const Tensors& args, size_t products) {
  compiler::Kernels made;
  const compiler::FusedGraph fused = compiler::fuse(kernels::graph_of(f, args), made);
  EXPECT_EQ(fused.report().products, products) << fused.report().lines;
  Tensors exact_args;
  for (const Tensor& t : args) exact_args.push_back(t.to(at::kDouble));
  const Tensors exact = f(exact_args), actual = compiler::Plan(fused.graph).run(args);
  for (size_t k = 0; k < exact.size(); ++k) expect_close(actual[k], exact[k], 1000, std::to_string(k));
}

TEST(ProductsOfOne, AreOneCallWhereNoneWaitsForAnother) {
  TOWER_NEEDS_LLVM();
  const Tensors args{numbers({3, 200}), numbers({150, 200}), numbers({200, 200}) * 0.07};
  expect_joined([](const Tensors& in) { return Tensors{in[0].mm(in[2]), in[1].mm(in[2])}; }, args, 1);
  expect_joined([](const Tensors& in) { return Tensors{in[0].mm(in[2]).mm(in[2]), in[1].mm(in[2])}; }, args, 2);
  // Small matrices stay in the cache.
  const Tensors small{numbers({3, 20}), numbers({150, 20}), numbers({20, 20})};
  expect_joined([](const Tensors& in) { return Tensors{in[0].mm(in[2]), in[1].mm(in[2])}; }, small, 2);
}

// By way of the other matrix' products each pair would wait for the other one.
TEST(ProductsOfOne, AreNotJoinedWhereGroupsWouldWaitForEachOther) {
  TOWER_NEEDS_LLVM();
  const Tensors args{numbers({30, 200}), numbers({40, 200}), numbers({200, 200}) * 0.07, numbers({200, 200}) * 0.07};
  const Function crossed = [](const Tensors& in) {
    return Tensors{in[0].mm(in[2]).mm(in[3]), in[1].mm(in[3]).mm(in[2])};
  };
  expect_joined(crossed, args, 3);
}

TEST(ProductsOfOne, AreThoseOfValueTangentsAndLaplacian) {
  TOWER_NEEDS_LLVM();
  const Tensor v = numbers({6, 150}), w = numbers({150, 150}) * 0.08, x = numbers({5, 6});
  const Function laplacian = td::vmap(
      [](const Tensors& in) {
        const auto f = [&](const Tensor& p) {
          return at::matmul(at::tanh(at::matmul(at::tanh(at::matmul(p, in[1])), in[2])), in[2]).sum();
        };
        return Tensors{tower::laplacian(f)(in[0]).second};
      },
      {0, std::nullopt, std::nullopt}, {0});
  compiler::Kernels made;
  const compiler::Graph graph = kernels::graph_of(laplacian, {x, v, w});
  const compiler::FusedGraph fused = compiler::fuse(graph, made);
  size_t with_w = 0;
  for (const compiler::Call& call : fused.graph.calls)
    with_w += std::count_if(call.operands.begin(), call.operands.end(),
                            [&](compiler::ValueId id) { return id == fused.graph.arguments[2]; }) > 0;
  EXPECT_EQ(with_w, 2u) << fused.report().lines;  // one for each layer
  const Tensor f64 = laplacian({x.to(at::kDouble), v.to(at::kDouble), w.to(at::kDouble)})[0];
  expect_close(compiler::Plan(fused.graph).run({x, v, w})[0], f64, 1000, "Laplacian");
}

}  // namespace
