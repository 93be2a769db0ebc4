// Systems of equations and factorizations of any size in C libraries and by pointers, beside LibTorch's; and what puts
// elements of large tensors, and zeros, in place.
#include <gtest/gtest.h>
#include <tower/tower.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "compile/kernels.h"
#include "compile/specialisations.h"
#include "export/c_library.h"
#include "support/prelude.h"
#include "support/seeds.h"

namespace {

using export_tests::CLibrary;
using export_tests::mapped_over_all;

// Rows in reversed order, so that each is exchanged.
Tensor matrices(int64_t n, int64_t rows, at::ScalarType dtype = at::kDouble) {
  return (waves({n, rows, rows}) + 2 * at::eye(rows, at::kDouble) + 0.1 * waves({n, rows, rows}, 2).sin().mT())
      .flip(-2)
      .to(dtype);
}

// What the compiled function gives by pointers.
Tensors by_pointers(const Function& compiled, int64_t n, const Tensors& args, const Tensors& like) {
  const auto program = tower::compiler::specialisations_of(compiled, "test").by_pointers("native");
  Tensors results;
  std::vector<const void*> x;
  std::vector<void*> y;
  for (const Tensor& t : args) x.push_back(t.const_data_ptr());
  for (const Tensor& t : like) {
    results.push_back(at::full_like(t, 7));
    y.push_back(results.back().mutable_data_ptr());
  }
  program->run(n, x.data(), y.data());
  return results;
}

void expect_near(const Tensors& results, const Tensors& plain, double near) {
  ASSERT_EQ(results.size(), plain.size());
  for (size_t k = 0; k < plain.size(); ++k) {
    const Tensor error = (results[k] - plain[k]).abs().max(), size = plain[k].abs().max();
    EXPECT_LE(error.item<double>(), near * size.item<double>()) << "result " << k;
  }
}

// `f` of one example, by pointers, beside LibTorch operator by operator; beside its largest element.
void expect_of_one(const Function& f, const Tensors& args, double near) {
  const Function compiled = td::compile(f);
  compiled(args);
  const Tensors plain = f(args);
  expect_near(by_pointers(compiled, 1, args, plain), plain, near);
}

// The largest residual of a X = b beside what it is rounded from.
double backward_error(const Tensor& a, const Tensor& x, const Tensor& b) {
  return ((a.mm(x) - b).abs() / (a.abs().mm(x.abs()) + b.abs())).max().item<double>();
}

TEST(SystemsOfAnySize, AreSolvedAsAccuratelyAsByLapack) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& x) { return Tensors{at::linalg_solve(x[0], x[1])}; };
  for (const int64_t rows : {65, 100, 300}) {
    SCOPED_TRACE(rows);
    at::manual_seed(rows);
    const Tensors args = {at::randn({rows, rows}, at::kDouble), at::randn({rows, 5}, at::kDouble)};
    const Function compiled = td::compile(f);
    compiled(args);
    const Tensor plain = f(args)[0], found = by_pointers(compiled, 1, args, {plain})[0];
    EXPECT_LE(backward_error(args[0], found, args[1]), 2 * backward_error(args[0], plain, args[1]));
  }
}

TEST(SystemsOfAnySize, HaveAllFormsOfFactorsAndSides) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& x) {
    const Tensor &a = x[0], &b = x[1], rows = x[1].t(), l = at::linalg_cholesky(a.mm(a.t()));
    const auto [lu, exchanges] = at::linalg_lu_factor(a);
    const auto [p, lower, upper] = at::linalg_lu(a.narrow(1, 0, 40));
    const auto [p_again, lower_again, upper_again] = at::lu_unpack(lu, exchanges);
    const auto [sign, size] = at::linalg_slogdet(a);
    return Tensors{at::linalg_solve(a, b.select(1, 0)),
                   at::linalg_solve(a.t(), b),
                   at::linalg_solve(a, rows, false),
                   at::linalg_inv(a),
                   l,
                   at::linalg_cholesky(a.mm(a.t()), true),
                   at::cholesky_solve(b, l),
                   at::cholesky_solve(b, l.t(), true),
                   at::cholesky_inverse(l),
                   at::linalg_solve_triangular(l, b, false),
                   at::linalg_solve_triangular(l.t(), b, true),
                   at::linalg_solve_triangular(l, rows, false, false),
                   at::linalg_solve_triangular(l.t(), rows, true, false),
                   at::linalg_solve_triangular(lower_again, b, false, true, true),
                   lu,
                   exchanges.to(at::kDouble),
                   at::linalg_lu_solve(lu, exchanges, b),
                   at::linalg_lu_solve(lu, exchanges, b, true, true),
                   at::linalg_lu_solve(lu, exchanges, rows, false),
                   at::linalg_lu_solve(lu, exchanges, rows, false, true),
                   p,
                   lower,
                   upper,
                   p_again,
                   lower_again,
                   upper_again,
                   sign,
                   size,
                   at::linalg_det(a * 0.5)};
  };
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const Tensors args = {matrices(1, 67, dtype)[0], waves({67, 3}).to(dtype)};
    expect_of_one(f, args, dtype == at::kDouble ? 1e-10 : 1e-1);
  }
}

