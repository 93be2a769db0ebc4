#include "solvers/block_steps.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "solvers/losses.h"
#include "solvers/vectors.h"
#include "tower/errors.h"

namespace tower::solvers {
namespace {

using dynamic::Tensors;

// The inverse of the matrix that is left to factor is made for covariances: 200 MB.
constexpr int64_t kMostToInvert = 5'000;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// A step that was found: its length, scaled, what the cost is to fall by, and whether nothing made it shorter.
struct BlockStep {
  BlockVector step;
  double length, predicted;
  bool is_free;
};

// One fit. J. J. Moré, The Levenberg–Marquardt algorithm: implementation and theory (1978), for scales, ends and the
// first radius; H. B. Nielsen, Damping parameter in Marquardt's method (1999), for the damping; M. J. D. Powell, A
// hybrid method for nonlinear equations (1970), for the dogleg.
class BlockSteps {
 public:
  BlockSteps(const BlockProblem& problem, Tensors x, const Tensors& data)
      : problem_(problem),
        data_(data),
        equations_(problem.pattern, problem.options.solver, problem.options.cg_tolerance),
        x_(problem.between_bounds(std::move(x))),
        epsilon_(epsilon_of(x_[0].scalar_type())),
        damping_(problem.options.first_damping) {
    scales_ = at_bound_ = equations_.zeros();
    if (!problem.has_bounds()) return;
    const auto all_of = [&](double none, Tensor FitUnknowns::*bound) {
      Tensors numbers;
      for (size_t k = 0; k < x_.size(); ++k) {
        const FitUnknowns& kind = problem.unknowns[k];
        numbers.push_back(!(kind.*bound).defined() ? at::full({x_[k].size(0), numbers_of_step(kind)}, none, at::kDouble)
                                                   : (kind.*bound).reshape({x_[k].size(0), numbers_of_step(kind)}));
      }
      return equations_.vector(numbers);
    };
    lower_ = all_of(-kInfinite, &FitUnknowns::lower);
    upper_ = all_of(kInfinite, &FitUnknowns::upper);
  }

  BlockSolution run() {
    cost_ = evaluate();
    if (!std::isfinite(cost_)) return solution(FitStatus::not_finite);
    radius_ = reach() / std::sqrt(damping_);
    const auto& progress = problem_.options.progress;
    if (progress) progress(0, cost_);
    FitStatus status = is_flat() ? FitStatus::small_gradient : FitStatus::max_steps;
    while (status == FitStatus::max_steps && steps_ < problem_.options.max_steps) {
      ++steps_;
      status = step();
      if (progress) progress(steps_, cost_);
    }
    return solution(status);
  }

  // At x the equations; whether J and r are finite.
  double evaluate() {
    values_.clear();
    double cost = 0;
    for (size_t t = 0; t < problem_.terms.size(); ++t) {
      auto [r, jacobians] = problem_.functions[t]->jacobians(x_, problem_.data_of(t, data_));
      const Loss& loss = problem_.terms[t].loss;
      cost += cost_of_residuals(loss, r).item<double>();
      // B. Triggs and others, Bundle adjustment (2000), 4.3, without the second derivatives of losses, which are not
      // positive: as Ceres has it.
      if (loss.kind() != Loss::Kind::squares) {
        const double c = loss.scale();
        const Tensor z = r.square().sum(1) / (c * c), weight = contributions(loss.kind(), z).first.sqrt();
        r = r * weight.unsqueeze(1);
        jacobians = jacobians * weight.unsqueeze(1).unsqueeze(2);
      }
      values_.push_back({r.to(at::kDouble).contiguous(), jacobians.to(at::kDouble).contiguous()});
    }
    equations_.assemble(values_);
    const double all =
        equations_.gradient().dot(equations_.gradient()) + equations_.diagonal().dot(equations_.diagonal());
    if (!std::isfinite(all)) return std::numeric_limits<double>::quiet_NaN();
    const auto larger = [](double scale, double square) {
      return std::max(scale, square > 0 ? std::sqrt(square) : 1.);
    };
    scales_ = scales_.with(equations_.diagonal(), larger);
    if (problem_.has_bounds()) {
      hold_below_and_above(equations_.vector(numbers()));
      equations_.hold(at_bound_);
    }
    return cost;
  }
  BlockEquations& equations() { return equations_; }

