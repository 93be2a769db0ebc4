// Factorizations of small matrices, what is solved with them, eigenvalues and exponentials, in kernels whose lanes are
// examples: held against LibTorch's calls of LAPACK, by their results where these are well determined and by residuals
// where they are not, and their gradients against LibTorch's autograd.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <tower/dynamic.h>
#include <tower/tower.h>

#include <cmath>
#include <limits>

#include "compile/kernels.h"
#include "graph/plan.h"
#include "support/oracles.h"

namespace {

namespace td = tower::dynamic;
namespace compiler = tower::compiler;
using at::Tensor;
using td::Function;
using td::Tensors;

enum class Of { square, any, tall, symmetric, positive };

struct Program {
  const char* name;
  Of of;
  std::function<Tensors(const Tensor& a)> f;
  int64_t most = 11;  // rows and columns with which it is in a kernel
  bool differentiable = true;
  bool mapped = true;  // under a vmap it is recorded as one call for an example
};

// Some right-hand sides that are the same for all programs and examples.
Tensor sides(const Tensor& a, int64_t rows, int64_t columns) {
  return (at::arange(rows * columns, a.options()) * 0.37).sin().view({rows, columns}) + 1.25;
}

const std::vector<Program>& programs() {
  static const std::vector<Program> all{
      {"solve", Of::square, [](auto& a) { return Tensors{at::linalg_solve(a, sides(a, a.size(-1), 2)) * 1}; }, 8},
      {"solve for a vector", Of::square,
       [](auto& a) { return Tensors{at::linalg_solve(a, sides(a, a.size(-1), 1).squeeze(1)) * 1}; }, 9},
      {"solve from the right", Of::square,
       [](auto& a) { return Tensors{at::linalg_solve(a, sides(a, 2, a.size(-1)), /*left=*/false) * 1}; }, 8},
      {"inv", Of::square, [](auto& a) { return Tensors{at::linalg_inv(a) * 1}; }, 8},
      {"cholesky", Of::positive, [](auto& a) { return Tensors{at::linalg_cholesky(a) * 1}; }},
      {"upper cholesky", Of::positive, [](auto& a) { return Tensors{at::linalg_cholesky(a, true) * 1}; }},
      {"cholesky_solve", Of::positive,
       [](auto& a) { return Tensors{at::cholesky_solve(sides(a, a.size(-1), 2), at::linalg_cholesky(a)) * 1}; }},
      {"lu_factor", Of::any,
       [](auto& a) {
         const auto [lu, pivots] = at::linalg_lu_factor(a);
         return Tensors{lu * 1, pivots + 0};
       },
       8},
      {"lu_solve", Of::square,
       [](auto& a) {
         const auto [lu, pivots] = at::linalg_lu_factor(a);
         const int64_t n = a.size(-1);
         return Tensors{at::linalg_lu_solve(lu, pivots, sides(a, n, 2)) * 1,
                        at::linalg_lu_solve(lu, pivots, sides(a, n, 2), true, true) * 1,
                        at::linalg_lu_solve(lu, pivots, sides(a, 2, n), false, false) * 1,
                        at::linalg_lu_solve(lu, pivots, sides(a, 2, n), false, true) * 1};
       },
       5, true, false},
      {"lu", Of::any,
       [](auto& a) {
         const auto [p, l, u] = at::linalg_lu(a);
         return Tensors{p * 1, l * 1, u * 1};
       },
       8},
      {"lu_unpack", Of::any,
       [](auto& a) {
         const auto [lu, pivots] = at::linalg_lu_factor(a);
         const auto [p, l, u] = at::lu_unpack(lu, pivots);
         return Tensors{p * 1, l * 1, u * 1};
       },
       8},
      {"det", Of::square, [](auto& a) { return Tensors{at::linalg_det(a) * 1}; }, 9},
      {"slogdet", Of::square,
       [](auto& a) {
         const auto [sign, log] = at::linalg_slogdet(a);
         return Tensors{sign * 1, log * 1};
       },
       9},
      {"qr", Of::any,
       [](auto& a) {
         const auto [q, r] = at::linalg_qr(a);
         return Tensors{q * 1, r * 1};
       },
       7},
      {"complete qr", Of::any,
       [](auto& a) {
         const auto [q, r] = at::linalg_qr(a, "complete");
         return Tensors{q * 1, r * 1};
       },
       7, false},
      {"r", Of::any, [](auto& a) { return Tensors{std::get<1>(at::linalg_qr(a, "r")) * 1}; }, 8, false},
      {"geqrf", Of::any,
       [](auto& a) {
         const auto [packed, tau] = at::geqrf(a);
         return Tensors{packed * 1, tau * 1};
       },
       8, false, false},
      {"householder_product", Of::tall,
       [](auto& a) {
         const auto [packed, tau] = at::geqrf(a);
         return Tensors{at::linalg_householder_product(packed, tau) * 1};
       },
       7, false, false},
      {"ormqr", Of::square,
       [](auto& a) {
         const auto [packed, tau] = at::geqrf(a);
         const auto of_batch = [&a](int64_t rows, int64_t columns) {
           std::vector<int64_t> sizes = a.sizes().vec();
           sizes.end()[-2] = rows;
           sizes.back() = columns;
           return sides(a, rows, columns).expand(sizes);
         };
         const Tensor below = of_batch(a.size(-1), 2), beside = of_batch(2, a.size(-1));
         return Tensors{at::ormqr(packed, tau, below) * 1, at::ormqr(packed, tau, below, true, true) * 1,
                        at::ormqr(packed, tau, beside, false) * 1, at::ormqr(packed, tau, beside, false, true) * 1};
       },
       7, false, false},
      {"matrix_exp", Of::square, [](auto& a) { return Tensors{at::linalg_matrix_exp(a) * 1}; }, 6},
      {"eigvalsh", Of::symmetric, [](auto& a) { return Tensors{at::linalg_eigvalsh(a) * 1}; }, 8, false},
      {"upper eigvalsh", Of::symmetric, [](auto& a) { return Tensors{at::linalg_eigvalsh(a, "U") * 1}; }, 8, false},
      {"svdvals", Of::any, [](auto& a) { return Tensors{at::linalg_svdvals(a) * 1}; }, 7, false},
  };
  return all;
}

// U diag(s) Vᵀ of random U and V, with singular values between 1 and `condition`.
Tensor with_condition(std::vector<int64_t> sizes, double condition) {
  const int64_t m = sizes.end()[-2], n = sizes.back(), k = std::min(m, n);
  const auto orthogonal = [&](int64_t rows) {
    std::vector<int64_t> of = sizes;
    of.end()[-2] = rows;
    of.back() = k;
    return std::get<0>(at::linalg_qr(at::randn(of, at::kDouble)));
  };
  const Tensor values = at::linspace(0, std::log(condition), k, at::kDouble).exp();
  return at::matmul(orthogonal(m) * values, orthogonal(n).mT());
}
Tensor matrices(Of of, std::vector<int64_t> sizes, double condition) {
  const Tensor a = with_condition(sizes, condition);
  if (of == Of::symmetric) return a + a.mT();
  if (of == Of::positive) return at::matmul(a, a.mT());
  return a;
}

Function of_one(const Program& p) {
  return [&p](const Tensors& in) { return p.f(in[0]); };
}
Function over_examples(const Function& f, size_t results) { return td::vmap(f, {0}, td::Dims(results, 0)); }
size_t results_of(const Program& p, const Tensor& a) { return p.f(a[0]).size(); }

Tensors in_kernels(const Function& f, const Tensors& args, bool in_one = true) {
  compiler::FusedGraph graph = kernels::fused(f, args, tower::compiler::Worth::all);
  EXPECT_TRUE(!in_one || graph.graph.calls.size() == 1) << graph.graph.print();
  return compiler::Plan(std::move(graph.graph)).run(args);
}

double close(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-12 : 5e-4; }

std::vector<std::pair<int64_t, int64_t>> shapes_of(Of of, at::ScalarType dtype) {
  std::vector<std::pair<int64_t, int64_t>> shapes{{1, 1}, {2, 2}, {3, 3}, {5, 5}};
  if (dtype == at::kDouble) shapes.insert(shapes.end(), {{8, 8}, {11, 11}});
  if (of == Of::any || of == Of::tall) shapes.insert(shapes.end(), {{4, 2}, {3, 1}});
  if (of == Of::any) shapes.insert(shapes.end(), {{2, 5}, {1, 4}});
  return shapes;
}

TEST(SmallFactorizations, AreThoseOfLapack) {
  TOWER_NEEDS_LLVM();
  at::manual_seed(1);
  for (const Program& p : programs())
    for (const auto dtype : {at::kDouble, at::kFloat})
      for (const auto& [m, n] : shapes_of(p.of, dtype)) {
        if (std::max(m, n) > p.most) continue;
        SCOPED_TRACE(std::string(p.name) + " of " + std::to_string(m) + " × " + std::to_string(n) + " " +
                     toString(dtype));
        const Tensor a = matrices(p.of, {13, m, n}, 4).to(dtype);
        const Function f = over_examples(of_one(p), results_of(p, a));
        EXPECT_EQ(support::difference(in_kernels(f, {a}, p.mapped), f({a}), {close(dtype), close(dtype)}), "");
        // And of one, without a vmap.
        if (n > 3) continue;
        // (Of 1 × 1, LibTorch's householder_product pads by nothing: what is empty is in no kernel.)
        EXPECT_EQ(
            support::difference(in_kernels(of_one(p), {a[0]}, m > 1 || n > 1), p.f(a[0]), {close(dtype), close(dtype)}),
            "");
      }
}

// Wherever an example is, and with batches in examples.
TEST(SmallFactorizations, OfBatchesInExamplesAreThoseOfLapack) {
  TOWER_NEEDS_LLVM();
  at::manual_seed(2);
  for (const Program& p : programs()) {
    SCOPED_TRACE(p.name);
    const int64_t n = p.of == Of::tall ? 2 : 3;
    const Tensor a = matrices(p.of, {7, 2, 1, 3, n}, 4);
    const Function f = over_examples(of_one(p), results_of(p, a));
    EXPECT_EQ(support::difference(in_kernels(f, {a}, p.mapped), f({a}), {1e-12, 1e-12}), "");
    const Function last = td::vmap(of_one(p), {2}, td::Dims(results_of(p, a), 0));
    const Tensor moved = a.squeeze(2).select(1, 0).permute({1, 2, 0}).contiguous();
    EXPECT_EQ(support::difference(in_kernels(last, {moved}, p.mapped), last({moved}), {1e-12, 1e-12}), "");
  }
}

TEST(SmallFactorizations, BroadcastRightHandSides) {
  TOWER_NEEDS_LLVM();
  at::manual_seed(3);
  const Tensor a = with_condition({5, 2, 1, 3, 3}, 4), b = at::randn({5, 3, 3, 2}, at::kDouble);
  const Tensor v = at::randn({5, 2, 3}, at::kDouble), small = with_condition({5, 2, 3, 3}, 4);
  const Function solve = [](const Tensors& in) { return Tensors{at::linalg_solve(in[0], in[1]) * 1}; };
  const Function triangular = [](const Tensors& in) {
    return Tensors{at::linalg_solve_triangular(in[0], in[1], /*upper=*/true) * 1};
  };
  const Function by_factors = [](const Tensors& in) {
    const auto [lu, pivots] = at::linalg_lu_factor(in[0]);
    return Tensors{at::linalg_lu_solve(lu, pivots, in[1]) * 1};
  };
  for (const auto& [f, args] : std::vector<std::pair<Function, Tensors>>{
           {solve, {a, b}}, {solve, {small, v}}, {solve, {small, v.select(1, 0)}}, {triangular, {a, b}}}) {
    const Function mapped = td::vmap(f, {0, 0}, {0});
    EXPECT_EQ(support::difference(in_kernels(mapped, args), mapped(args), {1e-12, 1e-12}), "");
  }
  const Tensors one{a[0], b[0]};
  EXPECT_EQ(support::difference(in_kernels(by_factors, one), by_factors(one), {1e-12, 1e-12}), "");
}

// Pivots need not be those of a factorization: LAPACK exchanges with any row.
TEST(SmallFactorizations, RowsMayBeExchangedWithThoseBefore) {
  TOWER_NEEDS_LLVM();
  at::manual_seed(4);
  const Tensor lu = with_condition({4, 3, 3}, 4), b = at::randn({4, 3, 2}, at::kDouble);
  const Tensor pivots = at::tensor({1, 1, 1, 3, 1, 2, 2, 3, 1, 1, 2, 3}, at::kInt).view({4, 3});
  const Function f = [](const Tensors& in) {
    const auto [p, l, u] = at::lu_unpack(in[0], in[1]);
    return Tensors{at::linalg_lu_solve(in[0], in[1], in[2]) * 1,
                   at::linalg_lu_solve(in[0], in[1], in[2], true, true) * 1, p * 1};
  };
  EXPECT_EQ(support::difference(in_kernels(f, {lu, pivots, b}), f({lu, pivots, b}), {1e-12, 1e-12}), "");
}

TEST(SmallFactorizations, SystemsThatAreTooLargeToBeWrittenOutAreSolvedInMemory) {
  TOWER_NEEDS_LLVM();
  at::manual_seed(11);
  for (const auto dtype : {at::kDouble, at::kFloat})
    for (const int64_t n : {12, 16, 24})
      for (const bool left : {true, false}) {
        SCOPED_TRACE(std::to_string(n) + (left ? " from the left " : " from the right ") + toString(dtype));
        const Tensor a = with_condition({19, n, n}, 10).to(dtype),
                     b = at::randn({19, left ? n : 2, left ? 2 : n}, dtype);
        const Function f =
            td::vmap([left](const Tensors& in) { return Tensors{at::linalg_solve(in[0], in[1], left)}; }, {0, 0}, {0});
        EXPECT_EQ(support::difference(in_kernels(f, {a, b}), f({a, b}), {close(dtype), close(dtype)}), "");
        const Function compiled = td::compile(f);
        Tensor bad = a.clone();
        bad[17].zero_();
        for (int run = 0; run < 3; ++run) compiled({a, b});
        EXPECT_THROW(compiled({bad, b}), c10::LinAlgError);
      }
}

// ---- what is not well determined ----

Tensor length_of(const Tensor& t) { return t.to(at::kDouble).flatten(1).norm(2, {1}); }

// Backward stable: the residual is within some roundings of the sizes that go into it, whatever the condition.
void expect_residual(const Tensor& residual, const Tensor& size, at::ScalarType dtype, const char* of) {
  const double epsilon =
      dtype == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  const Tensor ratio = length_of(residual) / (size * epsilon);
  EXPECT_LT(ratio.max().item<double>(), 40) << of;
}

TEST(SmallFactorizations, OfIllConditionedMatricesAreBackwardStable) {
  TOWER_NEEDS_LLVM();
  at::manual_seed(5);
  for (const auto dtype : {at::kDouble, at::kFloat})
    for (const int64_t n : {2, 4, 7}) {
      SCOPED_TRACE(std::to_string(n) + " " + toString(dtype));
      const double condition = dtype == at::kDouble ? 1e13 : 1e5;
      const Tensor a = with_condition({50, n, n}, condition).to(dtype), one = at::eye(n, at::kDouble);
      const Tensor exact = a.to(at::kDouble), size = length_of(a);
      const auto run = [&](const std::function<Tensors(const Tensor&)>& f) {
        const Function one_example = [&](const Tensors& in) { return f(in[0]); };
        Tensors results = in_kernels(over_examples(one_example, f(a[0]).size()), {a});
        for (Tensor& t : results) t = t.to(at::kDouble);
        return results;
      };
      const Tensor b = sides(a, n, 2);
      const Tensor x = run([&](const Tensor& m) { return Tensors{at::linalg_solve(m, b) * 1}; })[0];
      expect_residual(at::matmul(exact, x) - b.to(at::kDouble), size * length_of(x) + length_of(b.unsqueeze(0)), dtype,
                      "solve");
      const Tensors lu = run([](const Tensor& m) {
        const auto [p, l, u] = at::linalg_lu(m);
        return Tensors{p * 1, l * 1, u * 1};
      });
      expect_residual(at::matmul(lu[0], at::matmul(lu[1], lu[2])) - exact, size, dtype, "lu");
      EXPECT_LE(lu[1].abs().max().item<double>(), 1 + 1e-6);  // pivots are the largest
      const Tensors qr = run([](const Tensor& m) {
        const auto [q, r] = at::linalg_qr(m);
        return Tensors{q * 1, r * 1};
      });
      expect_residual(at::matmul(qr[0], qr[1]) - exact, size, dtype, "qr");
      expect_residual(at::matmul(qr[0].mT(), qr[0]) - one, length_of(one.unsqueeze(0)), dtype, "orthogonality");
      const Tensor values = run([](const Tensor& m) { return Tensors{at::linalg_svdvals(m) * 1}; })[0];
      expect_residual(values - at::linalg_svdvals(exact), size, dtype, "svdvals");
      const Tensor eigenvalues = run([](const Tensor& m) { return Tensors{at::linalg_eigvalsh(m + m.mT()) * 1}; })[0];
      expect_residual(eigenvalues - at::linalg_eigvalsh((a + a.mT()).to(at::kDouble)), 2 * size, dtype, "eigvalsh");
    }
}

Tensor hilbert(int64_t n) {
  const Tensor i = at::arange(n, at::kDouble);
  return 1 / (i.unsqueeze(0) + i.unsqueeze(1) + 1);
}

// Matrices that have nothing below a diagonal, several equal values, not the full rank, or extreme sizes.
Tensor peculiar(int64_t n, at::ScalarType dtype) {
  const Tensor random = at::randn({n, n}, at::kDouble), eye = at::eye(n, at::kDouble),
               ones = at::ones({n, n}, at::kDouble);
  const double large = dtype == at::kDouble ? 1e200 : 1e30, tiny = dtype == at::kDouble ? 1e-200 : 1e-25;
  return at::stack({random.triu(), -eye, at::zeros({n, n}, at::kDouble), ones, random.tril(), eye * random,
                    random * large, random * tiny, hilbert(n), eye + ones * 1e-9,
                    at::randn({n, 1}, at::kDouble).mm(ones.narrow(0, 0, 1)), random.flip(0), -random.triu(),
                    at::diag_embed(at::logspace(0, -2 * n, n, 10, at::kDouble))})
      .to(dtype);
}

TEST(SmallFactorizations, OfPeculiarMatricesAreThoseOfLapack) {
  TOWER_NEEDS_LLVM();
  at::manual_seed(6);
  for (const auto dtype : {at::kDouble, at::kFloat})
    for (const int64_t n : {1, 2, 3, 5}) {
      SCOPED_TRACE(std::to_string(n) + " " + toString(dtype));
      const Tensor a = peculiar(n, dtype), size = a.abs().amax(std::vector<int64_t>{-2, -1});
      const auto compare = [&](const char* name, const Tensor& from, const std::function<Tensor(const Tensor&)>& f) {
        const Function mapped = over_examples([&](const Tensors& in) { return Tensors{f(in[0]) * 1}; }, 1);
        const Tensor found = in_kernels(mapped, {from})[0], expected = mapped({from})[0];
        for (int64_t k = 0; k < a.size(0); ++k) {
          const double scale = std::max(size[k].item<double>(), 1e-300);
          const Tensor difference = (found[k].to(at::kDouble) - expected[k].to(at::kDouble)).abs() / scale;
          EXPECT_LE(difference.max().item<double>(), close(dtype) / 10)
              << name << " of matrix " << k << a[k] << found[k] << expected[k];
        }
      };
      compare("r", a, [](const Tensor& m) { return std::get<1>(at::linalg_qr(m, "r")).tril().diagonal(); });
      compare("svdvals", a, [](const Tensor& m) { return at::linalg_svdvals(m); });
      compare("eigvalsh", a, [](const Tensor& m) { return at::linalg_eigvalsh(m); });
      compare("product of q and r", a, [](const Tensor& m) {
        const auto [q, r] = at::linalg_qr(m);
        return q.matmul(r);
      });
    }
}

TEST(SmallFactorizations, LogarithmsOfDeterminantsOfSingularMatricesAreInfinite) {
  TOWER_NEEDS_LLVM();
  const Tensor zero = at::zeros({2, 2}, at::kDouble), one = at::eye(2, at::kDouble);
  const Tensor a = at::stack({zero, one, -one, one.flip(0), at::ones({2, 2}, at::kDouble), one * 1e-300});
  const Function f = over_examples(
      [](const Tensors& in) {
        const auto [sign, log] = at::linalg_slogdet(in[0]);
        return Tensors{sign * 1, log * 1, at::logdet(in[0]) * 1};
      },
      3);
  EXPECT_EQ(support::difference(in_kernels(f, {a}), f({a}), {1e-14, 1e-14}), "");
}

TEST(SmallFactorizations, ExponentialsAreScaledByEachForItself) {
  TOWER_NEEDS_LLVM();
  at::manual_seed(7);
  for (const auto dtype : {at::kDouble, at::kFloat})
    for (const int64_t n : {1, 2, 4}) {
      const Tensor sizes = at::tensor({0.0, 1e-18, 1e-9, 1e-3, 0.1, 0.5, 1.0, 3.0, 10.0, 40.0}, at::kDouble);
      const Tensor a = (at::randn({10, n, n}, at::kDouble) * sizes.view({10, 1, 1}) / n).to(dtype);
      const Function f = over_examples([](const Tensors& in) { return Tensors{at::linalg_matrix_exp(in[0]) * 1}; }, 1);
      const Tensor found = in_kernels(f, {a})[0].to(at::kDouble), expected = at::linalg_matrix_exp(a.to(at::kDouble));
      for (int64_t k = 0; k < 10; ++k) {
        const double allowed = (dtype == at::kDouble ? 1e-14 : 1e-5) * (1 + sizes[k].item<double>());
        EXPECT_LE(((found[k] - expected[k]).norm() / expected[k].norm()).item<double>(), allowed) << n << " " << k;
      }
    }
}

// ---- what LibTorch says of numbers that are none ----

std::optional<Tensors> results_or_error(const Function& f, const Tensors& args) try {
  return f(args);
} catch (const c10::Error&) {
  return std::nullopt;
}

TEST(SmallFactorizations, OfNanAndInfinityAreLibTorchs) {
  TOWER_NEEDS_LLVM();
  at::manual_seed(8);
  for (const Program& p : programs()) {
    const std::string name = p.name;
    if (name != "eigvalsh" && name != "svdvals" && name != "cholesky" && name != "solve") continue;
    for (const double number : {std::nan(""), double(INFINITY)}) {
      SCOPED_TRACE(name + " with " + std::to_string(number));
      Tensor a = matrices(p.of, {9, 3, 3}, 4);
      const Tensors good{a.clone()};
      a[4][1][1] = number;
      const Function f = over_examples(of_one(p), results_of(p, a)), compiled = td::compile(f);
      for (int run = 0; run < 3; ++run) {
        EXPECT_EQ(support::difference(compiled(good), f(good), {1e-12, 1e-12}), "");
        const auto found = results_or_error(compiled, {a}), expected = results_or_error(f, {a});
        ASSERT_EQ(found.has_value(), expected.has_value());
        // How far NaN spreads is the method's affair; examples without it are what they are.
        for (size_t k = 0; found && k < found->size(); ++k)
          EXPECT_EQ(support::difference((*found)[k].narrow(0, 5, 4), (*expected)[k].narrow(0, 5, 4), {1e-12, 1e-12}),
                    "");
      }
    }
  }
}

TEST(SmallFactorizations, ErrorsAreLibTorchs) {
  TOWER_NEEDS_LLVM();
  const Function f = over_examples([](const Tensors& in) { return Tensors{at::linalg_inv(in[0]) * 2}; }, 1);
  const auto error_of = [](const Function& g, const Tensor& a) -> std::string {
    try {
      g({a});
    } catch (const c10::LinAlgError& e) {
      return e.what_without_backtrace();
    }
    return "";
  };
  Tensor a = at::eye(3, at::kDouble).expand({20, 3, 3}).clone();
  const Function compiled = td::compile(f);
  for (int run = 0; run < 3; ++run) compiled({a});
  a[17][2][2] = 0;
  for (const Function& g : {f, compiled})
    EXPECT_NE(error_of(g, a).find("(Batch element 17): The diagonal element 3 is zero"), std::string::npos);
}

// ---- derivatives ----

TEST(SmallFactorizations, GradientsInKernelsAreLibTorchs) {
  TOWER_NEEDS_LLVM();
  at::manual_seed(9);
  for (const Program& p : programs()) {
    if (!p.differentiable) continue;
    for (const int64_t n : {1, 3}) {
      SCOPED_TRACE(std::string(p.name) + " of " + std::to_string(n));
      const Tensor a = matrices(p.of, {6, n, n}, 3);
      const Function sum = [&p](const Tensors& in) {
        Tensor all;
        for (const Tensor& t : p.f(in[0])) {
          if (!t.is_floating_point()) continue;
          const Tensor part = (t * (at::arange(t.numel(), t.options()).view_as(t) + 1).cos()).sum();
          all = all.defined() ? all + part : part;
        }
        return Tensors{all};
      };
      const Function one = [&](const Tensors& in) { return Tensors{td::grad(sum, {0})(in)[0] * 1}; };
      const Function gradients = td::vmap(one, {0}, {0});
      const Function compiled = td::compile(gradients);
      Tensors expected;
      for (int64_t k = 0; k < a.size(0); ++k)
        expected.push_back(support::autograd_vjp(sum, {a[k]}, {at::ones({}, at::kDouble)})[0]);
      for (int run = 0; run < 2; ++run)
        EXPECT_EQ(support::difference(compiled({a})[0], at::stack(expected), {1e-9, 1e-9}), "");
      in_kernels(gradients, {a}, p.mapped);
    }
  }
}

// ---- in loops ----

TEST(SmallFactorizations, InLoopsHaveLoopsOfTheirOwn) {
  TOWER_NEEDS_LLVM();
  at::manual_seed(10);
  for (const Program& p : programs()) {
    const std::string name = p.name;
    if (name != "eigvalsh" && name != "svdvals" && name != "matrix_exp" && name != "qr" && name != "slogdet") continue;
    SCOPED_TRACE(name);
    const Function one = [&p](const Tensors& in) {
      const Tensor n = in[1];
      return td::while_loop([n](const Tensors& s) { return s[0] < n; },
                            [&p](const Tensors& s) {
                              const Tensor shift = p.f(s[1]).back().sum() * 0.01;
                              return Tensors{s[0] + 1, s[1] * 0.9 + shift};
                            },
                            {at::zeros_like(n), in[0]});
    };
    const Tensor a = matrices(p.of, {11, 3, 3}, 3), steps = at::arange(11, at::kLong) % 4;
    const Function f = td::vmap(one, {0, 0}, {0, 0});
    EXPECT_EQ(kernels::calls_left(f, {a, steps}, 1e-10), 1u);
  }
}

}  // namespace
