// Iterative solvers of one vector of unknowns, written for one example: tower::while_loop lets each example of a vmap
// end by itself. They run below every level that differentiates.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

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

  Tensor preconditioned(const Tensor& v) const { return precondition ? precondition(v) : v; }
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

/// Σ conj(a) b
inline Tensor product_of(const Tensor& a, const Tensor& b) { return a.is_complex() ? at::vdot(a, b) : at::dot(a, b); }
inline Tensor length_of(const Tensor& v) { return at::linalg_vector_norm(v); }
/// y + a x for a number a.
inline Tensor plus(const Tensor& y, const Tensor& a, const Tensor& x) { return at::addcmul(y, a, x); }
inline Tensor minus(const Tensor& y, const Tensor& a, const Tensor& x) { return at::addcmul(y, a, x, -1); }
/// a / b, and zero where b is.
inline Tensor ratio(const Tensor& a, const Tensor& b) {
  const Tensor none = b == 0;
  return at::where(none, at::zeros_like(a), a / at::where(none, at::ones_like(b), b));
}

}  // namespace tower::solvers