TEST(SystemsOfAnySize, TakeTheFirstOfTheLargestPivotsAsLapackDoes) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& x) {
    const auto [lu, exchanges, info] = at::linalg_lu_factor_ex(x[0]);
    return Tensors{exchanges * 1, info * 1};
  };
  // All elements are of one size, and what is left of them powers of two or zeros; the last columns are zeros.
  Tensor ties = at::ones({1, 1}, at::kDouble);
  const Tensor sign = at::tensor({1.0, 1.0, 1.0, -1.0}).to(at::kDouble).view({2, 2});
  while (ties.size(0) < 128) ties = at::kron(ties, sign);
  ties = ties.roll(5, 0).flip(1).contiguous();
  ties.narrow(1, 100, 28).zero_();
  for (const auto dtype : {at::kDouble, at::kFloat})
    for (const Tensor& a : {ties.to(dtype), ties.t().contiguous().to(dtype), matrices(1, 129, dtype)[0]}) {
      const Function compiled = td::compile(f);
      compiled({a});
      const Tensors plain = f({a}), found = by_pointers(compiled, 1, {a}, plain);
      for (size_t k = 0; k < 2; ++k) EXPECT_TRUE(at::equal(found[k], plain[k])) << found[k] << plain[k];
    }
}

TEST(SystemsOfAnySize, LeaveEmptyWhatIsNotUnpacked) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& x) {
    const auto [lu, exchanges] = at::linalg_lu_factor(x[0]);
    const auto [none, lower, upper] = at::lu_unpack(lu, exchanges, true, false);
    const auto [p, no_lower, no_upper] = at::lu_unpack(lu, exchanges, false, true);
    return Tensors{lower * 1, upper * 1, p * 1, at::cat({none, x[1]}), at::cat({no_lower, no_upper, x[1]})};
  };
  expect_of_one(f, {matrices(1, 70)[0], waves({3})}, 1e-12);
}

TEST(SystemsOfAnySize, DivideByPivotsThatHaveNoInverse) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& x) { return Tensors{std::get<0>(at::linalg_lu_factor(x[0])) * 1}; };
  // Powers of two, so that quotients and differences are exact; 2^1060 is none of float64's numbers.
  const Tensor a =
      (at::eye(70, at::kDouble) + 0.5 * at::eye(70, at::kDouble).roll(1, 0).tril()) * std::ldexp(1.0, -1060);
  expect_of_one(f, {a}, 0);
}

