// minimize: checks its arguments, and makes an implicit function of what the methods (lbfgs.cpp, trust_region.cpp)
// find: a root of the gradient, which depends on what the function captured.
#include "tower/minimize.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

#include "core/tensor_lists.h"
#include "solvers/dense.h"
#include "solvers/implicit.h"
#include "solvers/minimizer.h"
#include "tower/errors.h"

namespace tower {

using dynamic::Tensors;

namespace {

void check_minimize_options(const MinimizeOptions& options) {
  const auto check = [](double value, const char* name, bool may_be_zero) {
    if (!(value > 0 || (may_be_zero && value == 0)) || !std::isfinite(value))
      throw ArgumentError(std::string("minimize: ") + name + " is " + std::to_string(value) + "; it is " +
                          (may_be_zero ? "not negative" : "positive") + ", and finite.");
  };
  check(options.gtol, "gtol", true);
  check(options.ftol, "ftol", true);
  check(options.first_radius, "first_radius", false);
  if (options.max_steps < 0)
    throw ArgumentError("minimize: max_steps is " + std::to_string(options.max_steps) + "; it must not be negative.");
  if (options.memory < 1)
    throw ArgumentError("minimize: memory is " + std::to_string(options.memory) +
                        "; at least one change of the gradient is remembered.");
}

}  // namespace

Minimum<Tensors> dynamic::minimize(const Function& f, const Tensors& x0, const MinimizeOptions& options) {
  check_minimize_options(options);
  const solvers::Unknowns like("minimize", x0);
  const at::ScalarType dtype = x0[0].scalar_type();
  if (!c10::isFloatingType(dtype) || like.size() == 0)
    throw ArgumentError("minimize: x0 is " + describe(x0[0]) +
                        ". It is real numbers, at least one; of complex ones, view_as_real.");
  const Function of_vector = [f, like, dtype](const Tensors& x) {
    Tensors all = f(like.list(x[0]));
    if (all.size() != 1 || !all[0].defined() || all[0].dim() != 0 || all[0].scalar_type() != dtype)
      throw ArgumentError("minimize: the function gave " +
                          (all.size() != 1     ? std::to_string(all.size()) + " tensors"
                           : !all[0].defined() ? "an undefined tensor"
                                               : describe(all[0])) +
                          ", and x0 is of the dtype of " + describe(x[0]) +
                          ". It gives one number of that dtype, a tensor without dimensions: sum().");
    return all;
  };
  const double epsilon = solvers::epsilon_of(dtype);
  const solvers::Objective objective{of_vector, options, epsilon};
  const auto gradient = [of_vector](const Tensor& x) { return dynamic::grad(of_vector, {0})({x})[0]; };
  const Tensor start = like.own_vector(x0, "x0").detach();  // of x0 no derivative goes on
  const auto value = [of_vector](const Tensor& x) { return of_vector({x})[0]; };
  if (!solvers::mixed_axes(value, start).empty())
    throw ArgumentError(
        "minimize: the function speaks of x to other examples, by a collective, so that it is one problem of the "
        "unknowns of all examples. Minimize around the mapped function, whose values are summed.");
  enum : size_t { kX, kIsMinimum, kValue, kGradient, kStatus, kSteps, kProducts, kAll };
  const auto solver = [objective](const Tensors& at) {
    const solvers::Descended found = objective.options.method == Minimizer::lbfgs
                                         ? solvers::lbfgs(objective, at[0])
                                         : solvers::trust_region(objective, at[0]);
    const Tensor status =
        solvers::Objective::one_of(found.status == solvers::kMinimizing, MinimumStatus::max_steps, found.status);
    return Tensors{found.x,       status <= static_cast<int64_t>(MinimumStatus::small_change),
                   found.value,   found.gradient.abs().amax(),
                   status,        found.steps,
                   found.products};
  };
  // The Hessian is symmetric, and at a minimum it is not negative.
  ImplicitOptions implicit;
  implicit.linear.symmetric = true;
  if (like.size() > implicit.linear.dense_up_to) implicit.linear.method = LinearMethod::cg;
  solvers::leave_singular_as_nan("minimize", like.size(), implicit.linear);
  const auto root = [gradient](const Tensors& x, const Tensors&) { return Tensors{gradient(x[0])}; };
  const Tensors found =
      solvers::implicit_root_with_reports("minimize", root, solver, {start}, kAll - kIsMinimum, implicit);
  return {like.list(found[kX]), found[kValue], found[kGradient], found[kStatus], found[kSteps], found[kProducts]};
}

}  // namespace tower
