// least_squares: a while_loop over damped steps, written for one fit, below every level that differentiates. What it
// finds is an implicit function of what the residuals captured: a root of the gradient of the cost, and of the distance
// to the bound where one holds a number.
#include "tower/least_squares.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>

#include "core/tensor_lists.h"
#include "solvers/dense.h"
#include "solvers/implicit.h"
#include "solvers/losses.h"
#include "solvers/vectors.h"
#include "tower/errors.h"
#include "tower/loops.h"

namespace tower {

using dynamic::Tensors;

namespace {

int64_t number(FitStatus status) { return static_cast<int64_t>(status); }
constexpr int64_t kGoesOn = -1;
// Up to so many unknowns the Jacobian's columns are tensors of their own: no larger than the residuals, they go into
// kernels where the matrix would be too large for one lane.
constexpr int64_t kFewColumns = 8;

// The cost at a point, its gradient, and the matrix of the normal equations, near the Hessian.
struct Model {
  Tensor cost, gradient, matrix;
};

// Where x may be. Undefined tensors: everywhere.
struct Box {
  Tensor lower, upper;

  bool is_all() const { return !lower.defined(); }
  Tensor nearest(const Tensor& x) const { return is_all() ? x : at::minimum(at::maximum(x, lower), upper); }
  // Which numbers of x are at a bound and stay there, as the gradient would have them go beyond it.
  Tensor held_below(const Tensor& x, const Tensor& gradient) const {
    return at::logical_or(lower == upper, at::logical_and(x <= lower, gradient > 0));
  }
  Tensor held_above(const Tensor& x, const Tensor& gradient) const { return at::logical_and(x >= upper, gradient < 0); }
  Tensor held(const Tensor& x, const Tensor& gradient) const {
    return at::logical_or(held_below(x, gradient), held_above(x, gradient));
  }
  // What the gradient is of those that are free.
  Tensor free(const Tensor& x, const Tensor& gradient) const {
    return is_all() ? gradient : at::where(held(x, gradient), 0., gradient);
  }
  // What is zero at the solution.
  Tensor root(const Tensor& x, const Tensor& gradient) const {
    if (is_all()) return gradient;
    return at::where(held_below(x, gradient), x - lower, at::where(held_above(x, gradient), x - upper, gradient));
  }
  // A symmetric matrix without what ties those that are held to others.
  Tensor untied(const Tensor& matrix, const Tensor& x, const Tensor& gradient) const {
    if (is_all()) return matrix;
    const Tensor at_bound = held(x, gradient);
    return at::where(at::logical_or(at_bound.unsqueeze(1), at_bound), at::diag_embed(matrix.diagonal()), matrix);
  }
};

struct Fit {
  using Vector = std::function<Tensor(const Tensor&)>;
  Vector residuals;
  LeastSquaresOptions options;
  Box box;
  double epsilon;

  bool is_robust() const { return options.loss.kind() != Loss::Kind::squares; }
  // Of z = (r/c)².
  solvers::Contributions of(const Tensor& r) const {
    return solvers::contributions(options.loss.kind(), (r / options.loss.scale()).square());
  }

  // B. Triggs, P. F. McLauchlan, R. I. Hartley, A. W. Fitzgibbon, Bundle adjustment, a modern synthesis (2000), 4.3:
  // the rows of the Jacobian are scaled so that JᵀJ has the loss's second derivative. Where that is small or negative,
  // far out, a tenth of the weight by which the row is in the gradient is left: with less the model knows nothing of
  // that row.
  Model model(const Tensor& x) const {
    const bool is_narrow = x.numel() <= kFewColumns;
    const auto both = [this](const Tensors& at) {
      const Tensor r = residuals(at[0]);
      return std::pair(Tensors{r}, Tensors{r});
    };
    Tensors values, jacobian;
    dynamic::Function push;
    if (is_narrow) {
      std::tie(values, push) = dynamic::linearize([&](const Tensors& at) { return both(at).first; }, {x});
    } else {
      std::tie(jacobian, values) = dynamic::jacfwd(dynamic::FunctionWithAux(both), {0})({x});
    }
    const Tensor& r = values[0];
    Tensor cost = 0.5 * at::dot(r, r), first = r, curvature;
    if (is_robust()) {
      const solvers::Contributions rho = of(r);
      const double c = options.loss.scale();
      cost = 0.5 * c * c * rho.value.sum();
      first = rho.first * r;
      curvature = at::maximum(rho.first + 2 * rho.second * (r / c).square(), 0.1 * rho.first);
    }
    const auto weighted = [&](const Tensor& rows) {
      return !curvature.defined() ? rows : rows * (rows.dim() == 1 ? curvature : curvature.unsqueeze(1));
    };
    if (!is_narrow) {
      const Tensor transposed = jacobian[0].t();
      return {cost, at::mv(transposed, first), at::mm(transposed, weighted(jacobian[0]))};
    }
    Tensors columns, gradient, matrix;
    for (const Tensor& unit : at::eye(x.numel(), x.options()).unbind()) columns.push_back(push({unit})[0]);
    for (const Tensor& column : columns) gradient.push_back(at::dot(column, first));
    for (const Tensor& a : columns)
      for (const Tensor& b : columns) matrix.push_back(at::dot(a, weighted(b)));
    return {cost, at::stack(gradient), at::stack(matrix).view({x.numel(), x.numel()})};
  }