TEST(SystemsOfAnySize, HaveDerivatives) {
  TOWER_NEEDS_LLVM();
  const Function f = [](const Tensors& x) {
    const auto solution = [&](const Tensor& b) { return at::linalg_solve(x[0], b.sin()); };
    const auto energy = [&](const Tensor& a) { return at::linalg_solve(a, x[1]).square().sum(); };
    const auto size = [&](const Tensor& a) { return std::get<1>(at::linalg_slogdet(a.mm(a.t()))); };
    const auto factored = [&](const Tensor& b) {
      return at::cholesky_solve((b * b).unsqueeze(1), at::linalg_cholesky(x[0].mm(x[0].t()))).squeeze(1);
    };
    const auto moving = [&](const Tensor& b) { return at::linalg_solve(x[0] + at::diag(b), b); };
    const auto root = [&](const Tensor& a) { return at::linalg_cholesky(a.mm(a.t())).sin().sum(); };
    const auto volume = [](const Tensor& a) { return at::linalg_det(a * 0.3); };
    const auto given = [&](const Tensor& a) {
      const auto [lu, exchanges] = at::linalg_lu_factor(a);
      return at::linalg_lu_solve(lu, exchanges, x[1].unsqueeze(1)).sum();
    };
    return Tensors{tower::jacfwd(moving)(x[1]), tower::grad(root)(x[0]),       tower::grad(volume)(x[0]),
                   tower::grad(given)(x[0]),    tower::jacfwd(solution)(x[1]), tower::jacrev(solution)(x[1]),
                   tower::grad(energy)(x[0]),   tower::grad(size)(x[0]),       tower::jacfwd(factored)(x[1])};
  };
  expect_of_one(f, {matrices(1, 70)[0], waves({70})}, 1e-9);
}

TEST(SystemsOfAnySize, AreInLibrariesForAnyNumberOfExamples) {
  TOWER_NEEDS_C();
  constexpr int64_t kRows = 66;
  // A matrix of each example, or one for all; sides of each, or of none; and columns of a Jacobian.
  const Tensor shared = matrices(1, kRows)[0], sides = waves({kRows, 2}, 1);
  const Function f = [=](const Tensors& x) {
    return td::vmap(
        [=](const Tensors& y) {
          const auto solved = [&](const Tensor& b) { return at::linalg_solve(y[0], b); };
          return Tensors{solved(y[1]),
                         at::linalg_solve(shared, y[1]),
                         solved(sides),
                         tower::jacfwd(solved)(y[1]),
                         std::get<1>(at::linalg_slogdet(y[0])),
                         at::linalg_cholesky(y[0].mm(y[0].t()))};
        },
        {0, 0}, {0})(x);
  };
  const auto of = [](int64_t n) { return Tensors{matrices(n, kRows), waves({n, kRows})}; };
  const Function compiled = td::compile(f);
  for (const int64_t n : {2, 3}) compiled(of(n));
  const CLibrary library(compiled);
  for (const int64_t n : {0, 1, 7}) {
    SCOPED_TRACE(n);
    const Tensors args = of(n), plain = f(args);
    Tensors results;
    ASSERT_EQ(library.call(n, args, plain, results), 0);
    if (n == 0) continue;
    expect_near(results, plain, 1e-9);
    const Tensors found = by_pointers(compiled, n, args, plain);
    for (size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(at::equal(results[k], found[k])) << "result " << k;
  }

  // What is no number in one example is no other's; a singular matrix ends the call.
  const Tensors args = of(7), plain = f(args);
  Tensors before, results;
  ASSERT_EQ(library.call(7, args, plain, before), 0);
  args[1][4][3] = std::numeric_limits<double>::quiet_NaN();
  ASSERT_EQ(library.call(7, args, plain, results), 0);
  for (const int64_t example : {3, 5, 6}) EXPECT_TRUE(at::equal(results[0][example], before[0][example]));
  EXPECT_TRUE(results[0][4].isnan().all().item<bool>());
  args[0][6].select(1, 40).zero_();
  EXPECT_EQ(library.call(7, args, plain, results), 4);
}

TEST(MovesInMemory, AreThoseOfLargeTensorsAndOfAnyElements) {
  TOWER_NEEDS_LLVM();
  const Function of_one = [](const Tensors& x) {
    const Tensor &image = x[0], &matrix = x[1];
    return Tensors{at::im2col(image, {3, 3}, {1, 1}, {1, 1}, {1, 1}) * 1, matrix.tril(-2) * 1, matrix.mT().triu(1) * 1,
                   at::diag_embed(matrix.select(0, 3), 1) * 1};
  };
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const Tensors one = {waves({2, 3, 24, 24}).to(dtype), waves({80, 90}).to(dtype)};
    expect_of_one(of_one, one, 0);
    const Function mapped = td::vmap(of_one, {0, std::nullopt}, {0});
    expect_of_one(mapped, {at::stack({one[0], one[0].flip(-1)}), one[1]}, 0);
  }
}

}  // namespace
