// A compiled function, and its derivatives, as CasADi calls external functions (export_casadi.cpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compile/library_target.h"
#include "fuse/pointer_program.h"
#include "tower/export_c.h"

namespace tower::compiler {

/// What `export_c` writes, whatever calls it.
struct LibraryFiles {
  std::string header, source, object, cmake;
  std::string fortran = {};            // empty: there is none
  std::vector<OtherFile> others = {};  // what the options want besides
};

/// Of a library `name` of a kind that CMake has, such as STATIC.
std::string cmake_text(const std::string& name, const char* kind);

/// Of a function, which is this program of the process, and its derivatives. Throws as `export_c` says.
LibraryFiles casadi_library(std::shared_ptr<const PointerProgram> program, const std::string& name,
                            const ExportOptions& options, const LibraryTarget& target);

}  // namespace tower::compiler
