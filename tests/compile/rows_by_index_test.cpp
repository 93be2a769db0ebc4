// Rows that are read, or added, where an index points, as loops over memory: bit by bit what LibTorch's operators give
// for one example after the other.
#include "fuse/rows_by_index.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <tower/compile.h>
#include <tower/tower.h>

#include "compile/kernels.h"
#include "graph/plan.h"
#include "kernels/llvm.h"

namespace {

namespace td = tower::dynamic;
using at::Tensor;
using td::Function;
using td::Tensors;

Tensor randoms(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::isIntegralType(dtype, /*includeBool=*/true) ? at::randint(0, 100, sizes, at::kLong).to(dtype)
         : at::isComplexType(dtype)                      ? at::randn(sizes, at::kComplexDouble).to(dtype)
                                                         : at::randn(sizes, at::kDouble).mul(100).to(dtype);
}

size_t calls_of_rows(const tower::compiler::FusedGraph& fused) {
  size_t n = 0;
  for (const auto& call : fused.graph.calls)
    n += dynamic_cast<const tower::compiler::RowsByIndex*>(call.op) != nullptr ? 1 : 0;
  return n;
}

/// `f` of each example: what vmap of it should give, without a batch anywhere.
Tensor one_by_one(const Function& f, const td::Dims& dims, const Tensors& args, int64_t examples) {
  Tensors results;
  for (int64_t n = 0; n < examples; ++n) {
    Tensors example;
    for (size_t k = 0; k < args.size(); ++k) example.push_back(dims[k] ? args[k].select(*dims[k], n) : args[k]);
    results.push_back(f(example)[0]);
  }
  return at::stack(results);
}

void expect_rows(const Function& f, const td::Dims& dims, const Tensors& args, int64_t examples,
                 const std::string& what) {
  SCOPED_TRACE(what);
  const Function mapped = td::vmap(f, dims, {0});
  auto fused = kernels::fused(mapped, args);
  EXPECT_EQ(calls_of_rows(fused), 1u);
  const Tensor found = tower::compiler::Plan(std::move(fused.graph)).run(args)[0];
  EXPECT_EQ(found.strides(), mapped(args)[0].strides());
  EXPECT_EQ(kernels::bit_difference(found, one_by_one(f, dims, args, examples), {}), "");
}

constexpr int64_t kExamples = 5;

TEST(RowsByIndex, AreReadAsLibTorchReadsThem) {
  TOWER_NEEDS_LLVM();
  const at::ScalarType dtypes[] = {at::kBool, at::kHalf, at::kInt, at::kFloat, at::kDouble, at::kComplexDouble};
  for (const at::ScalarType dtype : dtypes)
    for (const at::ScalarType of_index : {at::kLong, at::kInt}) {
      const Tensor table = randoms({kExamples, 7, 3, 19}, dtype), one = table[0];
      const Tensor index = at::randint(0, 7, {kExamples, 11}, at::kLong).to(of_index);
      const std::string types = std::string(toString(dtype)) + " by " + toString(of_index);
      const Function rows = [](const Tensors& in) { return Tensors{in[0].index_select(0, in[1])}; };
      expect_rows(rows, {0, std::nullopt}, {table, index[0]}, kExamples, types);
      expect_rows(rows, {std::nullopt, 0}, {one, index}, kExamples, "an index of each example's own, " + types);
      expect_rows(rows, {0, 0}, {table, index}, kExamples, "both, " + types);
      expect_rows(rows, {2, 1}, {table.movedim(0, 2), index.t().contiguous()}, kExamples, "mapped inside, " + types);
      const Function between = [](const Tensors& in) { return Tensors{in[0].index_select(-2, in[1])}; };
      expect_rows(between, {0, std::nullopt}, {table, index[1].remainder(3).to(of_index)}, kExamples, types);
    }
}

TEST(RowsByIndex, AreReadByOtherOperatorsThatLookUp) {
  TOWER_NEEDS_LLVM();
  const Tensor table = at::randn({7, 19}), index = at::randint(0, 7, {kExamples, 4, 3}, at::kLong);
  expect_rows([](const Tensors& in) { return Tensors{at::embedding(in[0], in[1])}; }, {std::nullopt, 0}, {table, index},
              kExamples, "embedding");
  expect_rows([](const Tensors& in) { return Tensors{at::index(in[0], c10::List<std::optional<Tensor>>({in[1]}))}; },
              {std::nullopt, 0}, {table, index - 7}, kExamples, "index from the end");
}

TEST(RowsByIndex, AreAddedInTheOrderOfTheIndex) {
  TOWER_NEEDS_LLVM();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    // So many meet in one row that another order gives other bits.
    const Tensor self = randoms({kExamples, 4, 3, 19}, dtype), source = randoms({kExamples, 4, 50, 19}, dtype),
                 index = at::randint(0, 3, {kExamples, 50}, at::kLong);
    const Function add = [](const Tensors& in) { return Tensors{in[0].index_add(1, in[1], in[2])}; };
    const std::string type = toString(dtype);
    expect_rows(add, {0, std::nullopt, 0}, {self, index[0], source}, kExamples, type);
    expect_rows(add, {std::nullopt, std::nullopt, 0}, {self[0], index[0], source}, kExamples, "to the same, " + type);
    expect_rows(add, {0, std::nullopt, std::nullopt}, {self, index[0], source[0]}, kExamples, "the same, " + type);
    expect_rows(add, {0, 0, 0}, {self, index, source}, kExamples, "an index of each example's own, " + type);
    expect_rows(add, {2, 1, 1}, {self.movedim(0, 2), index.t().contiguous(), source.movedim(0, 1)}, kExamples,
                "mapped inside, " + type);
  }
}

