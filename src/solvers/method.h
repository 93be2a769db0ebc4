// The solvers of a linear system and its derivatives, as options say.
#pragma once

#include "solvers/linear_system.h"
#include "tower/linear_solve.h"

namespace tower::solvers {

/// The system of `apply` with all that `options` decide. `users`: a user wrote the function.
LinearSystem linear_system(std::string name, LinearSystem::Prepare apply, LinearSystem::Prepare transposed,
                           const LinearSolveOptions<dynamic::Tensors>& options, bool users);

}  // namespace tower::solvers
