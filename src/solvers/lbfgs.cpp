// Limited-memory BFGS with a search for the strong Wolfe conditions, as one loop: each of its steps evaluates the
// function once, and either makes the step, and has a new direction, or goes on with the search along the present one.
// So the examples of a vmap need not wait for each other's searches.
//
// J. Nocedal, S. J. Wright, Numerical optimization (2006): algorithms 7.4 (the direction), 3.5 and 3.6 (the search: the
// two are one here, where an interval without an upper end is one that grows). W. W. Hager, H. Zhang, A new conjugate
// gradient method with guaranteed descent (2005), for the decrease that is seen in the slopes where rounding hides it
// in the values.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "solvers/minimizer.h"
#include "tower/loops.h"

namespace tower::solvers {

using dynamic::Tensors;

namespace {

// Of the strong Wolfe conditions: how much of the decrease that the slope promises is enough, and how much of the slope
// may be left. Those for quasi-Newton methods of Nocedal and Wright, 3.1.
constexpr double kEnough = 1e-4, kLeft = 0.9;
// By how much a search without an upper end grows, and the part of an interval that a step keeps off its ends.
constexpr double kGrowth = 4, kOffEnds = 0.1;
// The evaluations of one search: 0.1²⁰ of a first step is no step any more.
constexpr int64_t kMostTrials = 20;
constexpr double kNoEnd = -1;

// A change of x, of the gradient, and one over their product; zero where there is none.
struct Change {
  Tensor x, gradient, inverse;
};

struct Lbfgs {
  Objective objective;

  enum : size_t {
    kX,
    kValue,
    kGradient,
    kDirection,
    kSlope,   // along the direction
    kLength,  // of it that is tried next
    kLow,     // the best length so far that decreases enough, at first zero, its value and slope
    kLowValue,
    kLowSlope,
    kHigh,  // the other end, and its value
    kHighValue,
    kTrials,
    kScale,  // of the first approximation to the inverse of the Hessian
    kStatus,
    kSteps,
    kChanges,  // the last one first
  };

  std::vector<Change> changes(const Tensors& s) const {
    std::vector<Change> result;
    for (size_t i = kChanges; i < s.size(); i += 3) result.push_back({s[i], s[i + 1], s[i + 2]});
    return result;
  }

  static Tensor first_length(const Tensor& gradient) {
    return at::linalg_vector_norm(gradient).reciprocal().clamp_max(1);
  }

  Tensors start(const Tensor& x) const {
    const Height here = objective.at(x);
    const Tensor zero = at::zeros_like(here.value), none = at::zeros({}, x.options().dtype(at::kLong));
    const Tensor slope = -at::dot(here.gradient, here.gradient);
    Tensors s{x,
              here.value,
              here.gradient,
              -here.gradient,
              slope,
              first_length(here.gradient),
              zero,
              here.value,
              slope,
              zero + kNoEnd,
              here.value,
              none,
              at::ones_like(zero),
              objective.start(x, here),
              none};
    for (int64_t i = 0; i < objective.options.memory; ++i)
      for (const Tensor& t : {at::zeros_like(x), at::zeros_like(x), zero}) s.push_back(t);
    return s;
  }

  // −H g
  static Tensor direction(const std::vector<Change>& changes, const Tensor& scale, const Tensor& gradient) {
    Tensor q = gradient;
    Tensors weights;
    for (const Change& c : changes) {
      weights.push_back(c.inverse * at::dot(c.x, q));
      q = at::addcmul(q, weights.back(), c.gradient, -1);
    }
    q = scale * q;
    for (size_t i = changes.size(); i-- > 0;) {
      const Change& c = changes[i];
      q = at::addcmul(q, weights[i] - c.inverse * at::dot(c.gradient, q), c.x);
    }
    return -q;
  }

