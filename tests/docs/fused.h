// What kernels compute, for docs/coverage.md.
#pragma once

#include <string>

namespace docs {

/// Which operators of the database are computed in kernels of compiled functions, and the shares of these.
std::string fused_operators(const std::string& op_db_folder);

}  // namespace docs