 private:
  // Those at a bound, beyond which the gradient would have them go: not zero.
  void hold_below_and_above(const BlockVector& x) {
    const BlockVector& gradient = equations_.gradient();
    const BlockVector below = x.with(lower_, [](double at, double least) { return at <= least ? 1. : 0.; }),
                      above = x.with(upper_, [](double at, double most) { return at >= most ? 1. : 0.; });
    at_bound_ = below.with(gradient, [](double is_there, double slope) { return slope > 0 ? is_there : 0.; });
    at_bound_ =
        at_bound_.with(above.with(gradient, [](double is_there, double slope) { return slope < 0 ? is_there : 0.; }),
                       [](double a, double b) { return a + b; });
    at_bound_ = at_bound_.with(below.with(above, times), [](double a, double both) { return a + both; });
  }

  FitStatus step() {
    const BlockFitOptions& options = problem_.options;
    const bool damped = options.method == FitMethod::levenberg_marquardt;
    std::optional<BlockStep> found = damped ? damped_step() : dogleg_step();
    const Tensors before = x_;
    if (found) move(*found);
    const double there = found ? cost() : std::numeric_limits<double>::quiet_NaN();
    const bool is_finite = std::isfinite(there), is_free = found && found->is_free && is_finite;
    const double gain = cost_ - there, ratio = found ? gain / found->predicted : 0;
    const double rounding = 4 * epsilon_ * cost_, ftol = std::max(options.ftol * cost_, rounding);
    // NOTE [Where the cost cannot tell], src/solvers/least_squares.cpp
    const double blur = std::sqrt(epsilon_) * cost_;
    const bool is_blurred = is_finite && std::abs(gain) <= blur && std::abs(found->predicted) <= blur;
    const bool settled =
        is_free && found->predicted <= ftol &&
        ((std::abs(gain) <= ftol && ratio <= 2) || (is_blurred && gain <= 0 && found->predicted <= rounding));
    const bool near = is_free && found->length <= std::max(options.xtol, 4 * epsilon_) * length_of_x();
    const bool may_be_good = is_finite && (gain > 0 || is_blurred), good = may_be_good && accept(there, gain > 0);
    if (!good) x_ = before;
    if (may_be_good && !good) evaluate();
    if (damped) {
      const double trust = is_blurred ? 1 : 2 * ratio - 1;
      damping_ *= good ? std::clamp(1 - trust * trust * trust, 1. / 3, 2.) : growth_;
      growth_ = good ? 2 : 2 * growth_;
    } else if (!good || (ratio < 0.25 && !is_blurred)) {
      radius_ = 0.5 * std::min(radius_, found ? found->length : radius_);
    } else if (ratio > 0.75) {
      radius_ = std::max(radius_, 3 * found->length);
    }
    if (good && is_flat()) return FitStatus::small_gradient;
    if (settled) return FitStatus::small_change;
    if (near) return FitStatus::small_step;
    if (good) return FitStatus::max_steps;
    const bool given_up = damped ? damping_ > 1 / (epsilon_ * epsilon_) : radius_ < epsilon_ * epsilon_ * reach();
    return !given_up ? FitStatus::max_steps : is_finite ? FitStatus::stuck : FitStatus::not_finite;
  }

  // x by the step, or what bounds leave of it.
  void move(BlockStep& found) {
    Tensors numbers = equations_.tensors(found.step);
    bool is_cut = false;
    for (size_t k = 0; k < x_.size(); ++k) {
      const FitUnknowns& kind = problem_.unknowns[k];
      const Tensor free = all_retracted(kind, x_[k], numbers[k].to(x_[k].scalar_type()));
      const Tensor there = problem_.between_bounds(k, free);
      if (problem_.has_bounds(k) && !there.equal(free)) {
        is_cut = true;
        numbers[k] = (there.to(at::kDouble) - x_[k].to(at::kDouble)).view_as(numbers[k]);
      }
      x_[k] = there;
    }
    if (!is_cut) return;
    found.step = equations_.vector(numbers);
    found.length = length(scaled(found.step));
    found.predicted = predicted(found.step);
    // What bounds left of it need not go downhill.
    found.is_free = found.is_free && found.predicted > 0;
  }

