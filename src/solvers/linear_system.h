// The operator behind every solver: the solution of a linear system that depends on tensors. Its derivatives are
// solutions of the same system and of the transposed one, so they are that operator again.
//
//   A(θ) x = b      dx = A⁻¹ (db − (dA) x)      b̄ = A⁻ᵀ x̄,  θ̄ = −(∂ A(θ) x / ∂θ)ᵀ b̄
#pragma once

#include "tower/dynamic.h"

namespace tower::solvers {

struct LinearSystem {
  /// A linear function of lists like `like`, at what the system depends on.
  using Prepare = std::function<dynamic::Function(const dynamic::Tensors& given, const dynamic::Tensors& like)>;
  /// The solution, and behind it tensors that report on it, which have no derivatives.
  using Solver = std::function<dynamic::Tensors(const dynamic::Tensors& given, const dynamic::Function& apply,
                                                const dynamic::Tensors& b)>;

  std::string name;
  Prepare apply, transposed;
  Solver solve;             ///< the call's own
  Solver solve_again;       ///< further systems with A, of its derivatives
  Solver solve_transposed;  ///< those with the transposed A
  /// A user wrote the function: what it captures is to be found, and what it gives to be looked at, before it is
  /// solved.
  bool users = false;
  bool per_example = false;
};

/// The solution of apply(given)(x) = b, and the solver's reports. Tensors that the functions capture get their
/// derivatives like `given`.
dynamic::Tensors solve(const LinearSystem& system, const dynamic::Tensors& b, const dynamic::Tensors& given);

/// The same without derivatives, for operators that have them: `apply` is the system's function at `given`.
dynamic::Tensors solve_once(const LinearSystem& system, const dynamic::Tensors& b, const dynamic::Tensors& given,
                            const dynamic::Function& apply);

/// The system of the transposed function, with all that solves it.
LinearSystem transposed(LinearSystem system);

/// The adjoint of a linear function of lists like `like`.
dynamic::Function transposed(const dynamic::Function& f, const dynamic::Tensors& like);

}  // namespace tower::solvers
