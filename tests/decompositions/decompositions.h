// Every decomposition against its operator. The tests are made from the library's own list of decompositions and the
// samples of the operator database, so that a new one is tested by being there; one without a sample fails.
//
// From each sample, groups of calls are derived, and for each call both give the same values, dtypes and shapes, or
// both throw:
//   values       the sample in each dtype under test
//   layouts      tensors that are transposed, strided, offset in memory
//   special      NaN, infinities, zeros, in one tensor at a time. Results are finite in the same places
//   dtypes       all tensors in other dtypes, and one alone in float32
//   shapes       a dimension more, a dimension less, another size, empty
//   attributes   other numbers and flags
// In the first four groups the decomposition may have a result where the operator throws: kernels are missing for a
// dtype or a layout, or look at values, which a decomposition cannot. The last two are not for LibTorch's internal
// operators (backward operators, names with an underscore first, native_…): those do not check, and crash. Besides:
//   errors       the bad samples throw
//   derivatives  vjp and jvp of the decomposition against finite differences of the operator, vmap of it against a loop
// A note `- decomposition GROUP: reason` in the database excepts an entry from a group. One
// `- decomposition accepts GROUP: reason` lets the decomposition do more than the operator there.
#pragma once

#include <string>

namespace decompositions {

/// Registers all tests; call before RUN_ALL_TESTS.
void register_tests(const std::string& op_db_folder);

}  // namespace decompositions
