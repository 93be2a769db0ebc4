// Eigenvalues, singular values and exponentials of small matrices, in numbers, for the operators' records. They are
// loops of numbers: how many steps a matrix takes depends on its values.
#pragma once

#include "numbers/small.h"

namespace tower::rules::small {

compiler::SmallResults symmetric_eigenvalues(const compiler::SmallCall& c);
compiler::SmallResults singular_values(const compiler::SmallCall& c);
compiler::SmallResults exponential(const compiler::SmallCall& c);

}  // namespace tower::rules::small