TEST(RowsByIndex, UnderTwoVmapsAreThoseOfEach) {
  TOWER_NEEDS_LLVM();
  const Tensor table = at::randn({3, kExamples, 7, 19}), index = at::randint(0, 7, {kExamples, 11}, at::kLong);
  const Function there_and_back = [](const Tensors& in) {
    return Tensors{in[0].index_add(0, in[1], in[0].index_select(0, in[1]))};
  };
  const Function inner = td::vmap(there_and_back, {0, 0}, {0});
  const Function outer = td::vmap(inner, {0, std::nullopt}, {0});
  auto fused = kernels::fused(outer, {table, index});
  EXPECT_EQ(calls_of_rows(fused), 2u);
  const Tensor found = tower::compiler::Plan(std::move(fused.graph)).run({table, index})[0];
  for (int64_t n = 0; n < 3; ++n)
    EXPECT_EQ(kernels::bit_difference(found[n], one_by_one(there_and_back, {0, 0}, {table[n], index}, kExamples), {}),
              "");
}

TEST(RowsByIndex, OfTensorsThatLieOtherwiseThanTraced) {
  TOWER_NEEDS_LLVM();
  const Function read = [](const Tensors& in) { return Tensors{in[0].index_select(1, in[1])}; };
  const Function add = [](const Tensors& in) { return Tensors{in[0].index_add(1, in[1], in[2])}; };
  const Tensor table = at::randn({5, 7, 19}), index = at::randint(0, 7, {11}, at::kLong),
               terms = at::randn({5, 11, 19});
  const Tensor table_across = table.transpose(1, 2).contiguous().transpose(1, 2),
               terms_across = at::stack({terms, terms}, 3).select(3, 1), every_second = at::stack({index, index}, 1);
  auto reads = kernels::fused(read, {table, index}), adds = kernels::fused(add, {table, index, terms});
  ASSERT_EQ(calls_of_rows(reads) + calls_of_rows(adds), 2u);
  const Tensor found = tower::compiler::Plan(std::move(reads.graph)).run({table_across, every_second.select(1, 0)})[0];
  EXPECT_EQ(kernels::bit_difference(found, read({table, index})[0], {}), "");
  const Tensor sum =
      tower::compiler::Plan(std::move(adds.graph)).run({table_across, every_second.select(1, 0), terms_across})[0];
  EXPECT_EQ(kernels::bit_difference(sum, add({table, index, terms})[0], {}), "");
}

TEST(RowsByIndex, OfManyRowsAreSharedByThreads) {
  TOWER_NEEDS_LLVM();
  const int threads = at::get_num_threads();
  at::set_num_threads(4);
  const Tensor table = at::randn({64, 10, 67}), index = at::randint(0, 10, {331}, at::kLong),
               terms = at::randn({64, 331, 67}), flat = at::randn({9001, 33});
  expect_rows([](const Tensors& in) { return Tensors{in[0].index_select(0, in[1])}; }, {0, std::nullopt},
              {table, index}, 64, "read");
  expect_rows([](const Tensors& in) { return Tensors{in[0].index_add(0, in[1], in[2])}; }, {0, std::nullopt, 0},
              {table, index, terms}, 64, "added");
  // Without examples, all could be added to one row.
  const Function add = [](const Tensors& in) { return Tensors{in[0].index_add(0, in[1], in[2])}; };
  const Tensors args{at::zeros({10, 33}), at::randint(0, 10, {9001}, at::kLong), flat};
  auto fused = kernels::fused(add, args);
  EXPECT_EQ(calls_of_rows(fused), 1u);
  EXPECT_EQ(kernels::bit_difference(tower::compiler::Plan(std::move(fused.graph)).run(args)[0], add(args)[0], {}), "");
  at::set_num_threads(threads);
}

TEST(RowsByIndex, ThatAreNotThereAreLibTorchsError) {
  TOWER_NEEDS_LLVM();
  const auto read = tower::compile(tower::vmap([](const Tensor& t, const Tensor& i) { return t.index_select(0, i); },
                                               {.in_dims = {0, std::nullopt}}));
  const auto add =
      tower::compile(tower::vmap([](const Tensor& t, const Tensor& i, const Tensor& x) { return t.index_add(0, i, x); },
                                 {.in_dims = {0, std::nullopt, 0}}));
  const Tensor table = at::randn({3, 7, 19}), terms = at::randn({3, 2, 19});
  for (int call = 0; call < 2; ++call) {
    read(table, at::tensor({1, 2}));
    add(table, at::tensor({1, 2}), terms);
  }
  EXPECT_NE(read.report().find("by an index, as loops: 1"), std::string::npos) << read.report();
  for (const int64_t wrong : {7, -1}) {
    EXPECT_THROW(read(table, at::tensor({int64_t{1}, wrong})), c10::Error);
    EXPECT_THROW(add(table, at::tensor({int64_t{1}, wrong}), terms), c10::Error);
  }
}

TEST(RowsByIndex, ThatAreScaledOrHaveOneElementAreLibTorchs) {
  TOWER_NEEDS_LLVM();
  const Function scaled = [](const Tensors& in) { return Tensors{in[0].index_add(0, in[1], in[2], 2)}; };
  const Tensor index = at::tensor({1, 0, 1});
  EXPECT_EQ(calls_of_rows(kernels::fused(scaled, {at::randn({2, 500}), index, at::randn({3, 500})})), 0u);
  const Function columns = [](const Tensors& in) { return Tensors{in[0].index_add(1, in[1], in[2])}; };
  EXPECT_EQ(calls_of_rows(kernels::fused(columns, {at::randn({500, 2}), index, at::randn({500, 3})})), 0u);
}

}  // namespace
