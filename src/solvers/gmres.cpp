// One step of the loop is a cycle: an orthonormal basis V of the Krylov space by Arnoldi's process, vector by vector,
// with A M V = V H, and the x in it whose residual is smallest. H is brought to triangular form R by rotations as it
// grows, which gives the norm of that residual without x. An example that ends within a cycle (it has converged, made
// its steps, or its space is exhausted) goes on with zero vectors, which change nothing, until all have ended.
#include <ATen/Functions.h>

#include "solvers/iterative.h"
#include "tower/loops.h"

namespace tower::solvers {
namespace {

using dynamic::Tensors;

enum : size_t { kX, kResidual, kNorm, kSteps };

// v / size, and zero for an example that has ended.
Tensor unit(const Tensor& active, const Tensor& v, const Tensor& size) {
  return at::where(active, v / at::where(active, size, at::ones_like(size)), at::zeros_like(v));
}

Tensors cycle(const Iteration& it, const Tensors& s) {
  const Tensor& r = s[kResidual];
  const int64_t most = std::min(it.restart, it.unknowns(r));
  const double epsilon = epsilon_of(r.scalar_type());
  const auto as_vector = [&](const Tensor& number) { return number.to(r.scalar_type()); };

  Tensor basis = at::zeros({most + 1, r.numel()}, r.options());
  Tensor triangle = at::zeros({most, most}, r.options());
  Tensor rotations = at::eye(most + 1, r.options());  // Q with Q H = R
  Tensors dead;                                       // columns without a direction
  Tensor steps = s[kSteps], size = s[kNorm];
  Tensor active = at::logical_and(size > it.threshold, steps < it.max_steps);
  basis.select(0, 0).copy_(unit(active, r, size));
  int64_t k = 0;
  while (k < most && any_example(active)) {
    const Tensor image = it.apply(it.preconditioned(basis.select(0, k)));
    // Gram and Schmidt, twice: once loses orthogonality.
    const Tensor known = basis.narrow(0, 0, k + 1);
    const Tensor once = it.of_all(at::mv(known.conj(), image));
    Tensor next = image - at::mv(known.t(), once);
    const Tensor again = it.of_all(at::mv(known.conj(), next));
    next = next - at::mv(known.t(), again);
    Tensor rest = it.length(next);
    const Tensor exhausted = rest <= epsilon * it.length(image);
    rest = at::where(exhausted, at::zeros_like(rest), rest);

    const Tensor column = at::mv(rotations.narrow(0, 0, k + 1).narrow(1, 0, k + 1), once + again);
    const Tensor last = column.select(0, k);
    const Tensor diagonal = at::hypot(last.abs(), rest);
    const Tensor none = diagonal == 0;
    const Tensor cosine = at::where(none, at::ones_like(last), ratio(last, as_vector(diagonal)));
    const Tensor sine = as_vector(ratio(rest, diagonal));
    triangle.select(1, k).narrow(0, 0, k).copy_(column.narrow(0, 0, k));
    triangle.select(1, k).select(0, k).copy_(as_vector(at::where(none, at::ones_like(diagonal), diagonal)));
    const Tensor upper = rotations.select(0, k).clone(), lower = rotations.select(0, k + 1).clone();
    rotations.select(0, k).copy_(cosine.conj() * upper + sine * lower);
    rotations.select(0, k + 1).copy_(cosine * lower - sine * upper);
    dead.push_back(none);

    steps = steps + active.to(steps.scalar_type());
    const Tensor found = rotations.select(0, k + 1).select(0, 0).abs() * s[kNorm];
    size = at::where(active, found, size);
    active = active & (size > it.threshold) & ~exhausted & (steps < it.max_steps);
    basis.select(0, ++k).copy_(unit(active, next, rest));
  }
  if (k == 0) return s;
  const Tensor start = rotations.select(1, 0).narrow(0, 0, k) * as_vector(s[kNorm]);
  const Tensor rhs = at::where(at::stack(dead), at::zeros_like(start), start);
  const Tensor weights =
      at::linalg_solve_triangular(triangle.narrow(0, 0, k).narrow(1, 0, k), rhs.unsqueeze(1), /*upper=*/true)
          .squeeze(1);
  const Tensor change = it.preconditioned(at::mv(basis.narrow(0, 0, k).t(), weights));
  const Tensor next_r = r - it.apply(change);
  return {s[kX] + change, next_r, it.length(next_r), steps};
}

}  // namespace

Iterated gmres(const Iteration& it, const Tensor& x, const Tensor& r) {
  const auto goes_on = [it](const Tensors& s) {
    return at::logical_and(s[kNorm] > it.threshold, s[kSteps] < it.max_steps);
  };
  const Tensors last = dynamic::while_loop(goes_on, [it](const Tensors& s) { return cycle(it, s); },
                                           {x, r, it.length(r), at::zeros({}, r.options().dtype(at::kLong))});
  return {last[kX], last[kNorm], last[kSteps]};
}

}  // namespace tower::solvers
