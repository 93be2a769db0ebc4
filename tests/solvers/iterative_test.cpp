// cg, bicgstab and gmres as solvers: what they find, when they end, what they say where they do not. Oracles:
// LibTorch's dense solver, residuals computed here.
#include <complex>

#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/linear_solve.h"
#include "tower/transforms.h"

namespace {

using tower::IterativeOptions;
using tower::NoConvergence;

using Method = tower::IterativeSolution<Tensors> (*)(Function, const Tensors&, IterativeOptions<Tensors>);
struct Named {
  const char* name;
  Method run;
};
const std::vector<Named> all{{"cg", td::cg}, {"bicgstab", td::bicgstab}, {"gmres", td::gmres}};
const std::vector<Named> for_any{all[1], all[2]};

Function times(const Tensor& a) {
  return of_one([a](const Tensor& v) { return at::mv(a, v); });
}

Tensor random_matrix(int64_t n, at::ScalarType dtype, uint64_t seed) {
  return support::random_like({at::empty({n, n}, dtype)}, seed)[0];
}
Tensor random_vector(int64_t n, at::ScalarType dtype, uint64_t seed) {
  return support::random_like({at::empty({n}, dtype)}, seed)[0];
}
Tensor identity(int64_t n, at::ScalarType dtype = at::kDouble) { return at::eye(n, dtype); }

Tensor positive_definite(int64_t n, at::ScalarType dtype) {
  const Tensor m = random_matrix(n, dtype, 1);
  return at::mm(m.conj().t(), m) + identity(n, dtype);
}

double error(const Tensor& actual, const Tensor& expected) { return (actual - expected).abs().max().item<double>(); }

// (2 + shift) v[i] − v[i − 1] − v[i + 1] + wind (v[i + 1] − v[i − 1])
Function tridiagonal(double shift, double wind) {
  return of_one([=](const Tensor& v) {
    const Tensor padded = at::constant_pad_nd(v, {1, 1});
    const Tensor before = padded.narrow(0, 0, v.numel()), after = padded.narrow(0, 2, v.numel());
    return (2 + shift) * v - before * (1 + wind) - after * (1 - wind);
  });
}

TEST(IterativeSolvers, PositiveDefiniteRealAndComplex) {
  for (const auto dtype : {at::kDouble, at::kComplexDouble}) {
    const Tensor a = positive_definite(12, dtype), b = random_vector(12, dtype, 2);
    for (const Named& method : all) {
      const auto found = method.run(times(a), {b}, {.tolerance = 1e-12});
      EXPECT_TRUE(found.converged.item<bool>()) << method.name;
      EXPECT_LT(error(found.x[0], at::linalg_solve(a, b)), 1e-10) << method.name;
      EXPECT_NEAR(found.residual.item<double>(), (b - at::mv(a, found.x[0])).norm().item<double>(), 1e-13);
      EXPECT_LE(found.residual.item<double>(), 1e-11 * b.norm().item<double>()) << method.name;
      EXPECT_GT(found.steps.item<int64_t>(), 3) << method.name;
    }
  }
}

TEST(IterativeSolvers, IndefiniteRealAndComplex) {
  for (const auto dtype : {at::kDouble, at::kComplexDouble}) {
    const Tensor m = random_matrix(14, dtype, 3);
    const Tensor a = m + m.conj().t(), b = random_vector(14, dtype, 4);
    for (const Named& method : for_any) {
      const auto found = method.run(times(a), {b}, {.tolerance = 1e-11});
      EXPECT_LT(error(found.x[0], at::linalg_solve(a, b)), 1e-8) << method.name;
    }
  }
}

TEST(IterativeSolvers, NonsymmetricRealAndComplex) {
  for (const auto dtype : {at::kDouble, at::kComplexDouble}) {
    const Tensor a = random_matrix(20, dtype, 5) + 4 * identity(20, dtype), b = random_vector(20, dtype, 6);
    for (const Named& method : for_any)
      EXPECT_LT(error(method.run(times(a), {b}, {.tolerance = 1e-12}).x[0], at::linalg_solve(a, b)), 1e-10)
          << method.name;
  }
}

TEST(IterativeSolvers, GmresStartsAnew) {
  const Tensor a = random_matrix(40, at::kDouble, 7) + 5 * identity(40), b = random_vector(40, at::kDouble, 8);
  const auto whole = td::gmres(times(a), {b}, {.restart = 40}), parts = td::gmres(times(a), {b}, {.restart = 5});
  EXPECT_LT(error(parts.x[0], at::linalg_solve(a, b)), 1e-8);
  EXPECT_LE(whole.steps.item<int64_t>(), 40);
  EXPECT_GT(parts.steps.item<int64_t>(), whole.steps.item<int64_t>());
}

TEST(IterativeSolvers, AHundredThousandUnknowns) {
  const Tensor b = waves({100'000});
  for (const Named& method : all) {
    const auto a = tridiagonal(0.5, 0);
    const auto found = method.run(a, {b}, {});
    EXPECT_LT((a(found.x)[0] - b).norm().item<double>(), 1e-9 * b.norm().item<double>()) << method.name;
  }
  for (const Named& method : for_any) {
    const auto a = tridiagonal(0.1, 0.6);
    const auto found = method.run(a, {b}, {.tolerance = 1e-8});
    EXPECT_LT((a(found.x)[0] - b).norm().item<double>(), 1e-7 * b.norm().item<double>()) << method.name;
  }
}

TEST(IterativeSolvers, SinglePrecisionHasATolerance) {
  const Tensor a = positive_definite(8, at::kFloat), b = random_vector(8, at::kFloat, 2);
  for (const Named& method : all) {
    const auto found = method.run(times(a), {b}, {});
    EXPECT_EQ(found.x[0].scalar_type(), at::kFloat);
    EXPECT_LT(error(found.x[0], at::linalg_solve(a, b)), 1e-3) << method.name;
  }
}

// One that is solved at once, one of zeros, easy ones and hard ones.
TEST(IterativeSolvers, EachExampleOfABatchEndsByItself) {
  Tensors matrices, sides;
  for (const double condition : {1.0, 10.0, 50.0, 3.0, 20.0}) {
    const auto [q, r] = at::linalg_qr(random_matrix(9, at::kDouble, static_cast<uint64_t>(condition)));
    matrices.push_back(at::mm(q * at::logspace(0, std::log10(condition), 9, 10.0, at::kDouble), q.t()));
    sides.push_back(waves({9}, condition));
  }
  sides[3].zero_();
  const Tensor as = at::stack(matrices), bs = at::stack(sides);
  for (const Named& method : all) {
    const auto solve = [&](const Tensor& a, const Tensor& b) {
      auto found = method.run(times(a), {b}, {.max_steps = 2000, .restart = 6});
      return std::tuple(found.x[0], found.converged, found.steps, found.residual);
    };
    const auto [xs, converged, steps, residuals] = tower::vmap(solve)(as, bs);
    for (int64_t i = 0; i < as.size(0); ++i) {
      const auto [x, one_converged, one_steps, residual] = solve(as[i], bs[i]);
      EXPECT_LT(error(xs[i], x), 1e-8) << method.name << i;
      // Batched products round otherwise: at the threshold that is a step.
      EXPECT_NEAR(steps[i].item<double>(), one_steps.item<double>(), 1) << method.name << i;
      EXPECT_TRUE(converged[i].item<bool>()) << method.name << i;
    }
    EXPECT_EQ(steps[0].item<int64_t>(), 1) << method.name;
    EXPECT_EQ(steps[3].item<int64_t>(), 0) << method.name;
    EXPECT_TRUE(at::equal(xs[3], at::zeros_like(xs[3]))) << method.name;
  }
}

TEST(IterativeSolvers, ABatchInABatchAndABatchOfNone) {
  const Tensor a = positive_definite(5, at::kDouble), bs = waves({2, 3, 5});
  const Tensor expected = at::linalg_solve(a, bs.view({6, 5}).t()).t().view({2, 3, 5});
  for (const Named& method : all) {
    const auto solve = [&](const Tensor& b) { return method.run(times(a), {b}, {.tolerance = 1e-13}).x[0]; };
    EXPECT_LT(error(tower::vmap(tower::vmap(solve))(bs), expected), 1e-10) << method.name;
    EXPECT_EQ(tower::vmap(solve)(at::empty({0, 5}, at::kDouble)).sizes(), (at::IntArrayRef{0, 5})) << method.name;
  }
}

TEST(IterativeSolvers, WithoutConvergenceTheyThrowOrSay) {
  const Tensor a = at::diag(at::linspace(1, 1000, 30, at::kDouble)), b = waves({30});
  for (const Named& method : all) {
    const std::string text =
        message_of<tower::NoConvergenceError>([&] { method.run(times(a), {b}, {.max_steps = 3}); });
    EXPECT_TRUE(contains(text, std::string(method.name) + ": no convergence in 3 steps")) << text;
    const auto found = method.run(times(a), {b}, {.max_steps = 3, .on_no_convergence = NoConvergence::report});
    EXPECT_FALSE(found.converged.item<bool>()) << method.name;
    EXPECT_EQ(found.steps.item<int64_t>(), 3) << method.name;
    const auto batch = tower::vmap([&](const Tensor& v) {
      auto one = method.run(times(a), {v}, {.max_steps = 3, .on_no_convergence = NoConvergence::report});
      return std::pair(one.x[0], one.converged);
    })(at::stack({b, at::zeros_like(b)}));
    EXPECT_TRUE(at::equal(batch.second, at::tensor({0, 1}) == 1)) << method.name;
    const std::string of_batch = message_of<tower::NoConvergenceError>([&] {
      tower::vmap([&](const Tensor& v) { return method.run(times(a), {v}, {.max_steps = 3}).x[0]; })(
          at::stack({b, at::zeros_like(b), 2 * b}));
    });
    EXPECT_TRUE(contains(of_batch, "no convergence for 2 of 3 examples")) << of_batch;
  }
}

TEST(IterativeSolvers, CgSeesThatAFunctionIsNotPositiveDefinite) {
  const Tensor a = at::diag(vec({1, -2, 3, 4})), b = vec({1, 1, 1, 1});
  const auto found = td::cg(times(a), {b}, {.on_no_convergence = NoConvergence::report});
  EXPECT_FALSE(found.converged.item<bool>());
  EXPECT_TRUE(at::isfinite(found.x[0]).all().item<bool>());
  EXPECT_THROW(td::cg(times(-identity(4)), {b}, {}), tower::NoConvergenceError);
}

TEST(IterativeSolvers, ASingularFunctionIsNoConvergence) {
  const Tensor a = at::diag(vec({1, 0, 3, 4})), b = vec({1, 1, 1, 1});
  for (const Named& method : all) {
    const auto found = method.run(times(a), {b}, {.on_no_convergence = NoConvergence::report});
    EXPECT_FALSE(found.converged.item<bool>()) << method.name;
  }
}

TEST(IterativeSolvers, APreconditionerAndAStartSaveSteps) {
  const Tensor a = positive_definite(16, at::kDouble) * at::outer(waves({16}) + 2, waves({16}) + 2);
  const Tensor b = waves({16}, 3), inverse = at::linalg_inv(a), x = at::linalg_solve(a, b);
  for (const Named& method : all) {
    const auto plain = method.run(times(a), {b}, {});
    const auto preconditioned = method.run(times(a), {b}, {.preconditioner = times(inverse)});
    EXPECT_LT(error(preconditioned.x[0], x), 1e-7) << method.name;
    EXPECT_LE(preconditioned.steps.item<int64_t>(), 2) << method.name;
    EXPECT_GT(plain.steps.item<int64_t>(), 4) << method.name;
    const auto started = method.run(times(a), {b}, {.tolerance = 1e-8, .start = Tensors{x}});
    EXPECT_EQ(started.steps.item<int64_t>(), 0) << method.name;
    const auto of_zero = method.run(times(a), {at::zeros_like(b)}, {.start = Tensors{x}});
    EXPECT_TRUE(at::equal(of_zero.x[0], at::zeros_like(b))) << method.name;
  }
}

TEST(IterativeSolvers, UnknownsAreATree) {
  using Pair = std::pair<Tensor, Tensor>;
  // [[3, -1], [1, 2]] in blocks
  const auto apply = [](const Pair& v) {
    return Pair(3 * v.first - v.second.view({2, 2}), v.first.flatten() + 2 * v.second);
  };
  const Pair b(numbers({2, 2}), numbers({4}) - 2.5);
  const auto [x, converged, steps, residual] = tower::gmres(apply, b, {.tolerance = 1e-13});
  const Pair image = apply(x);
  EXPECT_LT(error(image.first, b.first), 1e-11);
  EXPECT_LT(error(image.second, b.second), 1e-11);
  EXPECT_TRUE(converged.item<bool>());
  const auto halved =
      tower::bicgstab(apply, b, {.preconditioner = [](const Pair& v) { return Pair(v.first / 3, v.second / 2); }});
  EXPECT_LT(error(halved.x.first, x.first), 1e-8);
}

TEST(IterativeSolvers, OfARotationBicgstabSaysThatItFailsAndGmresDoesNot) {
  const Tensor a = at::tensor({0.0, -1.0, 1.0, 0.0}, at::kDouble).view({2, 2}), b = vec({1, 2});
  const auto found = td::bicgstab(times(a), {b}, {.on_no_convergence = NoConvergence::report});
  EXPECT_FALSE(found.converged.item<bool>());
  EXPECT_TRUE(at::isfinite(found.x[0]).all().item<bool>());
  EXPECT_LT(error(td::gmres(times(a), {b}, {}).x[0], at::linalg_solve(a, b)), 1e-10);
}

TEST(IterativeSolvers, DerivativesAreThoseOfTheSolution) {
  const Tensor m = positive_definite(6, at::kDouble), b = waves({6}, 2);
  const auto along = waves({6, 6}, 1) + waves({6, 6}, 1).t();
  for (const Named& method : all) {
    const auto by_solver = [&](const Tensor& a, const Tensor& side) {
      return method.run(times(a), {side}, {.tolerance = 1e-14}).x[0];
    };
    const auto by_matrix = [](const Tensor& a, const Tensor& side) { return at::linalg_solve(a, side); };
    EXPECT_LT(error(tower::jvp(by_solver, std::tuple(m, b), std::tuple(along, b)).second,
                    tower::jvp(by_matrix, std::tuple(m, b), std::tuple(along, b)).second),
              1e-10)
        << method.name;
    const auto [x, pullback] = tower::vjp(by_solver, m, b);
    const auto [y, expected] = tower::vjp(by_matrix, m, b);
    EXPECT_LT(error(std::get<0>(pullback(b)), std::get<0>(expected(b))), 1e-10) << method.name;
    EXPECT_LT(error(std::get<1>(pullback(b)), std::get<1>(expected(b))), 1e-10) << method.name;
  }
}

TEST(IterativeSolvers, ReportsHaveNoDerivativesAndDerivativesThatDoNotConvergeAreErrors) {
  const Tensor a = at::diag(at::linspace(1, 1000, 30, at::kDouble)), b = waves({30});
  for (const Named& method : all) {
    const auto report = [&](const Tensor& side) {
      return method.run(times(a), {side}, {.max_steps = 3, .on_no_convergence = NoConvergence::report});
    };
    EXPECT_TRUE(same(tower::grad([&](const Tensor& side) { return report(side).residual; })(b), at::zeros_like(b)));
    const auto loss = [&](const Tensor& side) { return report(side).x[0].sum(); };
    EXPECT_THROW(tower::grad(loss)(b), tower::NoConvergenceError) << method.name;
  }
}

TEST(IterativeSolvers, OptionsThatMeanNothingAreRefused) {
  const Tensor b = vec({1, 2});
  const auto run = [&](IterativeOptions<Tensors> options) {
    return message_of<tower::ArgumentError>([&] { td::gmres(times(identity(2)), {b}, std::move(options)); });
  };
  EXPECT_TRUE(contains(run({.tolerance = -1.0}), "gmres: the tolerance must not be negative"));
  EXPECT_TRUE(contains(run({.absolute_tolerance = std::nan("")}), "gmres: the absolute tolerance"));
  EXPECT_TRUE(contains(run({.max_steps = -1}), "gmres: max_steps"));
  EXPECT_TRUE(contains(run({.restart = 0}), "gmres: restart"));
  EXPECT_TRUE(contains(run({.start = Tensors{vec({1})}}), "gmres: the start gave Double [1] for tensor 0"));
}

}  // namespace