  // Takes x, of the cost `there`, if derivatives are finite, as they need not be where the cost is, and if either
  // `is_less` or the gradient is.
  bool accept(double there, bool is_less) {
    const BlockVector scales = scales_;
    const double before = cost_, steepness_before = steepness(scales);
    cost_ = there;
    const bool is_finite = std::isfinite(evaluate());
    if (is_finite && (is_less || steepness(scales) < steepness_before)) {
      factored_ = false;
      return true;
    }
    cost_ = before;
    return false;
  }

  double cost() const {
    double sum = 0;
    for (size_t t = 0; t < problem_.terms.size(); ++t)
      sum += cost_of_residuals(problem_.terms[t].loss, problem_.functions[t]->residuals(x_, problem_.data_of(t, data_)))
                 .item<double>();
    return sum;
  }

  static double times(double a, double b) { return a * b; }
  BlockVector scaled(const BlockVector& v) const { return v.with(scales_, times); }
  BlockVector unscaled(const BlockVector& v) const {
    return v.with(scales_, [](double x, double scale) { return x / scale; });
  }
  BlockVector squares_of_scales(double factor) const {
    return scales_.with(scales_, [factor](double a, double b) { return factor * a * b; });
  }
  static BlockVector combined(double a, const BlockVector& x, double b, const BlockVector& y) {
    return x.with(y, [a, b](double one, double other) { return a * one + b * other; });
  }
  static double length(const BlockVector& v) { return std::sqrt(v.dot(v)); }

  std::optional<BlockStep> damped_step() {
    const BlockVector added = squares_of_scales(damping_), &gradient = equations_.gradient();
    if (!equations_.factor(added)) return std::nullopt;
    const BlockVector step = equations_.step();
    BlockStep found{step, length(scaled(step)), 0, damping_ <= 1};
    if (problem_.options.solver == FitSolver::conjugate_gradients) {
      found.predicted = predicted(step);
    } else {
      found.predicted = 0.5 * step.dot(combined(1, step.with(added, times), -1, gradient));  // by the damped equations
    }
    return found;
  }

  std::optional<BlockStep> dogleg_step() {
    const BlockVector& gradient = equations_.gradient();
    if (!factored_) {
      // What is singular is damped until it is not.
      double added = 0;
      while (!equations_.factor(squares_of_scales(added))) {
        if (added > 1) return std::nullopt;
        added = added == 0 ? 1e-10 : 100 * added;
      }
      newton_ = scaled(equations_.step());
      const BlockVector slope = unscaled(gradient);
      const double image = equations_.squared_image(unscaled(slope), values_);
      steepest_ = combined(image > 0 ? -slope.dot(slope) / image : 0., slope, 0, slope);
      factored_ = true;
    }
    BlockVector z = newton_;
    const bool is_free = length(newton_) <= radius_;
    if (const double shorter = length(steepest_); !is_free && shorter >= radius_) {
      z = combined(radius_ / shorter, steepest_, 0, steepest_);
    } else if (!is_free) {
      // From the one to the other, where the length is the radius.
      const BlockVector way = combined(1, newton_, -1, steepest_);
      const double a = way.dot(way), b = steepest_.dot(way), c = shorter * shorter - radius_ * radius_;
      z = combined(1, steepest_, (-b + std::sqrt(b * b - a * c)) / a, way);
    }
    BlockStep found{unscaled(z), length(z), 0, is_free};
    found.predicted = predicted(found.step);
    return found;
  }

  // What the cost falls by, by its linear model.
  double predicted(const BlockVector& step) const {
    return -equations_.gradient().dot(step) - 0.5 * equations_.squared_image(step, values_);
  }

  // The largest number of the gradient.
  double steepness(const BlockVector& scales) const {
    const BlockVector slope =
        equations_.gradient().with(scales, [](double value, double scale) { return value / scale; });
    double largest = 0;
    for (const auto* part : {&slope.eliminated, &slope.others})
      for (const double value : *part) largest = std::max(largest, std::abs(value));
    return largest;
  }
  bool is_flat() const { return steepness(scales_) <= problem_.options.gtol * std::sqrt(2 * cost_); }

  // Of what is retracted each number is one.
  Tensors numbers() const {
    Tensors all;
    for (size_t k = 0; k < x_.size(); ++k) {
      const int64_t size = numbers_of_step(problem_.unknowns[k]);
      all.push_back(problem_.unknowns[k].retract ? at::ones({x_[k].size(0), size}, x_[k].options())
                                                 : x_[k].reshape({x_[k].size(0), size}));
    }
    return all;
  }
  // Scaled as steps are.
  double length_of_x() const { return length(scaled(equations_.vector(numbers()))); }

