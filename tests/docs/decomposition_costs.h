// What decompositions cost, for docs/coverage.md.
#pragma once

#include <string>

namespace docs {

/// A table of all decompositions: how many kernels, views not counted, a call of the operator becomes under each
/// transform that the decomposition serves.
std::string decomposition_costs(const std::string& op_db_folder);

}  // namespace docs
