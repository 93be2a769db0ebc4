// A compiled function, and its derivatives, as CasADi calls external functions (export_casadi.cpp).
#pragma once

#include <string>

#include "fuse/pointer_program.h"
#include "tower/export_c.h"

namespace tower::compiler {

/// What `export_c` writes, whatever calls it.
struct LibraryFiles {
  std::string header, source, object, cmake;
  std::string fortran = {};  // empty: there is none
};

/// Of a library `name` of a kind that CMake has, such as STATIC.
std::string cmake_text(const std::string& name, const char* kind);

/// Of a function, which is this program, and its derivatives. Throws as `export_c` says.
LibraryFiles casadi_library(const PointerProgram& program, const std::string& name, const ExportOptions& options);

}  // namespace tower::compiler
