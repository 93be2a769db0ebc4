// odeint's problems of others' test sets, and what rodas5p's linear systems are solved by. Oracles: closed forms,
// invariants, LibTorch's exponential of a matrix.
#include <ATen/ops/linalg_matrix_exp.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/one_hot.h>

#include <cmath>
#include <numbers>
#include <optional>

#include "support/prelude.h"
#include "tower/compile.h"
#include "tower/odeint.h"
#include "tower/transforms.h"

namespace {

using tower::Ode;
using tower::OdeOptions;

double largest(const Tensor& t) { return t.abs().max().item<double>(); }

// T. E. Hull, W. H. Enright, B. M. Fellen, A. E. Sedgwick, Comparing numerical methods for ordinary differential
// equations, SIAM J. Numer. Anal. 9 (1972): DETEST, and the linear ones of its stiff set (Enright, Hull, Lindberg, BIT
// 15 (1975)). All are integrated to t = 20. `expected` is zero at the solution there: of y, or of what y keeps.
struct Detest {
  const char* name;
  std::function<Tensor(const Tensor& t, const Tensor& y)> slope;
  Tensor y0;
  std::function<Tensor(const Tensor& y)> defect;
};
Detest linear_problem(const char* name, const Tensor& matrix, const Tensor& y0) {
  const Tensor last = at::mv(at::linalg_matrix_exp(20 * matrix), y0);
  return {name, [=](const Tensor&, const Tensor& y) { return at::mv(matrix, y); }, y0,
          [=](const Tensor& y) { return y - last; }};
}
Detest two_bodies(double e) {
  double u = 20;  // Kepler's equation
  for (int k = 0; k < 50; ++k) u -= (u - e * std::sin(u) - 20) / (1 - e * std::cos(u));
  const double x = std::cos(u) - e, y = std::sqrt(1 - e * e) * std::sin(u);
  const auto pull = [](const Tensor&, const Tensor& s) {
    const Tensor place = s.slice(0, 0, 2);
    return at::cat({s.slice(0, 2), -place / place.square().sum().pow(1.5)});
  };
  return {"D", pull, vec({1 - e, 0, 0, std::sqrt((1 + e) / (1 - e))}), [=](const Tensor& s) {
            return s.slice(0, 0, 2) - vec({x, y});
          }};
}
const std::vector<Detest>& detest() {
  const auto one = [](double value) { return [value](const Tensor& y) { return y - value; }; };
  const Tensor chain = at::diag_embed(at::ones({9}, at::kDouble), -1) - at::eye(10, at::kDouble);
  chain[9][9] = 0;
  static const std::vector<Detest> all{
      {"A1", [](const Tensor&, const Tensor& y) { return -y; }, vec({1}), one(std::exp(-20))},
      {"A2", [](const Tensor&, const Tensor& y) { return -0.5 * y.pow(3); }, vec({1}), one(1 / std::sqrt(21.))},
      {"A3", [](const Tensor& t, const Tensor& y) { return y * t.cos(); }, vec({1}), one(std::exp(std::sin(20.)))},
      {"A4", [](const Tensor&, const Tensor& y) { return y / 4 * (1 - y / 20); }, vec({1}),
       one(20 / (1 + 19 * std::exp(-5.)))},
      {"A5", [](const Tensor& t, const Tensor& y) { return (y - t) / (y + t); }, vec({4}),
       [](const Tensor& y) {
         return 0.5 * (400 + y.square()).log() + at::atan2(y, vec({20})) - std::log(4.) - std::acos(0.);
       }},
      {"B1",
       [](const Tensor&, const Tensor& y) {
         return at::stack({2 * (y[0] - y[0] * y[1]), y[0] * y[1] - y[1]});
       },
       vec({1, 3}),
       [](const Tensor& y) { return y[0] - y[0].log() + 2 * y[1] - 2 * y[1].log() - (7 - 2 * std::log(3.)); }},
      linear_problem("B2", vec({-1, 1, 0, 1, -2, 1, 0, 1, -1}).view({3, 3}), vec({2, 0, 1})),
      {"B5",
       [](const Tensor&, const Tensor& y) {
         return at::stack({y[1] * y[2], -y[0] * y[2], -0.51 * y[0] * y[1]});
       },
       vec({0, 1, 1}),
       [](const Tensor& y) {
         return at::stack({y[0].square() + y[1].square() - 1, 0.51 * y[0].square() + y[2].square() - 1});
       }},
      linear_problem("C1", chain, at::one_hot(at::zeros({}, at::kLong), 10).to(at::kDouble)),
      two_bodies(0.1),
      two_bodies(0.9)};
  return all;
}

TEST(Odeint, DetestsProblemsHaveTheirClosedFormsOrKeepTheirInvariants) {
  const auto error_of = [](const Detest& problem, const OdeOptions& options) {
    return largest(problem.defect(tower::odeint(problem.slope, problem.y0, vec({0, 20}), options).ys[1]));
  };
  for (const Detest& problem : detest())
    for (const Ode method : {Ode::tsit5, Ode::dop853})
      EXPECT_LT(error_of(problem, {.method = method, .rtol = 1e-9, .atol = 1e-9}), 1e-5)
          << problem.name << " by method " << static_cast<int>(method);
  Tensor turning = at::diag_embed(vec({-10, -10, -4, -1, -0.5, -0.1}));
  turning[0][1] = 100;
  turning[1][0] = -100;
  for (const Detest& problem :
       {linear_problem("stiff A1", at::diag_embed(vec({-0.5, -1, -100, -90})), at::ones({4}, at::kDouble)),
        linear_problem("stiff B5", turning, at::ones({6}, at::kDouble))})
    EXPECT_LT(error_of(problem, {.method = Ode::rodas5p, .rtol = 1e-7, .atol = 1e-9}), 1e-6) << problem.name;
}

// ---- systems of a step that are solved otherwise ----

using tower::LinearMethod;
using LinearOptions = tower::LinearSolveOptions<Tensors>;

LinearOptions by_method(LinearMethod method) {
  LinearOptions linear;
  linear.method = method;
  return linear;
}

// Heat in a rod of points between cold ends.
Tensor heat(const Tensor& u) {
  const Tensor none = at::zeros({1}, u.options());
  const double by_square = std::pow(static_cast<double>(u.size(0) + 1), 2);
  return by_square * (at::cat({u.slice(0, 1), none}) + at::cat({none, u.slice(0, 0, -1)}) - 2 * u);
}
constexpr int64_t kPoints = 12;
constexpr double kWidth = 1. / (kPoints + 1), kDuration = 0.05;
Tensor sine() { return (std::numbers::pi * kWidth * at::arange(1, kPoints + 1, at::kDouble)).sin(); }
// One that loses p of itself besides; sines are eigenvectors.
Tensor rod(const Tensor& p, const LinearOptions& linear) {
  const auto slope = [p](const Tensor&, const Tensor& u) { return heat(u) - p * u; };
  const OdeOptions options{.method = Ode::rodas5p, .rtol = 1e-6, .atol = 1e-6, .linear = linear};
  return tower::odeint(slope, sine(), vec({0, kDuration}), options).ys[1];
}
Tensor rod_by_sines(const Tensor& p) {
  const double rate = std::pow(2 / kWidth * std::sin(std::numbers::pi * kWidth / 2), 2);
  return (-kDuration * (rate + p)).exp() * sine();
}

TEST(Odeint, SystemsOfAStepMayBeSolvedWithoutTheirMatrix) {
  const Tensor p = at::scalar_tensor(0.7, at::kDouble), expected = rod_by_sines(p);
  LinearOptions library;
  int64_t solved = 0;
  library.symmetric = true;
  library.solve = [&](const Function& apply, const Tensors& b) {
    ++solved;
    return Tensors{at::linalg_solve(td::jacfwd(apply, {0})({b[0]})[0], b[0])};
  };
  for (const LinearOptions& linear : {LinearOptions(), by_method(LinearMethod::gmres), by_method(LinearMethod::cg),
                                      by_method(LinearMethod::bicgstab), by_method(LinearMethod::dense), library})
    EXPECT_LT(largest(rod(p, linear) - expected), 1e-6) << static_cast<int>(linear.method);
  EXPECT_GT(solved, 0);
  const double slope = -kDuration * expected[5].item<double>();
  for (const LinearOptions& linear : {by_method(LinearMethod::gmres), library}) {
    const auto value = [&](const Tensor& p) { return rod(p, linear)[5]; };
    EXPECT_NEAR(tower::jacfwd(value)(p).item<double>(), slope, 1e-6);
    EXPECT_NEAR(tower::grad(value)(p).item<double>(), slope, 1e-6);
  }
  // Each system of an ensemble has its own, compiled or not.
  const Tensor ps = vec({0.7, 20});
  const auto many = tower::vmap([](const Tensor& p) { return rod(p, by_method(LinearMethod::gmres)); });
  const auto fast = tower::compile(many);
  for (int call = 0; call < 3; ++call)
    EXPECT_LT(largest((call == 0 ? many(ps) : fast(ps)) - tower::vmap(rod_by_sines)(ps)), 1e-6) << call;
}

TEST(Odeint, AStepWhoseSystemsDoNotConvergeIsNotMade) {
  LinearOptions few = by_method(LinearMethod::gmres);
  few.iteration.max_steps = 3;
  const auto slope = [](const Tensor&, const Tensor& u) { return heat(u); };
  const auto run = [&](const std::optional<LinearOptions>& linear) {
    const OdeOptions options{.method = Ode::rodas5p, .rtol = 1e-3, .atol = 1e-3, .linear = linear};
    return tower::odeint(slope, waves({kPoints}), vec({0, 0.01}), options);
  };
  // Where steps are short, three products are enough.
  const auto found = run(few), by_factors = run(std::nullopt);
  EXPECT_EQ(found.status.item<int64_t>(), 0);
  EXPECT_GT(found.rejected.item<int64_t>(), by_factors.rejected.item<int64_t>());
  EXPECT_LT(largest(found.ys[1] -
                    at::mv(at::linalg_matrix_exp(0.01 * tower::jacfwd(heat)(waves({kPoints}))), waves({kPoints}))),
            1e-2);
}

TEST(Odeint, SolversOfSystemsThatThereAreNotAreRefused) {
  const auto refused = [](const OdeOptions& options) {
    return message_of<tower::ArgumentError>([&] {
      tower::odeint([](const Tensor&, const Tensor& y) { return -y; }, vec({1}), vec({0, 1}), options);
    });
  };
  EXPECT_TRUE(contains(refused({.linear = LinearOptions()}), "linear systems are solved, and only rodas5p"));
  OdeOptions adjoint{.method = Ode::rodas5p, .adjoint = tower::OdeAdjoint::continuous, .linear = LinearOptions()};
  adjoint.linear->solve = [](const Function&, const Tensors& b) { return b; };
  EXPECT_TRUE(contains(refused(adjoint), "the systems of the continuous adjoint are others than those"));
}

}  // namespace