  // What a long step is: as x, or, where that is near zero, as one that takes residuals away.
  double reach() const { return std::max(length_of_x(), std::sqrt(2 * cost_)); }

  BlockSolution solution(FitStatus status) {
    BlockSolution found{x_, cost_, status, steps_, {}, {}};
    for (const Tensor& numbers : equations_.tensors(at_bound_)) found.at_bound.push_back(numbers != 0);
    if (!problem_.options.covariance) return found;
    int64_t free = 0;
    for (const BlockKind& kind : problem_.pattern->kinds())
      free += kind.size * (kind.count - std::count(kind.held.begin(), kind.held.end(), 1));
    const int64_t freedom = problem_.num_residuals - free;
    const bool is_known = std::isfinite(cost_) && freedom > 0 && equations_.factor(equations_.zeros());
    if (is_known) {
      found.covariance = equations_.inverse_blocks();
      for (Tensor& blocks : found.covariance) blocks *= 2 * cost_ / static_cast<double>(freedom);
    } else {
      for (const BlockKind& kind : problem_.pattern->kinds())
        found.covariance.push_back(
            at::full({kind.count, kind.size, kind.size}, std::numeric_limits<double>::quiet_NaN(), at::kDouble));
    }
    for (Tensor& blocks : found.covariance) blocks = blocks.to(x_[0].scalar_type());
    return found;
  }

  const BlockProblem& problem_;
  const Tensors& data_;
  BlockEquations equations_;
  Tensors x_;
  std::vector<BlockValues> values_;
  BlockVector scales_, newton_, steepest_, lower_, upper_, at_bound_;  // at_bound_: not zero where one holds
  double epsilon_, cost_ = 0, damping_, growth_ = 2, radius_ = 0;
  bool factored_ = false;
  int64_t steps_ = 0;
};

}  // namespace

Tensors BlockProblem::data_of(size_t term, const Tensors& data) const {
  size_t start = 0;
  for (size_t t = 0; t < term; ++t) start += terms[t].data.size();
  const auto first = data.begin() + static_cast<std::ptrdiff_t>(start);
  return {first, first + static_cast<std::ptrdiff_t>(terms[term].data.size())};
}

bool BlockProblem::has_bounds(size_t kind) const {
  return unknowns[kind].lower.defined() || unknowns[kind].upper.defined();
}
bool BlockProblem::has_bounds() const {
  for (size_t k = 0; k < unknowns.size(); ++k)
    if (has_bounds(k)) return true;
  return false;
}

Tensor BlockProblem::between_bounds(size_t kind, Tensor x) const {
  if (unknowns[kind].lower.defined()) x = at::maximum(x, unknowns[kind].lower);
  if (unknowns[kind].upper.defined()) x = at::minimum(x, unknowns[kind].upper);
  return x;
}
Tensors BlockProblem::between_bounds(Tensors x) const {
  for (size_t k = 0; k < x.size(); ++k) x[k] = between_bounds(k, x[k]);
  return x;
}

BlockSolution BlockProblem::solve(const Tensors& x0, const Tensors& data) const {
  const at::NoGradGuard no_grad;
  if (options.covariance && pattern->num_remaining() > kMostToInvert)
    throw UnsupportedError(
        "block_least_squares: covariances take the inverse of the matrix that is left to factor, of " +
        std::to_string(pattern->num_remaining()) + " numbers; at most " + std::to_string(kMostToInvert) +
        " can be. Eliminate more of the unknowns first.");
  return BlockSteps(*this, x0, data).run();
}

dynamic::Function BlockProblem::preconditioner(const Tensors& x, const Tensors& data) const {
  const at::NoGradGuard no_grad;
  BlockSteps steps(*this, x, data);
  steps.evaluate();
  const auto equations = std::make_shared<BlockEquations>(std::move(steps.equations()));
  const bool is_definite = equations->factor(equations->zeros());
  return [equations, is_definite](const Tensors& v) {
    if (!is_definite) return v;
    Tensors found = equations->tensors(equations->precondition(equations->vector(v)));
    for (size_t k = 0; k < found.size(); ++k) found[k] = found[k].to(v[k].scalar_type());
    return found;
  };
}

}  // namespace tower::solvers
