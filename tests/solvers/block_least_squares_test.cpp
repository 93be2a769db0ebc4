// BlockLeastSquares. Oracles: LibTorch's solutions of linear problems as dense matrices, the gradient of the cost as it
// is written in angles, finite differences of fits, closed forms.
#include "tower/block_least_squares.h"

#include <cmath>
#include <limits>

#include "support/oracles.h"
#include "support/prelude.h"
#include "tower/compile.h"
#include "tower/transforms.h"

namespace {

using tower::BlockFit;
using tower::BlockFitOptions;
using tower::BlockLeastSquares;
using tower::FitMethod;
using tower::FitSolver;
using tower::FitStatus;
using tower::FitTerm;
using tower::FitUnknowns;
using tower::FitUse;
using tower::Loss;

double largest(const Tensor& t) { return t.abs().max().item<double>(); }
bool is_minimum(const BlockFit& fit) {
  return fit.status.item<int64_t>() <= static_cast<int64_t>(FitStatus::small_step);
}
constexpr double kTiny = 1e-13, kInfinite = std::numeric_limits<double>::infinity();

// ---- a linear problem, and the same as one dense matrix ----

// Seven unknowns of two numbers, five of three; each of 40 blocks has one of either kind, and coefficients of its own;
// each unknown is drawn to zero a little.
struct LinearBlocks {
  int64_t left = 7, right = 5, blocks = 40;
  Tensor of_left = (at::arange(blocks) * 3) % left,
         of_right = (at::arange(blocks) * 2 + at::floor_divide(at::arange(blocks), 7)) % right;
  Tensor a = waves({blocks, 2, 2}, 0.3), b = waves({blocks, 2, 3}, 1.1), seen = waves({blocks, 2}, 2.3);
  Tensor held = at::zeros({left}, at::kBool), lower, upper;

  BlockLeastSquares problem(const BlockFitOptions& options, const Tensor& seen_) const {
    const auto residual = [](const Tensor& x, const Tensor& y, const std::pair<Tensor, Tensor>& m, const Tensor& s) {
      return at::mv(m.first, x) + at::mv(m.second, y) - s;
    };
    const auto small = [](const Tensor& x) { return 0.1 * x; };
    return BlockLeastSquares(
        {{.x0 = at::ones({left, 2}, at::kDouble), .held = held, .lower = lower, .upper = upper},
         {.x0 = at::ones({right, 3}, at::kDouble)}},
        {tower::fit_term(residual, {{0, of_left}, {1, of_right}}, std::pair(a, b), seen_),
         tower::fit_term(small, {{0, at::arange(left)}}), tower::fit_term(small, {{1, at::arange(right)}})},
        options);
  }

