// Events of odeint: where a function of time and state goes through zero on the path of a step.
#pragma once

#include <ATen/TensorOperators.h>

#include "solvers/ode_methods.h"

namespace tower::solvers {

/// The path of a step, in memory of a loop's state: the time and the state at its begin, its length, p₁ to p₄.
struct OdePath {
  Tensor begin, length, y;
  dynamic::Tensors powers;

  Tensor time(const Tensor& theta) const { return begin + theta * length; }
  Tensor state(const Tensor& theta) const;
  OdePath detached() const;
};

/// What is looked at, and which of its signs count.
struct OdeEventRule {
  std::function<Tensor(const Tensor& t, const Tensor& y)> value;
  OdeCrossing crossing;

  /// A number of the sign that the value has from `t` on, where y goes with `slope` times `way`, 1 or −1.
  Tensor first_sign(const Tensor& t, const Tensor& y, const Tensor& slope, const Tensor& way) const;
  /// Whether a step went through zero that had a value like `before` at its begin and has `now` at its end.
  Tensor crossed(const Tensor& before, const Tensor& now) const;
  /// The θ where the value is zero on `path`, which begins with a value of the sign of `before`. Zero where nothing
  /// has `happened`.
  Tensor place_on(const OdePath& path, const Tensor& before, const Tensor& happened) const;
};

}  // namespace tower::solvers
