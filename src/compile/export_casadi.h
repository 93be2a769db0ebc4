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

/// Throws ArgumentError where `names` are not for so many arguments or results (`what`), or one has other characters
/// than letters, digits and single underscores: they stand in the text of libraries.
void check_names(const std::vector<std::string>& names, size_t count, const char* what);

/// Of a library `name` of a kind that CMake has, such as STATIC.
std::string cmake_text(const std::string& name, const char* kind);

/// Of a function, which is this program, and of its derivatives, which `of_process` are the kernels to find out. Throws
/// as `export_c` says.
LibraryFiles casadi_library(std::shared_ptr<const PointerProgram> program, std::shared_ptr<Kernels> of_process,
                            const std::string& name, const ExportOptions& options, const LibraryTarget& target);

}  // namespace tower::compiler
