// What the methods of minimize share: the function that they minimize, when it is at its end, and what they give. Each
// is a while_loop over one vector of unknowns, written for one problem, below every level that differentiates.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "solvers/vectors.h"
#include "tower/minimize.h"

namespace tower::solvers {

/// The status of a minimization that goes on.
inline constexpr int64_t kMinimizing = -1;

/// A function at a point.
struct Height {
  Tensor value, gradient;
  Tensor is_finite;  // both are
};

struct Objective {
  dynamic::Function f;  // of lists of one vector
  MinimizeOptions options;
  double epsilon;  // of the numbers' dtype

  Height at(const Tensor& x) const {
    const auto [gradient, value] = dynamic::grad_and_value(f, {0})({x});
    return {value[0], gradient[0], at::logical_and(all_finite(value[0]), all_finite(gradient[0]))};
  }
  /// J. E. Dennis, R. B. Schnabel, Numerical methods for unconstrained optimization and nonlinear equations
  /// (1983), 7.2, for numbers of x that are typically about one.
  Tensor is_flat(const Tensor& x, const Tensor& value, const Tensor& gradient) const {
    return is_within(options.gtol, x, value, gradient);
  }
  /// Whether a value that changes no more may be a minimum's: there a gradient is as small as the root of what can be
  /// told of the value, but for the scales of x and f. At a kink it is not.
  Tensor is_nearly_flat(const Tensor& x, const Tensor& value, const Tensor& gradient) const {
    return is_within(std::max({options.gtol, 10 * std::sqrt(options.ftol), std::cbrt(epsilon)}), x, value, gradient);
  }
  /// Whether a change of the value is one at which to end.
  Tensor is_small(const Tensor& change, const Tensor& value) const { return change.abs() < options.ftol * value.abs(); }
  /// What rounding may add to the value.
  Tensor noise(const Tensor& value) const { return 10 * epsilon * value.abs(); }

  static Tensor is_within(double most, const Tensor& x, const Tensor& value, const Tensor& gradient) {
    return (gradient.abs() * x.abs().clamp_min(1)).amax() <= most * value.abs().clamp_min(1);
  }

  /// The status to begin with.
  Tensor start(const Tensor& x, const Height& here) const {
    const Tensor goes_on = at::full({}, kMinimizing, x.options().dtype(at::kLong));
    return one_of(here.is_finite.logical_not(), MinimumStatus::not_finite,
                  one_of(is_flat(x, here.value, here.gradient), MinimumStatus::small_gradient, goes_on));
  }
  /// `status` where `holds`, and else `otherwise`.
  static Tensor one_of(const Tensor& holds, MinimumStatus status, const Tensor& otherwise) {
    return at::where(holds, static_cast<int64_t>(status), otherwise);
  }
};

/// Where a minimization ended.
struct Descended {
  Tensor x, value, gradient, status, steps, products;
};
Descended lbfgs(const Objective& objective, const Tensor& x0);
Descended trust_region(const Objective& objective, const Tensor& x0);

}  // namespace tower::solvers
