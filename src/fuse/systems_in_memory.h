// Factorizations of matrices and solves with them as steps of programs without LibTorch
// (kernels/systems_by_pointers.h): of matrices that are too large to be numbers of a lane. In the process they are
// LibTorch's.
#pragma once

#include <optional>

#include "fuse/kernel_calls.h"

namespace tower::compiler {

/// What takes the place of the graph's call of this number, of the results that `readers` read; none where it is no
/// such call, or not of float32 or float64.
std::optional<Call> systems_in_memory(const Graph& graph, size_t call, const Readers& readers);

}  // namespace tower::compiler