  // The whole Jacobian, and what it is to reach.
  std::pair<Tensor, Tensor> dense(const Tensor& seen_) const {
    const int64_t n = 2 * left + 3 * right;
    const Tensor matrix = at::zeros({2 * blocks, n}, at::kDouble);
    for (int64_t k = 0; k < blocks; ++k) {
      const int64_t i = 2 * of_left[k].item<int64_t>(), j = 2 * left + 3 * of_right[k].item<int64_t>();
      matrix.narrow(0, 2 * k, 2).narrow(1, i, 2).copy_(a[k]);
      matrix.narrow(0, 2 * k, 2).narrow(1, j, 3).copy_(b[k]);
    }
    return {at::cat({matrix, 0.1 * at::eye(n, at::kDouble)}),
            at::cat({seen_.reshape({-1}), at::zeros({n}, at::kDouble)})};
  }
  // Of the free numbers, those of held unknowns being one.
  Tensor expected(const Tensor& seen_) const {
    const auto [matrix, to] = dense(seen_);
    const Tensor fixed =
        at::cat({held.unsqueeze(1).expand({left, 2}).reshape({-1}), at::zeros({3 * right}, at::kBool)});
    const Tensor free = fixed.logical_not().nonzero().squeeze(1), part = matrix.index_select(1, free);
    const Tensor rest = to - at::mv(matrix, fixed.to(at::kDouble));
    return fixed.to(at::kDouble).index_add(0, free, at::linalg_solve(part.t().mm(part), at::mv(part.t(), rest)));
  }
};
Tensor joined_x(const BlockFit& fit) { return at::cat({fit.x[0].reshape({-1}), fit.x[1].reshape({-1})}); }

TEST(BlockLeastSquares, LinearFitsAreThoseOfTheDenseMatrixWhicheverUnknownsGoFirst) {
  LinearBlocks linear;
  for (const bool some_held : {false, true}) {
    if (some_held) linear.held[2] = linear.held[5] = true;
    const Tensor expected = linear.expected(linear.seen);
    for (const FitMethod method : {FitMethod::levenberg_marquardt, FitMethod::dogleg})
      for (const std::optional<size_t> eliminate :
           {std::optional<size_t>(), std::optional<size_t>(0), std::optional<size_t>(1)}) {
        const BlockFitOptions options{
            .method = method, .eliminate = eliminate, .first_damping = 1e-12, .covariance = true};
        const BlockLeastSquares solve = linear.problem(options, linear.seen);
        EXPECT_EQ(solve.num_unknowns(), 29);
        EXPECT_EQ(solve.factored().first, eliminate ? (*eliminate == 0 ? 15 : 14) : 29);
        const BlockFit fit = solve();
        EXPECT_TRUE(is_minimum(fit));
        EXPECT_LT(largest(joined_x(fit) - expected), 1e-9) << some_held;
        const auto [matrix, to] = linear.dense(linear.seen);
        const double cost = 0.5 * (at::mv(matrix, expected) - to).square().sum().item<double>();
        EXPECT_NEAR(fit.cost.item<double>(), cost, 1e-12 * cost);
        // The covariance, by the inverse of the dense matrix.
        std::vector<int64_t> free;
        for (int64_t k = 0; k < 29; ++k)
          if (k >= 14 || !linear.held[k / 2].item<bool>()) free.push_back(k);
        const Tensor places = at::tensor(free), part = matrix.index_select(1, places);
        const Tensor inverse = at::zeros({29, 29}, at::kDouble);
        inverse.index_put_({places.unsqueeze(1), places}, at::linalg_inv(part.t().mm(part)));
        const double variance = 2 * cost / static_cast<double>(matrix.size(0) - part.size(1));
        for (int64_t k = 0; k < linear.left; ++k)
          EXPECT_LT(largest(fit.covariance[0][k] - variance * inverse.narrow(0, 2 * k, 2).narrow(1, 2 * k, 2)), 1e-9);
        for (int64_t k = 0; k < linear.right; ++k)
          EXPECT_LT(
              largest(fit.covariance[1][k] - variance * inverse.narrow(0, 14 + 3 * k, 3).narrow(1, 14 + 3 * k, 3)),
              1e-9);
      }
  }
}

TEST(BlockLeastSquares, SparseFactorsAreThoseOfTheDenseMatrix) {
  // A chain of 400 unknowns of two numbers: more than are factored densely.
  const int64_t n = 400;
  const Tensor from = at::arange(n - 1), step = waves({n - 1, 2}), at_ends = at::tensor({0, 399}, at::kLong);
  const auto difference = [](const Tensor& a, const Tensor& b, const Tensor& d) { return b - a - d; };
  const auto there = [](const Tensor& a, const Tensor& seen) { return a - seen; };
  const Tensor ends = vec({1, 2, 3, 4}).view({2, 2});
  const auto fit = BlockLeastSquares(
      {{.x0 = at::zeros({n, 2}, at::kDouble)}},
      {tower::fit_term(difference, {{0, from}, {0, from + 1}}, step), tower::fit_term(there, {{0, at_ends}}, ends)},
      {.ftol = 0, .xtol = 0, .gtol = kTiny})();
  Tensor matrix = at::zeros({n + 1, n}, at::kDouble);
  for (int64_t k = 0; k + 1 < n; ++k) matrix[k][k] = -1, matrix[k][k + 1] = 1;
  matrix[n - 1][0] = matrix[n][n - 1] = 1;
  const Tensor expected = std::get<0>(at::linalg_lstsq(matrix, at::cat({step, ends})));
  EXPECT_LT(largest(fit.x[0] - expected), 1e-7);
  EXPECT_TRUE(is_minimum(fit));
}

// ---- other solvers ----

TEST(BlockLeastSquares, ConjugateGradientsAndQrComeToTheDenseMatrixsSolution) {
  LinearBlocks linear;
  linear.held[2] = linear.held[5] = true;
  const Tensor expected = linear.expected(linear.seen);
  for (const std::optional<size_t> eliminate :
       {std::optional<size_t>(), std::optional<size_t>(0), std::optional<size_t>(1)}) {
    const auto fit = linear.problem({.eliminate = eliminate,
                                     .solver = FitSolver::conjugate_gradients,
                                     .cg_tolerance = 1e-3,
                                     .ftol = kTiny,
                                     .xtol = kTiny,
                                     .gtol = kTiny},
                                    linear.seen)();
    EXPECT_TRUE(is_minimum(fit));
    EXPECT_LT(largest(joined_x(fit) - expected), 1e-7);
  }
  const auto direct = linear.problem({.covariance = true}, linear.seen)();
  for (const FitMethod method : {FitMethod::levenberg_marquardt, FitMethod::dogleg}) {
    const auto fit = linear.problem(
        {.method = method, .solver = FitSolver::qr, .ftol = kTiny, .xtol = kTiny, .gtol = kTiny, .covariance = true},
        linear.seen)();
    EXPECT_TRUE(is_minimum(fit));
    EXPECT_LT(largest(joined_x(fit) - expected), 1e-9);
    for (size_t k = 0; k < 2; ++k) EXPECT_LT(largest(fit.covariance[k] - direct.covariance[k]), 1e-9);
  }
}

TEST(BlockLeastSquares, QrFindsWhatNormalEquationsLose) {
  // The coefficients, all one, of a polynomial of degree sixteen on 0 to 1: the condition of the Jacobian, with columns
  // of one length, has a square beyond the digits there are.
  const Tensor t = at::linspace(0, 1, 40, at::kDouble), powers = t.unsqueeze(1).pow(at::arange(17, at::kDouble));
  const auto error = [](const Tensor& x, const Tensor& row, const Tensor& y) { return at::dot(row, x) - y; };
  const auto distance = [&](FitSolver solver) {
    const BlockFitOptions options{
        .solver = solver, .ftol = 0, .xtol = 0, .gtol = 1e-15, .max_steps = 30, .first_damping = 1e-20};
    const auto fit = BlockLeastSquares(
        {{.x0 = at::zeros({1, 17}, at::kDouble)}},
        {tower::fit_term(error, {{0, at::zeros({40}, at::kLong)}}, powers, powers.sum(1))}, options)();
    return largest(fit.x[0] - 1);
  };
  EXPECT_LT(distance(FitSolver::qr), 1e-3);
  EXPECT_GT(distance(FitSolver::cholesky), 1e-1);
}

// ---- bounds ----

// Whether x is the minimum of a linear fit between bounds: where the gradient, by the dense matrix, is zero, or goes
// beyond the bound that x is at.
void expect_bounded_minimum(const LinearBlocks& linear, const BlockFit& fit) {
  const auto [matrix, to] = linear.dense(linear.seen);
  const Tensor x = joined_x(fit), gradient = at::mv(matrix.t(), at::mv(matrix, x) - to);
  const Tensor fixed = linear.held.unsqueeze(1).expand({linear.left, 2}), left = fit.x[0];
  const Tensor by_left = gradient.narrow(0, 0, 2 * linear.left).view({linear.left, 2});
  const Tensor below = left == linear.lower, above = left == linear.upper;
  EXPECT_TRUE((left >= linear.lower).logical_or(fixed).all().item<bool>());
  EXPECT_TRUE((left <= linear.upper).logical_or(fixed).all().item<bool>());
  EXPECT_TRUE((by_left >= 0).logical_or(below.logical_and(fixed.logical_not()).logical_not()).all().item<bool>());
  EXPECT_TRUE((by_left <= 0).logical_or(above.logical_and(fixed.logical_not()).logical_not()).all().item<bool>());
  const Tensor free = below.logical_or(above).logical_or(fixed).logical_not();
  EXPECT_LT(largest(at::where(free, by_left, 0.)), 1e-6);
  EXPECT_LT(largest(gradient.narrow(0, 2 * linear.left, 3 * linear.right)), 1e-6);
  EXPECT_GT(below.sum().item<int64_t>() + above.sum().item<int64_t>(), 2);
  EXPECT_GT(free.sum().item<int64_t>(), 2);
}

TEST(BlockLeastSquares, BetweenBoundsLinearFitsAreTheMinimumWhateverSolvesThem) {
  LinearBlocks linear;
  linear.lower = vec({-0.2, -kInfinite}), linear.upper = vec({0.3, 0.25});
  linear.held[2] = linear.held[5] = true;
  for (const BlockFitOptions& options : {BlockFitOptions{},
                                         {.eliminate = 0},
                                         {.eliminate = 1},
                                         {.method = FitMethod::dogleg},
                                         {.method = FitMethod::dogleg, .eliminate = 0},
                                         {.solver = FitSolver::qr},
                                         {.eliminate = 0, .solver = FitSolver::conjugate_gradients},
                                         {.eliminate = 1, .solver = FitSolver::conjugate_gradients}}) {
    BlockFitOptions tight = options;
    tight.ftol = tight.xtol = tight.gtol = 1e-12;
    tight.covariance = options.solver != FitSolver::conjugate_gradients;
    const auto fit = linear.problem(tight, linear.seen)();
    EXPECT_TRUE(is_minimum(fit));
    expect_bounded_minimum(linear, fit);
    if (!tight.covariance) continue;
    const Tensor at_bound = (fit.x[0] == linear.lower).logical_or(fit.x[0] == linear.upper);
    EXPECT_EQ(largest(at::where(at_bound.unsqueeze(1), fit.covariance[0], 0.)), 0);
    EXPECT_EQ(largest(at::where(at_bound.unsqueeze(2), fit.covariance[0], 0.)), 0);
    EXPECT_TRUE(fit.covariance[1].isfinite().all().item<bool>());
  }
}

TEST(BlockLeastSquares, WhatABoundHoldsHasNoDerivativeAndOthersThatOfTheFit) {
  LinearBlocks linear;
  linear.lower = vec({-0.2, -kInfinite}), linear.upper = vec({0.3, 0.25});
  linear.held[5] = true;
  const Tensor along = waves({40, 2}, 0.8);
  for (const FitSolver solver : {FitSolver::cholesky, FitSolver::qr, FitSolver::conjugate_gradients}) {
    BlockFitOptions options{.solver = solver, .ftol = kTiny, .xtol = kTiny, .gtol = kTiny};
    if (solver != FitSolver::qr) options.eliminate = 0;
    const BlockLeastSquares solve = linear.problem(options, linear.seen);
    const auto fitted = [&](const Tensor& seen) { return joined_x(solve({linear.a, linear.b, seen})); };
    const Tensor expected = (fitted(linear.seen + 1e-5 * along) - fitted(linear.seen - 1e-5 * along)) / 2e-5;
    const Tensor tangent = tower::jvp(fitted, linear.seen, along).second;
    EXPECT_LT(largest(tangent - expected), 1e-5);
    const Tensor weights = waves({29}, 0.1);
    const auto sum = [&](const Tensor& seen) { return at::dot(weights, fitted(seen)); };
    EXPECT_NEAR((tower::grad(sum)(linear.seen) * along).sum().item<double>(), at::dot(weights, expected).item<double>(),
                1e-5);
    const Tensor left = solve().x[0], at_bound = (left == linear.lower).logical_or(left == linear.upper);
    EXPECT_GT(at_bound.sum().item<int64_t>(), 2);
    EXPECT_EQ(largest(at::where(at_bound, tangent.narrow(0, 0, 14).view({7, 2}), 0.)), 0);
    // Two fits of a vmap, of which bounds hold other numbers.
    const auto both = tower::vmap([&](const Tensor& seen) { return tower::jvp(fitted, seen, along).second; })(
        at::stack({linear.seen, -linear.seen}));
    EXPECT_LT(largest(both[0] - tangent), 1e-9);
    EXPECT_LT(largest(both[1] - tower::jvp(fitted, -linear.seen, along).second), 1e-9);
  }
}

TEST(BlockLeastSquares, FitsBeginAtTheNearestPointBetweenBoundsAndEndAtThem) {
  // Rosenbrock's valley, of which the bound leaves the part up to x = 0.5: the minimum there is y = x².
  const auto valley = [](const Tensor& x) { return at::stack({10 * (x[1] - x[0].square()), 1 - x[0]}); };
  for (const FitMethod method : {FitMethod::levenberg_marquardt, FitMethod::dogleg}) {
    const auto fit = BlockLeastSquares({{.x0 = vec({-1.2, 1, 4, -3}).view({2, 2}), .upper = vec({0.5, kInfinite})}},
                                       {tower::fit_term(valley, {{0, at::arange(2)}})},
                                       {.method = method, .ftol = 1e-15, .xtol = 1e-15, .gtol = 1e-12})();
    EXPECT_TRUE(is_minimum(fit));
    EXPECT_LT(largest(fit.x[0] - vec({0.5, 0.25})), 1e-9);
    EXPECT_EQ(fit.x[0][0][0].item<double>(), 0.5);
  }
}

// ---- nonlinear, with rotations as they are: 2 by 2 matrices ----

Tensor turn(const Tensor& angle) {
  return at::stack({at::stack({angle.cos(), -angle.sin()}), at::stack({angle.sin(), angle.cos()})});
}

// Landmarks in the plane that frames see: each frame has a rotation, which is a matrix, and a place.
struct Frames {
  int64_t frames = 6, landmarks = 15;
  Tensor angles = 0.5 * waves({frames}), places = 2 * waves({frames, 2}, 0.4), points = 3 * waves({landmarks, 2}, 1.3);
  Tensor frame_of, point_of, seen;

