// Iterative solvers of one vector of unknowns, written for one example: tower::while_loop lets each example of a vmap
// end by itself. They run below every level that differentiates.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "control/speech.h"
#include "solvers/linear_system.h"
#include "solvers/vectors.h"
#include "tower/linear_solve.h"

namespace tower::solvers {

struct Iteration {
  VectorFunction apply;
  VectorFunction precondition;  // empty: the identity
  Tensor threshold;             // a real number: the norm of the residual that is small enough
  int64_t max_steps;
  int64_t restart;
  /// Along which the function mixes the unknowns of examples: NOTE [Systems of several examples].
  speech::Axes axes = {};

  Tensor preconditioned(const Tensor& v) const { return precondition ? precondition(v) : v; }
  Tensor of_all(const Tensor& of_one) const { return axes.empty() ? of_one : speech::sum_of_all_heard(of_one, axes); }
  /// Σ conj(a) b
  Tensor product(const Tensor& a, const Tensor& b) const {
    return of_all(a.is_complex() ? at::vdot(a, b) : at::dot(a, b));
  }
  Tensor length(const Tensor& v) const {
    const Tensor of_one = at::linalg_vector_norm(v);
    return axes.empty() ? of_one : of_all(of_one.square()).sqrt();
  }
  int64_t unknowns(const Tensor& v) const { return axes.empty() ? v.numel() : v.numel() * speech::number_heard(axes); }
};

struct Iterated {
  Tensor x;
  Tensor norm;  // of the residual, as the iteration knows it
  Tensor steps;
};

/// From x, whose residual is r.
Iterated cg(const Iteration& iteration, const Tensor& x, const Tensor& r);
Iterated bicgstab(const Iteration& iteration, const Tensor& x, const Tensor& r);
Iterated gmres(const Iteration& iteration, const Tensor& x, const Tensor& r);

/// What solves by one of these methods: the solution, and whether it converged, the number of steps, the residual.
LinearSystem::Solver iterative_solver(LinearMethod method, IterativeOptions<dynamic::Tensors> options);
const char* name(LinearMethod method);

// ---- arithmetic of the three ----

/// y + a x for a number a.
inline Tensor plus(const Tensor& y, const Tensor& a, const Tensor& x) { return at::addcmul(y, a, x); }
inline Tensor minus(const Tensor& y, const Tensor& a, const Tensor& x) { return at::addcmul(y, a, x, -1); }
/// a / b, and zero where b is.
inline Tensor ratio(const Tensor& a, const Tensor& b) {
  const Tensor none = b == 0;
  return at::where(none, at::zeros_like(a), a / at::where(none, at::ones_like(b), b));
}

}  // namespace tower::solvers
