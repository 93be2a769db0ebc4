#include "solvers/iterative.h"

#include <ATen/Functions.h>

#include <sstream>

#include "core/level.h"
#include "operators/lifting.h"

namespace tower::solvers {
namespace {

using dynamic::Function;
using dynamic::Tensors;
using IterationOptions = IterativeOptions<Tensors>;

void check_options(const char* op, const IterationOptions& options) {
  const auto refuse = [&](const std::string& what) { throw ArgumentError(std::string(op) + ": " + what); };
  if (options.tolerance && !(*options.tolerance >= 0)) refuse("the tolerance must not be negative.");
  if (!(options.absolute_tolerance >= 0)) refuse("the absolute tolerance must not be negative.");
  if (options.max_steps && *options.max_steps < 0) refuse("max_steps must not be negative.");
  if (options.restart < 1) refuse("restart must be positive.");
}

// Throws for the example whose residual is largest for its threshold.
void check_converged(const char* op, const Tensor& converged, const Tensor& residual, const Tensor& threshold,
                     const Tensor& steps) {
  if (!any_example(at::logical_not(converged))) return;
  const Tensor of_each = value_under_all_levels(converged);
  const Tensor residuals = value_under_all_levels(residual), thresholds = value_under_all_levels(threshold),
               made = value_under_all_levels(steps);
  DispatchGuard keys;
  keys.see_every_operator(false);
  const int64_t examples = of_each.numel(), missed = examples - of_each.sum().item<int64_t>();
  const Tensor worst = residuals.flatten().argmax();
  const Tensor asked =
      thresholds.numel() == residuals.numel() ? thresholds.flatten()[worst.item<int64_t>()] : thresholds.max();
  std::ostringstream text;
  text << op << ": no convergence";
  if (examples > 1) text << " for " << missed << " of " << examples << " examples";
  text << " in " << made.max().item<int64_t>() << " steps: a residual of " << residuals.max().item<double>()
       << " is left, where " << asked.item<double>()
       << " is asked for. Allow more steps (max_steps), give a preconditioner or a larger tolerance, or take another "
          "method: cg wants a positive definite function; gmres and bicgstab any regular one.";
  throw NoConvergenceError(text.str());
}

}  // namespace

const char* name(LinearMethod method) {
  switch (method) {
    case LinearMethod::cg:
      return "cg";
    case LinearMethod::bicgstab:
      return "bicgstab";
    case LinearMethod::gmres:
      return "gmres";
    case LinearMethod::automatic:
    case LinearMethod::dense:
      break;
  }
  return "linear_solve";
}

LinearSystem::Solver iterative_solver(LinearMethod method, IterationOptions options) {
  const char* op = name(method);
  check_options(op, options);
  return [method, options, op](const Tensors&, const Function& f, const Tensors& b) {
    const Unknowns like(op, b);
    const auto real = c10::toRealValueType(like.options().dtype().toScalarType());
    const double tolerance = options.tolerance.value_or(real == at::kDouble ? 1e-10 : 1e-5);
    const Tensor rhs = like.vector(b, "the right-hand side");
    Iteration it{like.on_vectors(f, "the function"), {}, {}, 0, options.restart};
    if (options.preconditioner) it.precondition = like.on_vectors(options.preconditioner, "the preconditioner");
    it.axes = mixed_axes([&](const Tensor& v) { return it.apply(it.preconditioned(v)); }, rhs);
    const Tensor size = it.length(rhs);
    it.threshold = (size * tolerance).clamp_min(options.absolute_tolerance);
    it.max_steps = options.max_steps.value_or(std::min<int64_t>(10 * it.unknowns(rhs), 10'000));

    Tensor x = at::zeros_like(rhs), r = rhs;
    if (options.start) {
      // A right-hand side of zero has the solution zero, which no relative tolerance finds from elsewhere.
      x = at::where(size == 0, x, like.vector(*options.start, "the start"));
      r = rhs - it.apply(x);
    }
    const auto iterate = method == LinearMethod::cg ? cg : method == LinearMethod::bicgstab ? bicgstab : gmres;
    const Iterated found = iterate(it, x, r);
    // What recurrences say of the residual drifts away from what it is.
    constexpr double kDrift = 10;
    const Tensor residual = it.length(rhs - it.apply(found.x));
    const Tensor converged = at::logical_and(found.norm <= it.threshold, residual <= kDrift * it.threshold);
    if (options.on_no_convergence == NoConvergence::error)
      check_converged(op, converged, residual, it.threshold, found.steps);
    Tensors result = like.list(found.x);
    result.insert(result.end(), {converged, found.steps, residual});
    return result;
  };
}

}  // namespace tower::solvers
