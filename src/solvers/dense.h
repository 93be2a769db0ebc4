// The solution of a small linear system by its matrix.
#pragma once

#include "solvers/linear_system.h"
#include "tower/linear_solve.h"

namespace tower::solvers {

/// What becomes of a singular matrix.
enum class Singular {
  error,
  nan,  ///< the solution is nan, of that example of a vmap alone
};

/// Makes the matrix of the function's values at the unit vectors, under one vmap. `check`: whether to look if the
/// function is as linear as the matrix; throws ArgumentError where it is not.
LinearSystem::Solver dense_solver(std::string name, bool check, Singular singular = Singular::error);

/// Has an implicit function of `unknowns` numbers solve densely where `options` say so for that many, and have nan for
/// derivatives where its systems are singular.
void leave_singular_as_nan(const std::string& name, int64_t unknowns, LinearSolveOptions<dynamic::Tensors>& options);

}  // namespace tower::solvers
