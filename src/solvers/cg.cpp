#include <ATen/Functions.h>

#include "solvers/iterative.h"
#include "tower/loops.h"

namespace tower::solvers {

using dynamic::Tensors;

Iterated cg(const Iteration& it, const Tensor& x, const Tensor& r) {
  enum : size_t { kX, kResidual, kDirection, kProduct, kNorm, kPositive, kSteps = kPositive + 2 };
  const Tensor z = it.preconditioned(r);
  // Where pᴴ A p is not positive, A is not: that example's last step is none.
  const Tensor positive = at::ones({}, r.options().dtype(at::kBool));
  const auto goes_on = [it](const Tensors& s) { return at::logical_and(s[kNorm] > it.threshold, s[kPositive]); };
  const auto step = [it](const Tensors& s) {
    const Tensor& p = s[kDirection];
    const Tensor q = it.apply(p);
    const Tensor curvature = it.product(p, q);
    const Tensor is_positive = at::real(curvature) > 0;
    const Tensor step_size = at::where(is_positive, ratio(s[kProduct], curvature), at::zeros_like(curvature));
    const Tensor next_r = minus(s[kResidual], step_size, q);
    const Tensor next_z = it.preconditioned(next_r);
    const Tensor product = it.product(next_r, next_z);
    return Tensors{plus(s[kX], step_size, p), next_r,     plus(next_z, ratio(product, s[kProduct]), p), product,
                   it.length(next_r),         is_positive};
  };
  const Tensors last = dynamic::try_while_loop(goes_on, step, {x, r, z, it.product(r, z), it.length(r), positive},
                                               {.max_steps = it.max_steps});
  return {last[kX], last[kNorm], last[kSteps]};
}

}  // namespace tower::solvers