  // The gradient alone, by reverse mode: what is zero at the solution.
  Tensor gradient(const Tensor& x) const {
    const auto [r, pullback] = dynamic::vjp([this](const Tensors& at) { return Tensors{residuals(at[0])}; }, {x});
    return pullback({is_robust() ? of(r[0]).first * r[0] : r[0]})[0];
  }

  enum : size_t { kX, kCost, kGradient, kMatrix, kScales, kDamping, kGrowth, kStatus, kSteps };

  Tensors start(const Tensor& x0) const {
    Tensor x = box.nearest(x0);
    if (!box.is_all()) x = at::where(box.lower <= box.upper, x, std::numeric_limits<double>::quiet_NaN());
    const Model at = model(x);
    const Tensor scales = scales_of(at.matrix), one = at::ones_like(at.cost);
    const Tensor none = at::zeros({}, x.options().dtype(at::kLong));
    const Tensor status =
        at::where(finite(at), at::where(is_flat(at, x, scales), none + number(FitStatus::small_gradient), kGoesOn),
                  number(FitStatus::not_finite));
    return {x, at.cost, at.gradient, at.matrix, scales, one * options.first_damping, 2 * one, status, none};
  }

  static Tensor scales_of(const Tensor& matrix) {
    const Tensor squares = matrix.diagonal();
    return at::where(squares > 0, squares, 1.).sqrt();
  }
  static Tensor finite(const Model& at) {
    using solvers::all_finite;
    return at::logical_and(all_finite(at.cost), at::logical_and(all_finite(at.gradient), all_finite(at.matrix)));
  }
  Tensor is_flat(const Model& at, const Tensor& x, const Tensor& scales) const {
    return (box.free(x, at.gradient) / scales).abs().amax() <= options.gtol * (2 * at.cost).sqrt();
  }

  // NOTE [Where the cost cannot tell]
  // Near a minimum the cost changes by the square of what x does, and by less than its own rounding, which may be far
  // above epsilon: residuals are differences. The gradient still says which way to go. So where the cost changes, and
  // is to change, by less than √ε of it, a step is good, too, that makes the gradient smaller (as W. W. Hager and H.
  // Zhang, A new conjugate gradient method with guaranteed descent and an efficient line search, 2005, end searches
  // there); and a fit ends where the linear model promises no more than the rounding of the number that the cost is.

