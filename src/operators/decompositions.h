// Whose decompositions are in force.
#pragma once

#include "core/operator.h"

namespace tower {

/// Whether a program has registered one for the operator (tower/decompose.h), which then is code of its own.
bool is_decomposed_by_user(const Operator& op);

}  // namespace tower