  Tensors step(const Tensors& s) const {
    const Tensor &length = s[kLength], &slope = s[kSlope], &value = s[kValue];
    const Tensor x = at::addcmul(s[kX], length, s[kDirection]);
    const Height there = objective.at(x);
    const Tensor there_slope = at::dot(there.gradient, s[kDirection]), noise = objective.noise(value);
    const Tensor is_level = there_slope.abs() <= -kLeft * slope;
    // By a step that is none the value does not become smaller.
    const Tensor decreases =
        at::logical_and(there.value < value, there.value <= at::addcmul(value, length, slope, kEnough));
    const Tensor hidden = at::logical_and(is_level, there.value <= value + noise);
    const Tensor is_better = at::logical_and(at::logical_and(there.is_finite, at::logical_or(decreases, hidden)),
                                             there.value <= s[kLowValue] + noise);
    const Tensor is_last = s[kTrials] >= kMostTrials;
    const Tensor is_made = at::logical_and(is_better, at::logical_or(is_level, is_last));

    // The search goes on between the better end and one behind which values rise.
    const Tensor turns = at::where(s[kHigh] < 0, there_slope, there_slope * (s[kHigh] - s[kLow])) >= 0;
    const auto other_end = [&](const Tensor& now, const Tensor& low, const Tensor& tried) {
      return at::where(is_better, at::where(turns, low, now), tried);
    };
    const auto better_end = [&](const Tensor& now, const Tensor& tried) { return at::where(is_better, tried, now); };
    const Tensor high = other_end(s[kHigh], s[kLow], length);
    const Tensor high_value = other_end(s[kHighValue], s[kLowValue], there.value);
    const Tensor low = better_end(s[kLow], length), low_value = better_end(s[kLowValue], there.value);
    const Tensor low_slope = better_end(s[kLowSlope], there_slope);
    // Where the parabola through both has its minimum, as a part of the interval; nan is a short one.
    const Tensor width = high - low, rise = low_slope * width;
    const Tensor lowest = -0.5 * rise / (high_value - low_value - rise);
    const Tensor part = at::where(lowest > kOffEnds, lowest.clamp_max(1 - kOffEnds), kOffEnds);
    const Tensor ends = s[kTrials] + 1 >= kMostTrials;  // with the best that there was
    const Tensor next = at::where(ends, low, at::where(high < 0, kGrowth * length, low + part * width));

    // Without any: from here steepest descent, and then nothing. Changes of the gradient across a kink make directions
    // short, of which rounding hides all that they could gain: that says nothing of a minimum.
    const Tensor fails = at::logical_and(at::logical_and(ends, low == 0), is_made.logical_not());
    const std::vector<Change> known = changes(s);
    const Tensor by_memory = known[0].inverse > 0;
    const Tensor full = at::where(by_memory, at::ones_like(length), first_length(s[kGradient]));
    const Tensor is_hopeless = at::logical_and(at::logical_and(fails, -slope * full <= noise),
                                               objective.is_nearly_flat(s[kX], value, s[kGradient]));
    const Tensor forgets = at::logical_and(fails, by_memory);

    const Tensor gradient = at::where(is_made, there.gradient, s[kGradient]);
    const Change change{length * s[kDirection], there.gradient - s[kGradient], Tensor()};
    const Tensor product = at::dot(change.x, change.gradient), square = at::dot(change.gradient, change.gradient);
    const Tensor is_kept =
        at::logical_and(is_made, product > objective.epsilon * at::linalg_vector_norm(change.x) * square.sqrt());
    std::vector<Change> next_known;
    for (size_t i = 0; i < known.size(); ++i) {
      const Change& newer = i == 0 ? change : known[i - 1];
      const Tensor inverse = at::where(is_kept, i == 0 ? product.reciprocal() : newer.inverse, known[i].inverse);
      next_known.push_back({at::where(is_kept, newer.x, known[i].x),
                            at::where(is_kept, newer.gradient, known[i].gradient),
                            at::where(forgets, at::zeros_like(inverse), inverse)});
    }
    const Tensor scale = at::where(is_kept, product / square, s[kScale]);
    const Tensor turned = direction(next_known, scale, gradient);
    // Rounding may have made it go uphill.
    const Tensor is_downhill = at::logical_and(forgets.logical_not(), at::dot(turned, gradient) < 0);
    const Tensor is_new = at::logical_or(is_made, forgets);
    const Tensor going = at::where(is_new, at::where(is_downhill, turned, -gradient), s[kDirection]);
    const Tensor going_slope = at::dot(going, gradient);
    const Tensor going_length = at::where(at::logical_and(is_downhill, next_known[0].inverse > 0),
                                          at::ones_like(length), first_length(gradient));
    const Tensor next_value = at::where(is_made, there.value, value);

    Tensor status =
        Objective::one_of(at::logical_and(fails, by_memory.logical_not()), MinimumStatus::stuck, s[kStatus]);
    status = Objective::one_of(
        at::logical_and(status == static_cast<int64_t>(MinimumStatus::stuck), there.is_finite.logical_not()),
        MinimumStatus::not_finite, status);
    // Steps that the search, or a kink, made small say nothing.
    const Tensor is_settled = at::logical_and(
        at::logical_and(is_made, is_level), at::logical_and(objective.is_small(value - there.value, value),
                                                            objective.is_nearly_flat(x, there.value, there.gradient)));
    status = Objective::one_of(at::logical_or(is_settled, is_hopeless), MinimumStatus::small_change, status);
    status = Objective::one_of(at::logical_and(is_made, objective.is_flat(x, there.value, there.gradient)),
                               MinimumStatus::small_gradient, status);

    const auto searched = [&](const Tensor& anew, const Tensor& further) { return at::where(is_new, anew, further); };
    Tensors result{at::where(is_made, x, s[kX]),
                   next_value,
                   gradient,
                   going,
                   going_slope,
                   searched(going_length, next),
                   searched(at::zeros_like(low), low),
                   searched(next_value, low_value),
                   searched(going_slope, low_slope),
                   searched(at::full_like(high, kNoEnd), high),
                   searched(next_value, high_value),
                   searched(at::zeros_like(s[kTrials]), s[kTrials] + 1),
                   scale,
                   status,
                   s[kSteps] + 1};
    for (const Change& c : next_known)
      for (const Tensor& t : {c.x, c.gradient, c.inverse}) result.push_back(t);
    return result;
  }
};

}  // namespace

Descended lbfgs(const Objective& objective, const Tensor& x0) {
  const Lbfgs method{objective};
  const auto goes_on = [limit = objective.options.max_steps](const Tensors& s) {
    return at::logical_and(s[Lbfgs::kStatus] == kMinimizing, s[Lbfgs::kSteps] < limit);
  };
  const Tensors s = dynamic::while_loop(
      goes_on, [method](const Tensors& state) { return method.step(state); }, method.start(x0));
  return {s[Lbfgs::kX],      s[Lbfgs::kValue], s[Lbfgs::kGradient],
          s[Lbfgs::kStatus], s[Lbfgs::kSteps], at::zeros_like(s[Lbfgs::kSteps])};
}

}  // namespace tower::solvers
