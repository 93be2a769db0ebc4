// For tests that compile the same over and over, samples that differ in sizes only, say, and that are about what
// kernels compute, not about how they are made.
#pragma once

#include <tower/compile.h>

#include <cstdlib>

#include "compile/files.h"

namespace support {

/// Options with which kernels that are made of the same text are generated once in a process, or once for all who have
/// the same folder in the environment (TOWER_CACHE).
inline const tower::CompileOptions& generated_once() {
  if (std::getenv("TOWER_CACHE") != nullptr) {
    static const tower::CompileOptions of_environment;
    return of_environment;
  }
  static const Folder folder;
  static const tower::CompileOptions options{.cache = folder.path()};
  return options;
}

}  // namespace support