  Frames() {
    const Tensor all = at::arange(frames * landmarks);
    const Tensor some = all.masked_select((all * 7) % 11 < 7);
    frame_of = at::floor_divide(some, landmarks), point_of = some % landmarks;
    const Tensor turned = at::stack([&] {
      Tensors rotations;
      for (const Tensor& angle : angles.unbind()) rotations.push_back(turn(angle));
      return rotations;
    }());
    const Tensor moved = (points.index_select(0, point_of) - places.index_select(0, frame_of)).unsqueeze(2);
    seen = at::bmm(turned.index_select(0, frame_of), moved).squeeze(2) + 0.01 * waves({some.size(0), 2}, 2.9);
  }

  BlockLeastSquares problem(const BlockFitOptions& options, const Loss& loss = Loss::squares()) const {
    const auto error = [](const Tensor& rotation, const Tensor& place, const Tensor& point, const Tensor& seen) {
      return at::mv(rotation, point - place) - seen;
    };
    const auto retract = [](const Tensor& r, const Tensor& d) { return at::mm(r, turn(d[0])); };
    Tensor first = at::zeros({frames}, at::kBool);
    first[0] = true;
    const Tensor eye = at::eye(2, at::kDouble).expand({frames, 2, 2}).clone();
    eye[0].copy_(turn(angles[0]));
    const Tensor start = 0.8 * places;
    start[0].copy_(places[0]);
    FitTerm term = tower::fit_term(error, {{0, frame_of}, {1, frame_of}, {2, point_of}}, seen);
    term.loss = loss;
    return BlockLeastSquares({{.x0 = eye, .retract = retract, .freedom = 1, .held = first},
                              {.x0 = start, .held = first},
                              {.x0 = 0.8 * points}},
                             {term}, options);
  }
  // The same cost of angles.
  Tensor cost(const Tensor& a, const Tensor& p, const Tensor& x, const Tensor& s, const Loss& loss) const {
    const Tensor angle = a.index_select(0, frame_of);
    const Tensor d = x.index_select(0, point_of) - p.index_select(0, frame_of), u = d.select(1, 0), v = d.select(1, 1);
    const Tensor r = at::stack({angle.cos() * u - angle.sin() * v, angle.sin() * u + angle.cos() * v}, 1) - s;
    const Tensor squares = r.square().sum(1);
    if (loss.kind() == Loss::Kind::squares) return 0.5 * squares.sum();
    const double c = loss.scale();
    return 0.5 * c * c * (squares / (c * c)).log1p().sum();
  }
};

TEST(BlockLeastSquares, RotationsStayRotationsAndTheCostIsStationary) {
  const Frames f;
  for (const Loss loss : {Loss::squares(), Loss::cauchy(0.05)})
    for (const FitMethod method : {FitMethod::levenberg_marquardt, FitMethod::dogleg}) {
      const BlockFit fit = f.problem({.method = method, .eliminate = 2, .ftol = 0, .xtol = 0, .gtol = 3e-8}, loss)();
      EXPECT_TRUE(is_minimum(fit)) << fit.status;
      EXPECT_LT(largest(at::bmm(fit.x[0], fit.x[0].transpose(1, 2)) - at::eye(2, at::kDouble)), 1e-12);
      EXPECT_TRUE(same(fit.x[1][0], f.places[0]));
      EXPECT_LT(largest(fit.x[2] - f.points), 0.05);
      const Tensor a = at::atan2(fit.x[0].select(1, 1).select(1, 0), fit.x[0].select(1, 0).select(1, 0));
      const auto cost = [&](const Tensor& angle, const Tensor& p, const Tensor& x) {
        return f.cost(angle, p, x, f.seen, loss);
      };
      EXPECT_NEAR(cost(a, fit.x[1], fit.x[2]).item<double>(), fit.cost.item<double>(), 1e-14);
      const auto [by_a, by_p, by_x] = tower::grad<0, 1, 2>(cost)(a, fit.x[1], fit.x[2]);
      // A smaller gradient changes the cost by less than its rounding.
      EXPECT_LT(largest(by_a.slice(0, 1)), 1e-6);
      EXPECT_LT(largest(by_p.slice(0, 1)), 1e-6);
      EXPECT_LT(largest(by_x), 1e-6);
    }
}

TEST(BlockLeastSquares, DerivativesByTheDataAreThoseOfTheFit) {
  const Frames f;
  const BlockLeastSquares solve = f.problem({.eliminate = 2, .ftol = 0, .xtol = 0, .gtol = 1e-9});
  const Tensor along = waves({f.seen.size(0), 2}, 0.9), weights = waves({f.landmarks, 2}, 0.2);
  const auto fitted = [&](const Tensor& seen) {
    const BlockFit fit = solve({seen});
    return (weights * fit.x[2]).sum() + fit.x[0].select(1, 1).select(1, 0).sum() + fit.x[1].sum();
  };
  constexpr double h = 1e-3;
  const Tensor expected = (fitted(f.seen + h * along) - fitted(f.seen - h * along)) / (2 * h);
  EXPECT_LT(largest(tower::jvp(fitted, f.seen, along).second - expected), 1e-5);
  EXPECT_LT(largest((tower::grad(fitted)(f.seen) * along).sum() - expected), 1e-5);
  // LibTorch's autograd goes through it, too; and second derivatives.
  const Tensor leaf = f.seen.clone().requires_grad_();
  fitted(leaf).backward();
  EXPECT_LT(largest((leaf.grad() * along).sum() - expected), 1e-5);
  const auto slope = [&](const Tensor& seen) { return tower::jvp(fitted, seen, along).second; };
  const Tensor bend = (slope(f.seen + h * along) - slope(f.seen - h * along)) / (2 * h);
  EXPECT_LT(largest(tower::jvp(slope, f.seen, along).second - bend), 1e-4);
}

TEST(BlockLeastSquares, EachFitOfAVmapIsAsAloneAndSoIsACompiledOne) {
  const Frames f;
  const BlockLeastSquares solve = f.problem({.eliminate = 2});
  const auto fit = [&](const Tensor& seen) { return solve({seen}).x[2]; };
  const Tensor both = at::stack({f.seen, f.seen + 0.02 * waves({f.seen.size(0), 2})});
  const Tensor many = tower::vmap(fit)(both);
  const auto compiled = tower::compile(tower::vmap(fit));
  for (int64_t k = 0; k < 2; ++k) EXPECT_LT(largest(many[k] - fit(both[k])), 1e-12);
  for (int call = 0; call < 3; ++call) EXPECT_LT(largest(compiled(both) - many), 1e-12);
  EXPECT_EQ(tower::vmap(fit)(both.slice(0, 0, 0)).sizes(), at::IntArrayRef({0, f.landmarks, 2}));
  const auto sum = [&](const Tensor& seen) { return fit(seen).square().sum(); };
  const Tensor by_data = tower::vmap(tower::grad(sum))(both);
  for (int64_t k = 0; k < 2; ++k) EXPECT_LT(largest(by_data[k] - tower::grad(sum)(both[k])), 1e-9);
}

TEST(BlockLeastSquares, TheStatusSaysHowItEndedAndWithoutAMinimumDerivativesAreNan) {
  const auto fit = [](const Tensor& data, int64_t max_steps) {
    const auto residual = [](const Tensor& x, const Tensor& d) { return x.exp() - d; };
    return BlockLeastSquares({{.x0 = at::zeros({1, 1}, at::kDouble)}},
                             {tower::fit_term(residual, {{0, at::zeros({2}, at::kLong)}}, data)},
                             {.max_steps = max_steps})({data});
  };
  const Tensor data = vec({2, 3}).view({2, 1});
  EXPECT_NEAR(fit(data, 100).x[0].item<double>(), std::log(2.5), 1e-7);
  std::vector<double> costs;
  const auto told = [&](int64_t step, double cost) {
    EXPECT_EQ(step, static_cast<int64_t>(costs.size()));
    costs.push_back(cost);
  };
  const auto residual = [](const Tensor& x) { return x.exp() - 2; };
  const auto told_of =
      BlockLeastSquares({{.x0 = at::zeros({1, 1}, at::kDouble)}},
                        {tower::fit_term(residual, {{0, at::zeros({1}, at::kLong)}})}, {.progress = told})();
  EXPECT_EQ(static_cast<int64_t>(costs.size()), told_of.steps.item<int64_t>() + 1);
  EXPECT_EQ(costs.front(), 0.5);
  EXPECT_EQ(costs.back(), told_of.cost.item<double>());
  EXPECT_EQ(fit(data, 1).status.item<int64_t>(), static_cast<int64_t>(FitStatus::max_steps));
  EXPECT_EQ(fit(data * kTiny / 0, 100).status.item<int64_t>(), static_cast<int64_t>(FitStatus::not_finite));
  const auto slope = [&](int64_t max_steps) {
    return tower::grad([&](const Tensor& d) { return fit(d, max_steps).x[0].sum(); })(data);
  };
  EXPECT_LT(largest(slope(100) - 0.2), 1e-7);
  EXPECT_TRUE(slope(1).isnan().all().item<bool>());
}

TEST(BlockLeastSquares, WhereTheCostCannotTellTheGradientDoes) {
  // Residuals that are differences of numbers that are larger by far: their cost is of few digits.
  const Tensor t = at::linspace(0, 3, 20, at::kDouble), y = 2 * (-0.7 * t).exp() + 0.05 * (7 * t).cos();
  for (const FitMethod method : {FitMethod::levenberg_marquardt, FitMethod::dogleg}) {
    const auto fitted = [&](double offset) {
      const auto error = [offset](const Tensor& x, const Tensor& at, const Tensor& seen) {
        return x[0] * (-x[1] * at).exp() + offset - seen;
      };
      return BlockLeastSquares({{.x0 = at::ones({1, 2}, at::kDouble)}},
                               {tower::fit_term(error, {{0, at::zeros({20}, at::kLong)}}, t, y + offset)},
                               {.method = method, .ftol = 0, .xtol = 0, .gtol = 1e-9})();
    };
    const BlockFit exact = fitted(0);
    for (const double offset : {1e3, 1e6}) {
      const BlockFit fit = fitted(offset);
      EXPECT_EQ(fit.status.item<int64_t>(), static_cast<int64_t>(FitStatus::small_gradient)) << offset;
      EXPECT_LT(largest(fit.x[0] - exact.x[0]), 1e-8) << offset;
    }
  }
}

TEST(BlockLeastSquares, SinglePrecisionIsFitted) {
  const auto residual = [](const Tensor& x, const Tensor& d) { return x * x - d; };
  const auto fit =
      BlockLeastSquares({{.x0 = at::ones({2, 1})}},
                        {tower::fit_term(residual, {{0, at::arange(2)}}, at::full({2, 1}, 4.f))}, {.eliminate = 0})();
  EXPECT_EQ(fit.x[0].scalar_type(), at::kFloat);
  EXPECT_LT(largest(fit.x[0] - 2), 1e-4);
}

TEST(BlockLeastSquares, WrongArgumentsAreRefused) {
  const Tensor x = at::ones({3, 2}, at::kDouble), rows = at::arange(3);
  const auto residual = [](const Tensor& a, const Tensor& d) { return a - d; };
  const auto term = [&](const Tensor& which, const Tensor& data) {
    return tower::fit_term(residual, {{0, which}}, data);
  };
  const auto refused = [](const std::vector<FitUnknowns>& unknowns, const std::vector<FitTerm>& terms,
                          const BlockFitOptions& options = {}) {
    return message_of<tower::ArgumentError>([&] { BlockLeastSquares(unknowns, terms, options)(); });
  };
  const FitTerm good = term(rows, x);
  EXPECT_TRUE(contains(refused({}, {good}), "block_least_squares: there are no unknowns."));
  EXPECT_TRUE(contains(refused({{.x0 = x}}, {}), "there are no terms."));
  EXPECT_TRUE(contains(refused({{.x0 = rows}}, {good}), "the unknowns 0 start at Long [3]"));
  EXPECT_TRUE(contains(refused({{.x0 = x, .freedom = 2}}, {good}), "have freedom 2, and no retract"));
  EXPECT_TRUE(
      contains(refused({{.x0 = x, .held = rows}}, {good}), "held of the unknowns 0 is Long [3]; it is Bool [3]"));
  EXPECT_TRUE(contains(refused({{.x0 = x}}, {term(rows + 1, x)}), "take the unknowns 0 from 1 to 3, and there are 3."));
  EXPECT_TRUE(contains(refused({{.x0 = x}}, {term(x, x)}), "take is Double [3, 2]; it is Long [blocks]"));
  EXPECT_TRUE(
      contains(refused({{.x0 = x}}, {term(rows, x.slice(0, 0, 2))}), "data of term 0 are Double [2, 2], and it has 3"));
  EXPECT_TRUE(contains(refused({{.x0 = x}}, {good}, {.eliminate = 1}), "eliminate is 1, and there are 1 kinds"));
  EXPECT_TRUE(contains(refused({{.x0 = x}}, {good}, {.ftol = -1}), "ftol is -1"));
  EXPECT_TRUE(contains(refused({{.x0 = x}}, {good}, {.first_damping = 0}), "first_damping is 0"));
  EXPECT_TRUE(contains(refused({{.x0 = x}}, {good}, {.cg_tolerance = 1}), "cg_tolerance is 1.000000; it is between"));
  EXPECT_TRUE(contains(refused({{.x0 = x}}, {good}, {.eliminate = 0, .solver = FitSolver::qr}),
                       "eliminate is 0, and the solver qr, which has factors of the whole Jacobian"));
  EXPECT_TRUE(
      contains(refused({{.x0 = x}}, {good}, {.method = FitMethod::dogleg, .solver = FitSolver::conjugate_gradients}),
               "the method dogleg takes the whole step"));
  EXPECT_TRUE(contains(refused({{.x0 = x}}, {good}, {.solver = FitSolver::conjugate_gradients, .covariance = true}),
                       "covariances take factors"));
  EXPECT_TRUE(contains(refused({{.x0 = x, .lower = vec({1, 2, 3})}}, {good}),
                       "lower of the unknowns 0 is Double [3], and they are Double [3, 2]. It is real numbers"));
  EXPECT_TRUE(contains(refused({{.x0 = x, .upper = x / 0 * 0}}, {good}), "upper of the unknowns 0 is Double [3, 2]"));
  EXPECT_TRUE(contains(refused({{.x0 = x, .lower = x, .upper = vec({2, 0.5})}}, {good}),
                       "some numbers of lower of the unknowns 0 are above those of upper."));
  const auto add = [](const Tensor& a, const Tensor& d) { return a + d; };
  EXPECT_TRUE(contains(refused({{.x0 = x, .retract = add, .freedom = 2, .upper = x}}, {good}),
                       "upper of the unknowns 0 is there, and so is their retract"));
  const auto pair = [](const Tensor& a, const Tensor& b) { return a - b; };
  EXPECT_TRUE(contains(refused({{.x0 = x}}, {tower::fit_term(pair, {{0, rows}, {0, rows}})}, {.eliminate = 0}),
                       "term 0 takes two of the unknowns 0, which are to be eliminated first"));
  EXPECT_TRUE(contains(refused({{.x0 = x}}, {{.residual = good.residual, .uses = {{3, rows}}, .data = {x}}}),
                       "takes of the unknowns 3, and there are 1 kinds"));
  const auto to_float = [](const Tensor& a) { return a.to(at::kFloat); };
  EXPECT_TRUE(
      contains(refused({{.x0 = x}}, {tower::fit_term(to_float, {{0, rows}})}), "gives Float [2], and unknowns are"));
  const BlockLeastSquares solve({{.x0 = x}}, {good});
  EXPECT_TRUE(contains(message_of<tower::ArgumentError>([&] { solve({x.slice(0, 1)}); }),
                       "data 0 are Double [2, 2], and the terms' own are Double [3, 2]"));
  // What is captured is not seen.
  const auto captures = [&](const Tensor& scale) {
    const auto scaled = [scale](const Tensor& a, const Tensor& d) { return scale * a - d; };
    return BlockLeastSquares({{.x0 = x}}, {tower::fit_term(scaled, {{0, rows}}, x)})().x[0].sum();
  };
  const Tensor one = at::ones({}, at::kDouble);
  EXPECT_TRUE(contains(message_of<tower::UnsupportedError>([&] { tower::grad(captures)(one); }),
                       "a residual, or a retract, captured a tensor of a transform, Double []. They are kept"));
  EXPECT_TRUE(contains(message_of<tower::UnsupportedError>([&] { tower::vmap(captures)(one.expand({2})); }),
                       "captured a tensor of a transform"));
  // What knows its pattern is made outside of what is compiled.
  EXPECT_TRUE(contains(message_of<tower::UnsupportedError>([&] { tower::compile(captures)(one); }),
                       "leave it outside of the compiled function"));
  EXPECT_TRUE(contains(message_of<tower::UnsupportedError>([&] { captures(one.clone().requires_grad_()); }),
                       "the residual of term 0 uses a tensor that it captured and that requires grad"));
  EXPECT_NEAR(captures(2 * one).item<double>(), 3, 1e-6);
}

}  // namespace
