// Operators that are given addresses in memory.
#pragma once

#include "core/operator.h"

namespace tower::compiler {

/// Whether a call is given addresses (as_strided and its kin): what it reads depends on where its operand begins in
/// memory, which a graph does not say, and on what lies around it. So nobody may make the operand anew.
bool is_given_addresses(const Operator& op);

}  // namespace tower::compiler
