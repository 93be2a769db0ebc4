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
using tower::FitStatus;
using tower::FitTerm;
using tower::FitUnknowns;
using tower::FitUse;
using tower::Loss;

double largest(const Tensor& t) { return t.abs().max().item<double>(); }
bool is_minimum(const BlockFit& fit) {
  return fit.status.item<int64_t>() <= static_cast<int64_t>(FitStatus::small_step);
}
constexpr double kTiny = 1e-13;

// ---- a linear problem, and the same as one dense matrix ----

// Seven unknowns of two numbers, five of three; each of 40 blocks has one of either kind, and coefficients of its own;
// each unknown is drawn to zero a little.
struct LinearBlocks {
  int64_t left = 7, right = 5, blocks = 40;
  Tensor of_left = (at::arange(blocks) * 3) % left,
         of_right = (at::arange(blocks) * 2 + at::floor_divide(at::arange(blocks), 7)) % right;
  Tensor a = waves({blocks, 2, 2}, 0.3), b = waves({blocks, 2, 3}, 1.1), seen = waves({blocks, 2}, 2.3);
  Tensor held = at::zeros({left}, at::kBool);

  BlockLeastSquares problem(const BlockFitOptions& options, const Tensor& seen_) const {
    const auto residual = [](const Tensor& x, const Tensor& y, const std::pair<Tensor, Tensor>& m, const Tensor& s) {
      return at::mv(m.first, x) + at::mv(m.second, y) - s;
    };
    const auto small = [](const Tensor& x) { return 0.1 * x; };
    return BlockLeastSquares(
        {{.x0 = at::ones({left, 2}, at::kDouble), .held = held}, {.x0 = at::ones({right, 3}, at::kDouble)}},
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
  EXPECT_EQ(fit(data, 1).status.item<int64_t>(), static_cast<int64_t>(FitStatus::max_steps));
  EXPECT_EQ(fit(data * kTiny / 0, 100).status.item<int64_t>(), static_cast<int64_t>(FitStatus::not_finite));
  const auto slope = [&](int64_t max_steps) {
    return tower::grad([&](const Tensor& d) { return fit(d, max_steps).x[0].sum(); })(data);
  };
  EXPECT_LT(largest(slope(100) - 0.2), 1e-7);
  EXPECT_TRUE(slope(1).isnan().all().item<bool>());
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
