// What the plain call refuses, every transform refuses: from samples of the operator database, calls are derived with
// one thing wrong (a dimension, a size, a dtype, an index, a number). Where the plain call throws, vmap over all
// tensors or one of them, vjp and jvp throw; where it has a result, vmap has that, or refuses.
//
// LibTorch's internal operators (backward operators, names with an underscore first) do not check, and crash.
// TOWER_WRONG_CALLS is how many samples of each operator are taken; 1 without it.
#pragma once

#include <string>

namespace wrong_calls {

/// Registers a test for each operator; call before RUN_ALL_TESTS.
void register_tests(const std::string& op_db_folder);

}  // namespace wrong_calls
