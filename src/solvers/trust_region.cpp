// Newton steps within a trust region: in each the quadratic model is minimized by conjugate gradients, which end at the
// region's boundary or where the curvature is negative. T. Steihaug, The conjugate gradient method and trust regions in
// large scale optimization (1983); Ph. L. Toint (1981). Constants: J. Nocedal, S. J. Wright, Numerical optimization
// (2006), algorithms 4.1, 7.1 and 7.2.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "solvers/minimizer.h"
#include "tower/loops.h"

namespace tower::solvers {

using dynamic::Tensors;

namespace {

// A step, the model's gradient behind it, whether it was made as long as the region allows, and how many products it
// took.
struct ModelStep {
  Tensor step, gradient, at_boundary, products;
};

// `hessian` and `gradient` are divided by `scale`, of which the squares of numbers may be infinite, or zero.
ModelStep steihaug(const VectorFunction& hessian, const Tensor& gradient, const Tensor& scale, const Tensor& radius) {
  enum : size_t { kStep, kResidual, kDirection, kSquare, kAtBoundary, kSteps = kAtBoundary + 2 };
  const Tensor square = at::dot(gradient, gradient), norm = square.sqrt();
  // Superlinear convergence, by the gradient itself.
  const Tensor tolerance = ((norm * scale).sqrt().clamp_max(0.5) * norm).square();
  const auto goes_on = [tolerance](const Tensors& s) {
    return at::logical_and(s[kSquare] > tolerance, s[kAtBoundary].logical_not());
  };
  const auto body = [hessian, radius](const Tensors& s) {
    const Tensor &z = s[kStep], &d = s[kDirection];
    const Tensor product = hessian(d), curvature = at::dot(d, product), free = s[kSquare] / curvature;
    const Tensor beyond = at::linalg_vector_norm(at::addcmul(z, free, d)) >= radius;
    const Tensor is_last = at::logical_or((curvature > 0).logical_not(), beyond);
    const Tensor room = radius.square() - at::dot(z, z), along = at::dot(z, d);
    const Tensor to_boundary = room / (along + (along.square() + at::dot(d, d) * room).sqrt());
    const Tensor length = at::where(is_last, to_boundary, free);
    const Tensor residual = at::addcmul(s[kResidual], length, product), next = at::dot(residual, residual);
    return Tensors{at::addcmul(z, length, d), residual, at::addcmul(-residual, next / s[kSquare], d), next, is_last};
  };
  const Tensors s = dynamic::try_while_loop(
      goes_on, body,
      {at::zeros_like(gradient), gradient, -gradient, square, at::zeros({}, gradient.options().dtype(at::kBool))},
      {.max_steps = 2 * gradient.numel()});
  return {s[kStep], s[kResidual], s[kAtBoundary], s[kSteps]};
}

struct TrustRegion {
  Objective objective;

  enum : size_t { kX, kValue, kGradient, kRadius, kStatus, kSteps, kProducts };

  Tensors start(const Tensor& x) const {
    const Height here = objective.at(x);
    const Tensor none = at::zeros({}, x.options().dtype(at::kLong));
    return {x,
            here.value,
            here.gradient,
            at::full_like(here.value, objective.options.first_radius),
            objective.start(x, here),
            none,
            none};
  }

  Tensors step(const Tensors& s) const {
    const dynamic::Function push = dynamic::linearize(dynamic::grad(objective.f, {0}), {s[kX]}).second;
    const Tensor scale = s[kGradient].abs().amax();
    const ModelStep model = steihaug([push, scale](const Tensor& v) { return push({v})[0] / scale; },
                                     s[kGradient] / scale, scale, s[kRadius]);
    // −(gᵀp + pᵀHp / 2), where Hp is what p changed of the model's gradient.
    const Tensor promised = -0.5 * at::dot(model.step, s[kGradient] + scale * model.gradient);
    const Tensor x = s[kX] + model.step;
    const Height there = objective.at(x);
    const Tensor gain = s[kValue] - there.value, noise = objective.noise(s[kValue]);
    // Near the minimum both are rounding errors: A. R. Conn, N. I. M. Gould, Ph. L. Toint, Trust-region methods (2000),
    // 17.4.2.
    const Tensor ratio = (gain + noise) / (promised + noise);
    const Tensor is_good = at::logical_and(there.is_finite, ratio > 1e-4),
                 fits = at::logical_and(is_good, ratio >= 0.25);
    const Tensor length = at::linalg_vector_norm(model.step);
    const Tensor grows = at::logical_and(at::logical_and(is_good, ratio > 0.75), model.at_boundary);
    const Tensor radius = at::where(grows, 2 * s[kRadius], at::where(fits, s[kRadius], 0.25 * length));

    // Within rounding of x nothing is learned.
    const Tensor given_up =
        at::logical_and(at::logical_or(is_good.logical_not(), model.at_boundary),
                        length <= objective.epsilon * (at::linalg_vector_norm(s[kX]) + objective.epsilon));
    const Tensor is_model = all_finite(promised);
    Tensor status = Objective::one_of(given_up, MinimumStatus::stuck, s[kStatus]);
    status = Objective::one_of(
        at::logical_or(is_model.logical_not(), at::logical_and(given_up, there.is_finite.logical_not())),
        MinimumStatus::not_finite, status);
    // Steps that the region makes short say nothing.
    const Tensor is_free = at::logical_and(is_good, model.at_boundary.logical_not());
    const Tensor is_settled = at::logical_and(
        is_free, at::logical_and(objective.is_small(gain, s[kValue]), objective.is_small(promised, s[kValue])));
    // Where rounding is all that is left of the value, and the gradient becomes no smaller either.
    const Tensor stays = at::dot(there.gradient, there.gradient) >= 0.25 * at::dot(s[kGradient], s[kGradient]);
    const Tensor is_hopeless = at::logical_and(is_free, at::logical_and(promised <= noise, stays));
    status = Objective::one_of(at::logical_or(is_settled, is_hopeless), MinimumStatus::small_change, status);
    status = Objective::one_of(at::logical_and(is_good, objective.is_flat(x, there.value, there.gradient)),
                               MinimumStatus::small_gradient, status);
    return {at::where(is_good, x, s[kX]),
            at::where(is_good, there.value, s[kValue]),
            at::where(is_good, there.gradient, s[kGradient]),
            radius,
            status,
            s[kSteps] + 1,
            s[kProducts] + model.products};
  }
};

}  // namespace

Descended trust_region(const Objective& objective, const Tensor& x0) {
  using T = TrustRegion;
  const T method{objective};
  const auto goes_on = [limit = objective.options.max_steps](const Tensors& s) {
    return at::logical_and(s[T::kStatus] == kMinimizing, s[T::kSteps] < limit);
  };
  const Tensors s = dynamic::while_loop(
      goes_on, [method](const Tensors& state) { return method.step(state); }, method.start(x0));
  return {s[T::kX], s[T::kValue], s[T::kGradient], s[T::kStatus], s[T::kSteps], s[T::kProducts]};
}

}  // namespace tower::solvers