  // J. J. Moré, The Levenberg–Marquardt algorithm: implementation and theory (1978), for scales and ends; H. B.
  // Nielsen, Damping parameter in Marquardt's method (1999), for the damping.
  Tensors step(const Tensors& s) const {
    const Tensor &scales = s[kScales], &damping = s[kDamping];
    const Tensor slope = box.free(s[kX], s[kGradient]) / scales;
    const Tensor matrix = box.untied(s[kMatrix], s[kX], s[kGradient]) / scales.unsqueeze(1) / scales;
    const auto [factors, pivots, info] =
        at::linalg_lu_factor_ex(matrix + at::diag_embed(damping.expand({scales.numel()})));
    Tensor z = at::linalg_lu_solve(factors, pivots, -slope.unsqueeze(1)).squeeze(1);
    const Tensor there_without = s[kX] + z / scales, x = box.nearest(there_without);
    Tensor predicted, is_backward;
    if (box.is_all()) {
      predicted = 0.5 * at::dot(z, damping * z - slope);  // by the damped equations
    } else {
      z = (x - s[kX]) * scales;
      predicted = -at::dot(z, slope + 0.5 * at::mv(matrix, z));
      // What bounds left of it need not go downhill.
      is_backward = at::logical_and((x != there_without).any(), predicted <= 0);
    }
    const Model there = model(x);
    const Tensor gain = s[kCost] - there.cost;
    const Tensor ratio = gain / predicted, is_finite = finite(there);
    const double rounding = 4 * epsilon, blur = std::sqrt(epsilon);
    const Tensor is_blurred = at::logical_and(gain.abs() <= blur * s[kCost], predicted.abs() <= blur * s[kCost]);
    const Tensor is_flatter = (box.free(x, there.gradient) / scales).abs().amax() < slope.abs().amax();
    const Tensor good = at::logical_and(is_finite, at::logical_or(gain > 0, at::logical_and(is_blurred, is_flatter)));
    const auto chosen = [&](const Tensor& next, const Tensor& now) { return at::where(good, next, now); };
    const Tensor next_scales = chosen(at::maximum(scales, scales_of(there.matrix)), scales);
    const double ftol = std::max(options.ftol, rounding);
    const Tensor flat = at::logical_and(good, is_flat(there, x, next_scales));
    // Steps that damping or bounds make small say nothing.
    Tensor is_free = at::logical_and(is_finite, damping <= 1);
    if (is_backward.defined()) is_free = at::logical_and(is_free, is_backward.logical_not());
    const Tensor is_small = at::logical_and(gain.abs() <= ftol * s[kCost], ratio <= 2),
                 is_lost = at::logical_and(at::logical_and(is_blurred, gain <= 0), predicted <= rounding * s[kCost]);
    const Tensor settled =
        at::logical_and(at::logical_and(is_free, predicted <= ftol * s[kCost]), at::logical_or(is_small, is_lost));
    const Tensor near =
        at::logical_and(is_free, at::linalg_vector_norm(z) <=
                                     std::max(options.xtol, rounding) * at::linalg_vector_norm(scales * s[kX]));
    const Tensor given_up = at::logical_and(good.logical_not(), damping > 1 / (epsilon * epsilon));
    Tensor status = at::where(
        given_up, at::where(is_finite, s[kStatus] * 0 + number(FitStatus::stuck), number(FitStatus::not_finite)),
        s[kStatus]);
    status = at::where(near, number(FitStatus::small_step), status);
    status = at::where(settled, number(FitStatus::small_change), status);
    status = at::where(flat, number(FitStatus::small_gradient), status);
    const Tensor trust = at::where(is_blurred, 1., 2 * ratio - 1), less = (1 - trust * trust * trust).clamp(1. / 3, 2);
    return {chosen(x, s[kX]),
            chosen(there.cost, s[kCost]),
            chosen(there.gradient, s[kGradient]),
            chosen(there.matrix, s[kMatrix]),
            next_scales,
            damping * chosen(less, s[kGrowth]),
            at::where(good, 2., 2 * s[kGrowth]),
            status,
            s[kSteps] + 1};
  }

  // x, whether it is a minimum, cost, status, steps and covariance.
  Tensors solve(const Tensor& x0) const {
    const auto goes_on = [limit = options.max_steps](const Tensors& s) {
      return at::logical_and(s[kStatus] == kGoesOn, s[kSteps] < limit);
    };
    const auto body = [self = *this](const Tensors& s) { return self.step(s); };
    const Tensors s = dynamic::while_loop(goes_on, body, start(x0));
    const Tensor status = at::where(s[kStatus] == kGoesOn, number(FitStatus::max_steps), s[kStatus]);
    return {s[kX], status <= number(FitStatus::small_step), s[kCost], status, s[kSteps], covariance(s)};
  }

