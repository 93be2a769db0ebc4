// The solution of a small linear system by its matrix.
#pragma once

#include "solvers/linear_system.h"

namespace tower::solvers {

/// Makes the matrix of the function's values at the unit vectors, under one vmap. `check`: whether to look if the
/// function is as linear as the matrix; throws ArgumentError where it is not.
LinearSystem::Solver dense_solver(std::string name, bool check);

}  // namespace tower::solvers
