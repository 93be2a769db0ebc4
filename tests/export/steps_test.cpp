// What a C library and a call by pointers have besides kernels whose lanes are examples: rows of elements with what
// they come to, indices that are looked up, products of matrices, the way back through a loop, copies.
#include <gtest/gtest.h>
#include <tower/loops.h>
#include <tower/tower.h>

#include <array>
#include <vector>

#include "compile/kernels.h"
#include "export/c_library.h"
#include "support/prelude.h"

namespace {

using export_tests::CLibrary;
using export_tests::expect_same;
using export_tests::mapped_over_all;

// A function of a batch, called with 40 and 50 examples, and held against its library and its pointers.
void expect_exported_batch(const Function& f, const std::function<Tensors(int64_t)>& of,
                           std::initializer_list<int64_t> numbers = {1, 7, 64, 1000}) {
  const Function compiled = td::compile(f);
  for (const int64_t n : {40, 50}) compiled(of(n));
  const CLibrary library(compiled);
  for (const int64_t n : numbers) expect_same(library, compiled, n, of(n));
}

// NaN, infinities, zeros and denormals here and there.
Tensor with_special_numbers(const Tensor& t) {
  const Tensor numbers = kernels::special(t.scalar_type()), flat = t.clone().view({-1});
  for (int64_t k = 0; k < numbers.numel() && 37 * k + 5 < flat.numel(); ++k) flat[37 * k + 5] = numbers[k];
  return flat.view(t.sizes());
}

TEST(ExportedSteps, HaveRowsOfManyElementsWithWhatTheyComeTo) {
  TOWER_NEEDS_C();
  const Function f = mapped_over_all([](const Tensors& x) {
    const Tensor centred = x[0] - x[0].mean(), scaled = centred / (centred.square().mean() + 1e-5).sqrt();
    return Tensors{scaled * x[1] + 1, x[0].amax(), (x[0] * x[1]).sum()};
  });
  for (const auto dtype : {at::kDouble, at::kFloat})
    expect_exported_batch(f, [&](int64_t n) {
      return Tensors{waves({n, 200}).to(dtype), waves({n, 200}, 1).to(dtype)};
    });
  expect_exported_batch(f, [](int64_t n) {
    return Tensors{with_special_numbers(waves({n, 200})), with_special_numbers(waves({n, 200}, 1))};
  });
}

TEST(ExportedSteps, HaveRowsThatLieOtherwiseThanTheyAreRead) {
  TOWER_NEEDS_C();
  expect_exported_batch(
      [](const Tensors& x) {
        return td::vmap(
            [](const Tensors& in) {
              return Tensors{in[0] * in[1] + 1, in[0] / (in[0].abs().sum() + 1)};
            },
            {0, 1}, {0, 1})(x);
      },
      [](int64_t n) {
        return Tensors{waves({n, 150}), waves({150, n}, 1)};
      });
}

TEST(ExportedSteps, SayWhereAnIndexIsOutOfRange) {
  TOWER_NEEDS_C();
  const Tensor table = waves({500, 160});
  const Function compiled = td::compile(mapped_over_all(
      [=](const Tensors& x) { return Tensors{table.index_select(0, x[1].view({1})).view({160}) + x[0]}; }));
  const auto of = [](int64_t n, int64_t last) {
    const Tensor index = at::arange(n, at::kLong);
    if (n > 0) index[n - 1] = last;
    return Tensors{waves({n, 160}), index};
  };
  for (const int64_t n : {40, 50}) compiled(of(n, 0));
  const CLibrary library(compiled);
  const Tensors before = compiled(of(9, 3));
  Tensors results;
  EXPECT_EQ(library.call(9, of(9, 499), before, results), 0);
  for (const int64_t last : {500, -501}) EXPECT_EQ(library.call(9, of(9, last), before, results), 8) << last;
}

TEST(ExportedSteps, GoBackThroughALoopThatEndsByItself) {
  TOWER_NEEDS_C();
  const auto root = [](const Tensor& x) {
    return tower::while_loop([&](const Tensor& y) { return (y * y - x).abs() > 1e-12 * x; },
                             [&](const Tensor& y) { return (y + x / y) / 2; }, x + 1);
  };
  const Function compiled = td::compile(mapped_over_all(
      [=](const Tensors& x) { return Tensors{tower::grad([&](const Tensor& in) { return root(in); })(x[0])}; }));
  const auto of = [](int64_t n) { return Tensors{waves({n}).abs() * 100 + 0.01}; };
  for (const int64_t n : {40, 50}) compiled(of(n));
  const CLibrary library(compiled), small(compiled, {.loop_steps = 2});
  for (const int64_t n : {0, 1, 7, 64, 1000}) expect_same(library, compiled, n, of(n));
  // Of its memory there is no more than the workspace has.
  EXPECT_LT(small.work_bytes(64), library.work_bytes(64));
  Tensors results;
  EXPECT_EQ(small.call(64, of(64), compiled(of(64)), results), 16);
}

// The process takes some of these to LibTorch, which adds up in another order.
TEST(ExportedSteps, HaveProductsOfMatricesOfAnySize) {
  TOWER_NEEDS_C();
  for (const auto dtype : {at::kDouble, at::kFloat})
    for (const auto& [rows, terms, columns] :
         std::vector<std::array<int64_t, 3>>{{40, 40, 40}, {1, 700, 33}, {129, 300, 71}, {50, 1, 64}, {70, 65, 1}}) {
      const Tensor shared = waves({terms, columns}, 3).to(dtype);
      const Function f = [&](const Tensors& x) {
        return Tensors{x[0].mm(shared) * 2, at::addmm(x[1], x[0], shared.t().contiguous().t()), x[0].t().mm(x[1])};
      };
      const Tensors args = {waves({rows, terms}).to(dtype), waves({rows, columns}, 1).to(dtype)};
      const Function compiled = td::compile(f);
      const Tensors expected = compiled(args);
      const CLibrary library(compiled);
      Tensors results;
      ASSERT_EQ(library.call(1, args, expected, results), 0);
      for (size_t k = 0; k < expected.size(); ++k) {
        const double near = (dtype == at::kFloat ? 1e-6 : 1e-15) * static_cast<double>(k == 2 ? rows : terms);
        EXPECT_TRUE(at::allclose(results[k], expected[k], near, near))
            << rows << " " << terms << " " << columns << " " << k;
      }
    }
}

TEST(ExportedSteps, CopyViewsWithGaps) {
  TOWER_NEEDS_C();
  expect_exported_batch(mapped_over_all([](const Tensors& x) {
                          const Tensor y = x[0] * 2 + 1;
                          return Tensors{y.diagonal(), y.slice(1, 0, 12, 5), y.t()};
                        }),
                        [](int64_t n) {
                          return Tensors{waves({n, 12, 12})};
                        });
}

}  // namespace
