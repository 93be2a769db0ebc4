// Operators whose calls take LibTorch more time than a kernel, however many operations that takes.
#pragma once

#include "core/operator.h"

namespace tower::compiler {

/// Whether LibTorch's call, even for many examples at once, takes longer than all operations that a kernel's lane may
/// have: sorting, for one.
bool is_slow_call(const Operator& op);
void set_slow_call(const Operator& op);

}  // namespace tower::compiler
