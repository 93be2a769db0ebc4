#pragma once

#include <stdexcept>

namespace tower::compiler {

/// Why there is no machine code: what LLVM refused, or that there is none.
struct CompileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace tower::compiler
