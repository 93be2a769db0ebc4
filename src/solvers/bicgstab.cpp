#include <ATen/Functions.h>

#include "solvers/iterative.h"
#include "tower/loops.h"

namespace tower::solvers {

using dynamic::Tensors;

Iterated bicgstab(const Iteration& it, const Tensor& x, const Tensor& r) {
  enum : size_t { kX, kResidual, kShadow, kDirection, kProduct, kNorm, kShadowNorm, kSteps = kShadowNorm + 2 };
  const double epsilon = epsilon_of(r.scalar_type());
  const auto goes_on = [it](const Tensors& s) { return s[kNorm] > it.threshold; };
  const auto step = [it, epsilon](const Tensors& s) {
    const Tensor& p = s[kDirection];
    const Tensor direction = it.preconditioned(p);
    const Tensor v = it.apply(direction);
    const Tensor alpha = ratio(s[kProduct], it.product(s[kShadow], v));
    const Tensor half = minus(s[kResidual], alpha, v);
    const Tensor correction = it.preconditioned(half);
    const Tensor t = it.apply(correction);
    const Tensor omega = ratio(it.product(t, half), it.product(t, t));
    const Tensor next_r = minus(half, omega, t);
    const Tensor next_norm = it.length(next_r);
    const Tensor product = it.product(s[kShadow], next_r);
    const Tensor beta = ratio(product, s[kProduct]) * ratio(alpha, omega);
    const Tensor next_p = plus(next_r, beta, minus(p, omega, v));
    // Where the residual is orthogonal to the shadow, or a step was none, it starts anew from here.
    const Tensor broken = at::logical_or(product.abs() <= epsilon * s[kShadowNorm] * next_norm, beta == 0);
    return Tensors{plus(plus(s[kX], alpha, direction), omega, correction),
                   next_r,
                   at::where(broken, next_r, s[kShadow]),
                   at::where(broken, next_r, next_p),
                   at::where(broken, it.product(next_r, next_r), product),
                   next_norm,
                   at::where(broken, next_norm, s[kShadowNorm])};
  };
  const Tensor size = it.length(r);
  const Tensors last =
      dynamic::try_while_loop(goes_on, step, {x, r, r, r, it.product(r, r), size, size}, {.max_steps = it.max_steps});
  return {last[kX], last[kNorm], last[kSteps]};
}

}  // namespace tower::solvers