  Tensor covariance(const Tensors& s) const {
    const int64_t unknowns = s[kX].numel(), freedom = residuals(s[kX]).numel() - unknowns;
    if (freedom <= 0) return at::full_like(s[kMatrix], std::numeric_limits<double>::quiet_NaN());
    const Tensor scales = scales_of(s[kMatrix]), matrix = box.untied(s[kMatrix], s[kX], s[kGradient]);
    auto [inverse, info] = at::linalg_inv_ex(matrix / scales.unsqueeze(1) / scales);
    inverse = at::where(solvers::all_finite(inverse), inverse, std::numeric_limits<double>::quiet_NaN());
    if (!box.is_all()) {
      const Tensor held = box.held(s[kX], s[kGradient]);
      inverse = at::where(at::logical_or(held.unsqueeze(1), held), 0., inverse);
    }
    return 2 * s[kCost] / static_cast<double>(freedom) * (inverse / scales.unsqueeze(1) / scales);
  }
};

// The bounds as vectors like x, both or none.
Box box_of(const LeastSquaresOptions& options, const solvers::Unknowns& like) {
  if (!options.lower.defined() && !options.upper.defined()) return {};
  const auto of = [&](const Tensor& bound, const char* name, double none) {
    if (!bound.defined()) return at::full({like.size()}, none, like.options());
    if (c10::isComplexType(bound.scalar_type()) || (bound.numel() != 1 && bound.numel() != like.size()))
      throw ArgumentError(std::string("least_squares: ") + name + " is " + describe(bound) + ", and x0 has " +
                          std::to_string(like.size()) + " numbers. It is one real number, or one for each of them.");
    return bound.to(like.options().dtype()).reshape({-1}).expand({like.size()});
  };
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  return {of(options.lower, "lower", -kInfinite), of(options.upper, "upper", kInfinite)};
}

void check_options(const LeastSquaresOptions& options) {
  const auto check = [](double value, const char* name, bool may_be_zero) {
    if (!(value > 0 || (may_be_zero && value == 0)) || !std::isfinite(value))
      throw ArgumentError(std::string("least_squares: ") + name + " is " + std::to_string(value) + "; it is " +
                          (may_be_zero ? "not negative" : "positive") + ", and finite.");
  };
  check(options.loss.scale(), "the loss's scale", false);
  check(options.first_damping, "first_damping", false);
  check(options.ftol, "ftol", true);
  check(options.xtol, "xtol", true);
  check(options.gtol, "gtol", true);
  if (options.max_steps < 0)
    throw ArgumentError("least_squares: max_steps is " + std::to_string(options.max_steps) +
                        "; it must not be negative.");
}

}  // namespace

LeastSquaresFit<Tensors> dynamic::least_squares(const Function& residuals, const Tensors& x0,
                                                const LeastSquaresOptions& options) {
  check_options(options);
  const solvers::Unknowns like("least_squares", x0);
  const at::ScalarType dtype = x0[0].scalar_type();
  if (!c10::isFloatingType(dtype) || like.size() == 0)
    throw ArgumentError("least_squares: x0 is " + describe(x0[0]) +
                        ". It is real numbers, at least one; of complex ones, view_as_real.");
  const auto vector = [residuals, like, dtype](const Tensor& x) {
    const Tensors all = residuals(like.list(x));
    const solvers::Unknowns shape("least_squares: the residuals", all);
    if (all[0].scalar_type() != dtype)
      throw ArgumentError("least_squares: the residuals are " + describe(all[0]) + ", and x0 is of another dtype, " +
                          describe(x) + ". They are real numbers of one dtype.");
    return shape.vector(all, "the residuals");
  };
  const double epsilon = solvers::epsilon_of(dtype);
  const Fit fit{vector, options, box_of(options, like), epsilon};
  const auto root = [fit](const Tensors& x, const Tensors&) { return Tensors{fit.box.root(x[0], fit.gradient(x[0]))}; };
  const auto solver = [fit](const Tensors& start) { return fit.solve(start[0]); };
  enum : size_t { kX, kIsMinimum, kCost, kStatus, kSteps, kCovariance, kAll };
  // The Hessian is symmetric, but for the rows of bounds. Of x0 no derivative goes on.
  ImplicitOptions implicit;
  implicit.linear.symmetric = fit.box.is_all();
  solvers::leave_singular_as_nan("least_squares", like.size(), implicit.linear);
  const Tensors found = solvers::implicit_root_with_reports(
      "least_squares", root, solver, {like.own_vector(x0, "x0").detach()}, kAll - kIsMinimum, implicit);
  return {like.list(found[kX]), found[kCost], found[kStatus], found[kSteps], found[kCovariance]};
}

}  // namespace tower
