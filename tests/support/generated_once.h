// For tests that compile the same over and over, samples that differ in sizes only, say, and that are about what
// kernels compute, not about how they are made.
#pragma once

#include <tower/compile.h>

#include "compile/files.h"

namespace support {

/// Options with which kernels that are made of the same text are generated once in a process.
inline const tower::CompileOptions& generated_once() {
  static const Folder folder;
  static const tower::CompileOptions options{.cache = folder.path()};
  return options;
}

}  // namespace support
