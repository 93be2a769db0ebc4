// Machine code as a file that linkers take.
#pragma once

#include <string>
#include <vector>

#include "kernels/machine_code.h"

namespace tower::compiler {

struct NamedCode {
  std::string name;
  Binary binary;
};

/// An ELF object for `machine`, whose code may be linked into programs and shared libraries alike, with these
/// functions. Other libraries do not see their names. What they call is left to the linker.
std::string object_file(const std::vector<NamedCode>& functions, Machine machine);

}  // namespace tower::compiler
